"""The compiled part of a run: weighted loss, gradient and update, and held-out evaluation.

`losses` is the objective, `update` one optimiser step. `Program` compiles them for a run: a
dispatch of many steps, and loss terms and metrics of the held-out examples.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import flatten_dict
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, PartitionSpec
from rich.filesize import decimal

from scae_jax import shards
from scae_jax.config import Settings
from scae_jax.data.batches import example_order
from scae_jax.data.feed import Feed
from scae_jax.errors import NonFiniteError, RunError
from scae_jax.math.schedules import line_through
from scae_jax.models.system import System
from scae_jax.sections import TrainOptions
from scae_jax.training.hosts import put, replicated, split_examples
from scae_jax.training.optimizer import make_optimizer
from scae_jax.training.revival import make_revival
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


def make_heldout(
  system: System, mesh: Mesh, feed: Feed, train: TrainOptions
) -> Callable[[Any, Batch], dict[str, Any]]:
  """The compiled function `(params, heldout_split) -> results`, in float32:

    {"terms": {name: []}, "metrics": {name: []}, "total": [], "selection_loss": []}

  `selection_loss` is the total without the probes' terms. With several seeds at once, parameters
  have one more axis in front and results are [seeds].

  Loss terms may depend on the batch size, so they are means over batches of the training size; the
  examples of an incomplete last batch are left out. Metrics are means over all examples.
  """
  num_examples, batch_size = feed.num_heldout, min(train.batch_size, feed.num_heldout)
  num_full = num_examples // batch_size
  # Every example once; copies of the last one fill the last batch.
  order = np.arange(num_examples, dtype=np.int32)
  order = np.pad(order, (0, -num_examples % batch_size), "edge").reshape(-1, batch_size)

  def heldout(params: Any, split: Batch) -> dict[str, Any]:
    def body(_: Any, indices: Array) -> tuple[None, tuple[Any, Any]]:
      batch = feed.evaluation_batch(split, split_examples(indices, mesh))
      batch = jax.tree.map(lambda array: split_examples(array, mesh), batch)
      _, (terms, output) = losses(system, params, batch, step=None, noise_key=None)
      return None, (terms, system.metrics(output, batch))

    _, (terms, metrics) = jax.lax.scan(body, None, jnp.asarray(order))
    terms = jax.tree.map(lambda values: jnp.mean(values[:num_full]), terms)
    metrics = jax.tree.map(lambda values: jnp.mean(values.reshape(-1)[:num_examples]), metrics)
    return {
      "terms": terms,
      "metrics": metrics,
      "total": weighted_total(terms, heldout_weights(system, terms)),
      "selection_loss": selection_loss(terms, system.loss_weights),
    }

  if train.seeds > 1:
    heldout = jax.vmap(heldout, in_axes=(0, None))
  everywhere = replicated(mesh)
  return jax.jit(heldout, in_shardings=everywhere, out_shardings=everywhere)


def device_memory() -> int:
  """Memory of a device in bytes; for a CPU device, its share of the machine's memory."""
  device = jax.local_devices()[0]
  statistics = device.memory_stats() if device.platform != "cpu" else None
  if statistics and "bytes_limit" in statistics:
    return statistics["bytes_limit"]
  machine_memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  return machine_memory // jax.local_device_count()


class Program:
  """Runs training steps, and evaluates the split `held_out`; the data set stays on the mesh."""

  def __init__(self, settings: Settings, system: System, feed: Feed, mesh: Mesh):
    """Computes nothing yet; `compile` moves the data set to the mesh."""
    self._train = settings.train
    self._terms = tuple(system.loss_weights)
    self._mesh = mesh
    self._feed = feed
    self._compiled: Any = None
    self.held_out = feed.held_out
    optimizer = make_optimizer(settings.optimizer)
    self._dispatch = make_dispatch(
      system, optimizer, mesh, feed.training_batch, settings.train, num_examples=feed.num_train
    )
    self._heldout = make_heldout(system, mesh, feed, settings.train)
    self._revive = None
    if settings.train.revive_idle:
      self._revive = make_revival(system, optimizer, mesh, feed, settings.train)

  def compile(self, state: TrainState) -> None:
    """Compiles the dispatch for a state, or for the shapes of one.

    Raises `RunError` if it cannot be compiled, or needs more memory than the device has.
    """
    self._train_split = put(self._feed.train, self._mesh)
    self._heldout_split = put(self._feed.heldout, self._mesh)
    try:
      self._compiled = self._dispatch.lower(state, *self._inputs(0, 0)).compile()
    except jax.errors.JaxRuntimeError as error:
      reason = str(error).strip().partition("\n")[0]
      raise RunError(f"the training step cannot be compiled for this device: {reason}") from error
    sizes: Any = self._compiled.memory_analysis()
    needed = sizes.argument_size_in_bytes + sizes.temp_size_in_bytes
    needed += sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    if needed > (memory := device_memory()):
      raise RunError(
        f"a training step needs {decimal(needed)} of memory, and the device has {decimal(memory)}."
      )

  def run(self, state: TrainState, step: int) -> tuple[TrainState, dict[str, np.ndarray]]:
    """Trains from `step` to the next multiple of the dispatch length; the state is donated.

    Returns the state after n more steps, and their metrics `{name: float32 [n]}`, with several
    seeds `[n, seeds]`: unweighted loss terms, `terms/...`, in the system's order, then `total` and
    `grad_norm`.
    """
    length = self._train.dispatch_length
    if self._compiled is None:
      self.compile(state)
    if self._revive is not None and step in self._train.revive_idle:
      state = self._revive(state, self._train_split)
    num_active = min(length - step % length, self._train.num_steps - step)
    dispatch: Any = self._compiled
    state, metrics = dispatch(state, *self._inputs(step, num_active))
    rows: dict[str, Any] = flatten_dict(self._in_order(jax.device_get(metrics)), sep="/")
    return state, {name: values[:num_active] for name, values in rows.items()}

  def evaluate(self, params: Any) -> dict[str, Any]:
    """Results of `make_heldout`, loss terms first in the system's order; float64 [] or [seeds]."""
    results = jax.device_get(self._heldout(params, self._heldout_split))
    return self._in_order(jax.tree.map(np.float64, results))

  def _in_order(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Restores the system's order of the loss terms: JAX sorts the keys of dicts."""
    sorted_terms = metrics["terms"]
    terms = {name: sorted_terms[name] for name in self._terms if name in sorted_terms}
    return {"terms": terms, **{name: metrics[name] for name in metrics if name != "terms"}}

  def _inputs(self, step: int, num_active: int) -> tuple[Any, ...]:
    # Computed with Python's ints: the number of examples in a long run overflows int32.
    epoch, offset = divmod(step * self._train.batch_size, self._feed.num_train)
    numbers = put([np.int32(n) for n in (epoch, offset, num_active)], self._mesh)
    return self._train_split, *numbers


def check_finite(
  rows: Mapping[str, np.ndarray], step: int, seeds: Sequence[int], *, saved: int
) -> None:
  """Raises `NonFiniteError` if a metric of the n steps after `step` is not finite.

  `rows` is `{name: [n] or [n, seeds]}`. The message has the first such step, those of its metrics
  that are not finite, in the order of `rows`, and the last checkpoint (`saved`, 0 for none).
  """
  values = np.stack([values.reshape(-1, len(seeds)) for values in rows.values()], axis=-1)
  finite = np.isfinite(values)
  if finite.all():
    return
  first = int(np.argmin(finite.all(axis=(1, 2))))
  names = [name.removeprefix("terms/") for name in rows]
  non_finite = [
    f"{names[j]} = {values[first, i, j]}" + (f" (seed {seeds[i]})" if len(seeds) > 1 else "")
    for i, j in np.argwhere(~finite[first])
  ]
  last_saved = (
    f"The checkpoint of step {saved} stands." if saved else "No checkpoint was saved yet."
  )
  raise NonFiniteError(
    f"not finite at step {step + first + 1}: {', '.join(non_finite)}. {last_saved}"
    " Lower config.optimizer.learning_rate or set config.optimizer.clip_norm, in a new --workdir."
  )
