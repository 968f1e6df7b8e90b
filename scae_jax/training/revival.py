"""Idle object capsules become copies of busy ones, before the steps in `train.revive_idle`.

An object that wins no example still explains the absent parts, the same in every image, and its
gradient does not change that. As a copy of the object with the most examples it shares these
examples, and the two grow apart. Vector quantisation resets unused codes in the same way.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh

from scae_jax.data.feed import Feed
from scae_jax.models.system import System
from scae_jax.sections import TrainOptions
from scae_jax.training.hosts import replicated
from scae_jax.training.state import TrainState
from scae_jax.typing import Array, Batch, Bool, Float, Int, PRNGKeyArray, typed

REVIVAL_STREAM = 2  # folded into the run's key, as the streams in `step`
NUM_BATCHES, BATCH_SIZE = 16, 256  # of training examples that measure how busy objects are
IDLE_SHARE = 0.25  # an object that wins less than this part of an even share is idle
NOISE = 0.02  # standard deviation of a copy's noise, in those of the copied parameters


def make_revival(
  system: System,
  optimizer: optax.GradientTransformation,
  mesh: Mesh,
  feed: Feed,
  train: TrainOptions,
) -> Callable[[TrainState, Batch], TrainState]:
  """The compiled function `(state, training_split) -> state` that revives idle objects.

  The optimiser's moments are copied with the parameters. The result depends on the state alone, so
  a resumed run repeats it. The system must have `object_params`.
  """
  is_object_param = system.object_params
  assert is_object_param is not None

  def revive(state: TrainState, split: Batch) -> TrainState:
    key = jax.random.fold_in(jax.random.fold_in(state.rng, REVIVAL_STREAM), state.step)

    def winners(number: Array) -> Array:
      batch_key, index_key = jax.random.split(jax.random.fold_in(key, number))
      indices = jax.random.randint(index_key, (BATCH_SIZE,), 0, feed.num_train)
      batch = feed.training_batch(batch_key, split, indices)
      mass = jnp.asarray(system.encode({"params": state.params}, batch).posterior_mass)
      return jnp.mean(jax.nn.one_hot(jnp.argmax(mass, axis=1), mass.shape[1]), axis=0)

    usage = jnp.mean(jax.lax.map(winners, jnp.arange(NUM_BATCHES)), axis=0)
    source, is_copy = sources_of(usage)
    params: dict[str, Any] = flatten_dict(state.params, sep="/")
    has_object_axis = {path: is_object_param(path) for path in params}
    noise_keys = jax.random.split(jax.random.fold_in(key, NUM_BATCHES), len(params))
    for path, noise_key in zip(params, noise_keys, strict=True):
      if has_object_axis[path]:
        params[path] = noisy_copies(params[path], source, is_copy, noise_key)

    def copy_moment(moment: Array, has_objects: bool) -> Array:
      return moment[source] if has_objects else moment

    has_object_axis = unflatten_dict(has_object_axis, sep="/")
    return dataclasses.replace(
      state,
      params=unflatten_dict(params, sep="/"),
      opt_state=optax.tree.map_params(optimizer, copy_moment, state.opt_state, has_object_axis),
    )

  everywhere = replicated(mesh)
  over_seeds = jax.vmap(revive, in_axes=(0, None)) if train.seeds > 1 else revive
  return jax.jit(over_seeds, in_shardings=everywhere, out_shardings=everywhere)


@typed
def sources_of(usage: Float[Array, " k"]) -> tuple[Int[Array, " k"], Bool[Array, " k"]]:
  """For each object, the one whose parameters it gets (itself if busy), and whether it is a copy.

  `usage` is the share of the examples that each object wins. An idle object copies the busy one
  with the largest share, divided by the number of objects that have its parameters so far.
  """
  k = len(usage)
  idle = usage < IDLE_SHARE / k

  def choose(copies: Array, i: Array) -> tuple[Array, Array]:
    busiest = jnp.argmax(jnp.where(idle, -1.0, usage / copies))
    return copies.at[busiest].add(idle[i]), jnp.where(idle[i], busiest, i)

  _, source = jax.lax.scan(choose, jnp.ones(k), jnp.arange(k))
  return source, idle


@typed
def noisy_copies(
  leaf: Float[Array, "k ..."],
  source: Int[Array, " k"],
  is_copy: Bool[Array, " k"],
  key: PRNGKeyArray,
) -> Float[Array, "k ..."]:
  """Entries `source` of a parameter; copies get noise of `NOISE` times the std of an entry."""
  entries = leaf[source]
  entry_axes = tuple(range(1, leaf.ndim))
  std = jnp.std(entries, axis=entry_axes, keepdims=True)
  noise = NOISE * std * jax.random.normal(key, leaf.shape)
  return entries + jnp.where(is_copy.reshape(-1, *[1] * len(entry_axes)), noise, 0.0)
