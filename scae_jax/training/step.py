"""One update of the parameters, and the compiled dispatch of many."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, PartitionSpec

from scae_jax import shards
from scae_jax.data.batches import example_order
from scae_jax.models.system import System
from scae_jax.training.mesh import replicated, split_examples
from scae_jax.training.objective import losses
from scae_jax.training.options import TrainOptions
from scae_jax.training.state import TrainState
from scae_jax.typing import Array, Batch

# Names of the two uses of the run's key.
ORDER_STREAM, STEP_STREAM = 0, 1

# What a step reports, each a float32 scalar: every term unweighted, `total` and `grad_norm`.
StepMetrics = dict[str, Any]
Dispatch = Callable[..., tuple[TrainState, StepMetrics]]


def update(
  system: System,
  optimizer: optax.GradientTransformation,
  state: TrainState,
  batch: Batch,
  noise_key: Array,
  mesh: Mesh | None = None,
) -> tuple[TrainState, StepMetrics]:
  """One optimiser step on the weighted total.

  Over a mesh of several devices, each computes loss and gradient of its own examples. They are
  summed side by side: a sum for every array takes longer than the step on a CPU.

  Returns the next state, and `{"terms": {name: []}, "total": [], "grad_norm": []}` before the
  update, before weight decay and clipping.
  """

  def loss_and_gradient(params: Any, batch: Batch, step: Array, noise_key: Array) -> Any:
    def total_loss(params: Any) -> tuple[Array, dict[str, Array]]:
      total, (terms, _) = losses(system, params, batch, step=step, noise_key=noise_key)
      return total / shards.count(), terms

    (total, terms), grads = jax.value_and_grad(total_loss, has_aux=True)(params)
    return total, jax.tree.map(lambda term: term / shards.count(), terms), grads

  def summed(*arguments: Any) -> Any:
    numbers, unravel = ravel_pytree(loss_and_gradient(*arguments))
    return unravel(jax.lax.psum(numbers, shards.AXIS))

  compute = loss_and_gradient
  if mesh is not None and mesh.size > 1:
    each, split = PartitionSpec(), PartitionSpec(shards.AXIS)
    compute = jax.shard_map(
      summed, mesh=mesh, in_specs=(each, split, each, each), out_specs=each, check_vma=False
    )
  total, terms, grads = compute(state.params, batch, state.step, noise_key)
  updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
  metrics = {"terms": terms, "total": total, "grad_norm": optax.tree.norm(grads)}
  params = optax.apply_updates(state.params, updates)
  state = dataclasses.replace(state, step=state.step + 1, params=params, opt_state=opt_state)
  return state, metrics


def make_dispatch(
  system: System,
  optimizer: optax.GradientTransformation,
  mesh: Mesh,
  training_batch: Callable[..., Batch],
  train: TrainOptions,
  *,
  num_examples: int,
) -> jax.stages.Wrapped:
  """The function that runs `train.dispatch_length` steps on the device.

  It takes `(state, split, epoch, offset, num_active)`: the state, which is donated, the data set on
  the mesh, the epoch and the number of its examples that earlier steps have used, and the number of
  steps that are taken; the others leave the state as it was, so that one program serves the whole
  run. It returns the state and the metrics by step, `[dispatch_length]`, of which the first
  `num_active` are valid. Of several seeds at once, the state has an axis in front and metrics one
  at the end. `training_batch` is of `data.feed.Feed`.
  """

  def dispatch(
    state: TrainState,
    split: Batch,
    epoch: Array,
    offset: Array,
    num_active: Array,
  ) -> tuple[TrainState, StepMetrics]:
    order = example_order(
      jax.random.fold_in(state.rng, ORDER_STREAM),
      epoch,
      offset,
      num_steps=train.dispatch_length,
      batch_size=train.batch_size,
      num_examples=num_examples,
    )

    def spread(array: Array) -> Array:
      return split_examples(array, mesh)

    def body(state: TrainState, inputs: tuple[Array, Array]) -> tuple[TrainState, StepMetrics]:
      position, indices = inputs
      step_key = jax.random.fold_in(jax.random.fold_in(state.rng, STEP_STREAM), state.step)
      batch_key, noise_key = jax.random.split(step_key)
      batch = training_batch(batch_key, split, spread(indices))
      batch = jax.tree.map(spread, batch)
      next_state, metrics = update(system, optimizer, state, batch, noise_key, mesh)

      def choose(new: Array, old: Array) -> Array:
        """A select, not a `lax.cond`: a condition would make a GPU wait at every step."""
        # The key is the same in both; chosen, it would count as used.
        return old if new is old else jnp.where(position < num_active, new, old)

      return jax.tree.map(choose, next_state, state), metrics

    return jax.lax.scan(body, state, (jnp.arange(len(order)), order))

  run: Dispatch = dispatch
  if train.seeds > 1:
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    run = _one_after_another(dispatch) if on_cpu else _side_by_side(dispatch)
  everywhere = replicated(mesh)
  return jax.jit(run, donate_argnums=0, in_shardings=everywhere, out_shardings=everywhere)


def _side_by_side(dispatch: Dispatch) -> Dispatch:
  """A dispatch of several seeds, in batched operations, which fill a GPU."""
  return jax.vmap(dispatch, in_axes=(0, None, None, None, None), out_axes=(0, 1))


def _one_after_another(dispatch: Dispatch) -> Dispatch:
  """The same, each seed by itself: one keeps a core busy, and five do not fit its cache."""

  def dispatch_all(states: TrainState, *of_all: Any) -> tuple[TrainState, StepMetrics]:
    states, metrics = jax.lax.map(lambda state: dispatch(state, *of_all), states)
    return states, jax.tree.map(lambda of_seeds: jnp.moveaxis(of_seeds, 0, 1), metrics)

  return dispatch_all
