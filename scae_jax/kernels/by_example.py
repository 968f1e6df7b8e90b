"""Sums over examples that are computed one example at a time, value and gradient together.

XLA's CPU backend computes an operation for the whole batch before the next one starts. Arrays of
one example stay in the cache of its core; those of a batch go through memory several times.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from scae_jax.shards import on_each_device
from scae_jax.typing import Array

Term = Callable[[Any, Any, Any], Array]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def sum_by_example(term: Term, shared: Any, examples: Any, constants: Any) -> Array:
  """sum_i term(shared, examples_i, constants_i), [].

  `term` is a pure function that returns a number and closes over no array. The others are trees of
  arrays: `shared` ones, that all examples have in common, `examples` [b, ...], and `constants` [b,
  ...] that get no gradient. The pass that a gradient needs computes value and gradient in one loop
  over examples. Each device of a mesh computes its own; see `shards`.
  """

  def device_sum(shared: Any, examples: Any, constants: Any) -> Array:
    def add(total: Array, one: Any) -> tuple[Array, None]:
      return total + term(shared, *one), None

    total, _ = jax.lax.scan(add, jnp.zeros(()), (examples, constants))
    return total[None]

  return jnp.sum(on_each_device(device_sum, (shared,), (examples, constants)))


def _forward(
  term: Term, shared: Any, examples: Any, constants: Any
) -> tuple[Array, tuple[Any, Any]]:
  value_and_gradient = jax.value_and_grad(term, argnums=(0, 1))

  def device_sum(shared: Any, examples: Any, constants: Any) -> Any:
    def add(sums: Any, one: Any) -> tuple[Any, Any]:
      value, (of_shared, of_example) = value_and_gradient(shared, *one)
      return jax.tree.map(jnp.add, sums, (value, of_shared)), of_example

    start = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, shared))
    sums, of_examples = jax.lax.scan(add, start, (examples, constants))
    return jax.tree.map(lambda array: array[None], sums), of_examples

  sums, of_examples = on_each_device(device_sum, (shared,), (examples, constants))
  total, of_shared = jax.tree.map(lambda by_device: jnp.sum(by_device, axis=0), sums)
  return total, (of_shared, of_examples)


def _backward(term: Term, gradients: tuple[Any, Any], cotangent: Array) -> tuple[Any, Any, None]:
  del term
  of_shared, of_examples = jax.tree.map(lambda array: cotangent * array, gradients)
  return of_shared, of_examples, None


sum_by_example.defvjp(_forward, _backward)
