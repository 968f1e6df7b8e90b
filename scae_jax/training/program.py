"""The part of a run on the device: the data set and the compiled functions of the training loop.

`step.make_dispatch` trains, `make_heldout` computes loss terms and metrics of held-out examples.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from jax.sharding import Mesh
from rich.filesize import decimal

from scae_jax.config import Settings
from scae_jax.data.feed import Feed
from scae_jax.errors import NonFiniteError, RunError
from scae_jax.models.system import System
from scae_jax.sections import TrainOptions
from scae_jax.training.hosts import put, replicated, split_examples
from scae_jax.training.optimizer import make_optimizer
from scae_jax.training.revival import make_revival
from scae_jax.training.state import TrainState
from scae_jax.training.step import (
  heldout_weights,
  losses,
  make_dispatch,
  selection_loss,
  weighted_total,
)
from scae_jax.typing import Array, Batch


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
    """Moves the data set to the mesh; call `compile` before `run`."""
    self._train = settings.train
    self._terms = tuple(system.loss_weights)
    self._mesh = mesh
    self._num_examples = feed.num_train
    self._train_split = put(feed.train, mesh)
    self.held_out = feed.held_out
    self._heldout_split = put(feed.heldout, mesh)
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
        f"a training step needs {decimal(needed)} of memory, and the device has {decimal(memory)};"
        " make the model, the canvas or config.train.batch_size smaller."
      )

  def run(self, state: TrainState, step: int) -> tuple[TrainState, dict[str, np.ndarray]]:
    """Trains from `step` to the next multiple of the dispatch length; the state is donated.

    Returns the state after n more steps, and their metrics `{name: float32 [n]}`, with several
    seeds `[n, seeds]`: unweighted loss terms, `terms/...`, in the system's order, then `total` and
    `grad_norm`.
    """
    length = self._train.dispatch_length
    if self._revive is not None and step in self._train.revive_idle:
      state = self._revive(state, self._train_split)
    num_active = min(length - step % length, self._train.num_steps - step)
    state, metrics = self._compiled(state, *self._inputs(step, num_active))
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
    epoch, offset = divmod(step * self._train.batch_size, self._num_examples)
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
