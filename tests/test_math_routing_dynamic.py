"""Routing by agreement against a loop in NumPy, its properties, and its gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scae_jax.math.routing.dynamic import route_by_agreement, squash
from tests.references import reference_agreement

# Prediction vectors: children, parents, numbers of each.
PREDICTIONS = np.random.RandomState(0).normal(size=(7, 3, 4)).astype(np.float32)


@functools.partial(jax.jit, static_argnames=("iterations", "through_all"))
def route(predictions, iterations=3, through_all=True):
  return route_by_agreement(predictions, iterations=iterations, through_all=through_all)


@pytest.mark.parametrize("iterations", [1, 3])
def test_against_a_loop(iterations):
  routing, expected = route(PREDICTIONS, iterations), reference_agreement(PREDICTIONS, iterations)
  # Sums of a few float32 products.
  np.testing.assert_allclose(routing.parents, expected[-1][0], rtol=1e-5, atol=1e-6)
  for i, (_, coupling, agreement) in enumerate(expected):
    np.testing.assert_allclose(routing.coupling[i], coupling, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(routing.agreement[i], agreement, rtol=1e-5, atol=1e-6)


squash_and_slope = jax.jit(lambda vector: (squash(vector), jax.jacobian(squash)(vector)))


@pytest.mark.parametrize("length", [0.0, 1e-20, 1e18])
def test_squash_of_extremes(length):
  """The length follows the formula. The gradient is finite, and zero at zero."""
  squashed, jacobian = squash_and_slope(jnp.array([0.0, length]))
  assert squashed[1] == pytest.approx(length**2 / (1 + length**2), rel=1e-6, abs=1e-7)
  assert np.isfinite(jacobian).all()
  if length == 0:
    np.testing.assert_array_equal(jacobian, 0)  # every product has a factor of 0


def test_gradients_of_the_last_iteration_alone():
  """They equal those of a weighted sum with constant coupling coefficients."""
  predictions = jnp.asarray(PREDICTIONS)
  coupling = route(predictions).coupling[-1]

  @jax.jit
  @jax.grad
  def last(predictions):
    return jnp.sum(squash(jnp.einsum("nk,nkd->kd", coupling, predictions)) ** 2)

  @functools.partial(jax.jit, static_argnums=1)
  def routed(predictions, through_all):
    def total(predictions):
      parents = route(predictions, through_all=through_all).parents
      return jnp.sum(parents**2), parents

    return jax.grad(total, has_aux=True)(predictions)

  (of_last, parents), (of_all, same_parents) = routed(predictions, False), routed(predictions, True)
  np.testing.assert_allclose(of_last, last(predictions), rtol=1e-5, atol=1e-6)
  assert np.abs(of_all - of_last).max() > 0.01
  # Two programs of the same numbers.
  np.testing.assert_allclose(parents, same_parents, rtol=1e-5, atol=1e-6)


def test_zero_iterations_are_refused():
  with pytest.raises(ValueError, match=r"\b1 iteration.* 0\b"):
    route_by_agreement(jnp.asarray(PREDICTIONS), iterations=0, through_all=True)
