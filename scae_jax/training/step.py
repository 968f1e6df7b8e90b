"""One training step: weighted loss, gradient and update; and a dispatch of many steps."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, PartitionSpec

from scae_jax import shards
from scae_jax.data.batches import example_order
from scae_jax.math.schedules import line_through
from scae_jax.models.system import System
from scae_jax.sections import TrainOptions
from scae_jax.training.hosts import replicated, split_examples
from scae_jax.training.state import TrainState
from scae_jax.typing import Array, Batch

PROBE_SUFFIX = "_probe"


def weighted_total(terms: Mapping[str, Array], weights: Mapping[str, Any]) -> Array:
  """Sum of weight times term; raises `ValueError` for a weight without a term."""
  if unknown := sorted(set(weights) - set(terms)):
    raise ValueError(
      f"config.loss.weights has {unknown}, which are no loss terms; the terms are {sorted(terms)}."
    )
  return sum((weights[name] * terms[name] for name in sorted(terms)), start=jnp.zeros(()))


def selection_loss(terms: Mapping[str, Array], weights: Mapping[str, float]) -> Array:
  """The held-out total that ranks checkpoints, without the terms `..._probe`, which use labels."""
  names = [name for name in terms if not name.endswith(PROBE_SUFFIX)]
  return weighted_total({n: terms[n] for n in names}, {n: weights[n] for n in names})


def heldout_weights(system: System, terms: Mapping[str, Array]) -> dict[str, float]:
  """Weights of the terms that held-out examples have; some terms belong to training alone."""
  return {name: weight for name, weight in system.loss_weights.items() if name in terms}


def scheduled_weights(system: System, step: Array | int) -> dict[str, Array]:
  """Weights of the loss terms, times the factors of `loss_schedule`, at a step counted from 0.

  Raises `ValueError` if the schedule names an unknown term.
  """
  unknown = sorted(set(system.loss_schedule) - set(system.loss_weights))
  if unknown:
    raise ValueError(
      f"config.loss.schedule has {unknown}, which are no loss terms; the terms are"
      f" {sorted(system.loss_weights)}."
    )
  weights = {}
  for name, weight in system.loss_weights.items():
    factor = line_through(system.loss_schedule.get(name, ()))
    weights[name] = jnp.float32(weight) if factor is None else weight * factor(step)
  return weights


def losses(
  system: System,
  params: Any,
  batch: Batch,
  *,
  step: Array | int | None,
  noise_key: Array | None,
) -> tuple[Array, tuple[dict[str, Array], Any]]:
  """`(total, (terms, output))`: the weighted total, the unweighted terms and the model's output.

  For held-out examples `step` and `noise_key` are None: no noise, the final values of scheduled
  arguments, constant weights. Their losses at different steps can be compared. A term without a
  weight is left out: configs of runs older than a term have none.
  """
  rngs = None if noise_key is None else {"noise": noise_key}
  scheduled = {} if step is None or system.arguments is None else system.arguments(step)
  output = system.module.apply(
    {"params": params}, batch, train=step is not None, rngs=rngs, **scheduled
  )
  terms = system.loss_terms(output, batch, step)
  terms = {name: term for name, term in terms.items() if name in system.loss_weights}
  weights = heldout_weights(system, terms) if step is None else scheduled_weights(system, step)
  return weighted_total(terms, weights), (terms, output)


# Folded into the run's key, one for each use; `revival` has a third.
ORDER_STREAM, STEP_STREAM = 0, 1

# Metrics of a step, float32 scalars: the unweighted loss terms, `total` and `grad_norm`.
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

  On a mesh of several devices, each computes loss and gradient of its own examples. All arrays are
  summed over the devices as one vector: on a CPU, a sum for each array takes longer than the step.

  Returns the next state, and `{"terms": {name: []}, "total": [], "grad_norm": []}`: the losses
  before the update, and the norm before weight decay and clipping.
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
    whole, split = PartitionSpec(), PartitionSpec(shards.AXIS)
    compute = jax.shard_map(
      summed, mesh=mesh, in_specs=(whole, split, whole, whole), out_specs=whole, check_vma=False
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
  """The compiled function that runs `train.dispatch_length` steps on the device.

  Its arguments are
    state       the training state, which is donated
    split       the training examples, on the mesh
    epoch       the current epoch, int32 []
    offset      number of the epoch's examples that earlier steps have used, int32 []
    num_active  number of steps that are taken, int32 []; the rest leave the state unchanged, so
                that one program serves the whole run

  It returns the state and the metrics `[dispatch_length]`, of which the first `num_active` are
  valid. With several seeds at once, the state has a seed axis in front and metrics have one at the
  end. `training_batch` is that of `data.feed.Feed`.
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
        """The new value in active steps; by `where`, because a GPU waits at every `lax.cond`."""
        # The run's key is the same object in both: `where` would count as a use of it.
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
  """A dispatch of several seeds by `vmap`: batched operations fill a GPU."""
  return jax.vmap(dispatch, in_axes=(0, None, None, None, None), out_axes=(0, 1))


def _one_after_another(dispatch: Dispatch) -> Dispatch:
  """A dispatch of several seeds in a loop: one seed keeps a core busy, five overflow its cache."""

  def dispatch_all(states: TrainState, *inputs: Any) -> tuple[TrainState, StepMetrics]:
    states, metrics = jax.lax.map(lambda state: dispatch(state, *inputs), states)
    return states, jax.tree.map(lambda by_seed: jnp.moveaxis(by_seed, 0, 1), metrics)

  return dispatch_all
