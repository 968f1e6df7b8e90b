"""Runs a model over examples and gathers the outputs that evaluation needs, as NumPy arrays."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from scae_jax.data.batches import evaluation_batch
from scae_jax.data.feed import MakeBatch
from scae_jax.evaluation.checks import check_finite
from scae_jax.models.system import System, labels_of
from scae_jax.typing import Batch
from scae_jax.waiting import waiting

Tree = TypeVar("Tree")
# (variables, arrays of a split[, indices]) -> arrays with one entry an example, in order.
Collect = Callable[..., Any]


def feature_collector(system: System, *, canvas: int, batch_size: int) -> Collect:
  """`output_collector` of images, which are padded to `canvas` pixels a side."""
  make_batch = functools.partial(evaluation_batch, canvas=canvas)
  return output_collector(system, make_batch, batch_size=batch_size)


def output_collector(system: System, make_batch: MakeBatch, *, batch_size: int) -> Collect:
  """Collects `metrics`, {name: [n]}, `features` and `probe_features`, {name: float32 [n, d]}.

  If the system classifies, also `scores` [n, classes] and `labels` int32 [n, 1], or [n, 2] of
  pairs.
  """

  def read_outputs(variables: Any, batch: Batch) -> dict[str, Any]:
    output = system.module.apply(variables, batch, train=False)
    vectors = {"features": system.features(output), "probe_features": system.probe_features(output)}
    vectors = jax.tree.map(lambda x: x.astype(jnp.float32), vectors)
    outputs = {"metrics": system.metrics(output, batch), **vectors}
    if system.classify is not None:
      outputs |= {"scores": system.classify(output), "labels": labels_of(batch)}
    return outputs

  return make_collector(read_outputs, make_batch, batch_size)


def make_collector(
  read: Callable[[Any, Batch], Any], make_batch: MakeBatch, batch_size: int
) -> Collect:
  """Compiles a pass over examples: `(variables, examples, rows=None) -> results of `read``.

  `read(variables, batch)` and `make_batch` are jittable. `examples` are arrays with one entry an
  example; all of them go to the device. `rows` are the indices that are read, None for all. If a
  model keeps its noise on in evaluation, the results depend on the batch size.
  """
  batch_of, forward = jax.jit(make_batch), jax.jit(read)

  def collect(variables: Any, examples: Mapping[str, Any], rows: np.ndarray | None = None) -> Any:
    all_rows = np.arange(len(next(iter(examples.values())))) if rows is None else rows
    arrays = {name: jnp.asarray(array) for name, array in examples.items()}
    return in_batches(
      lambda batch_rows: forward(variables, batch_of(arrays, jnp.asarray(all_rows[batch_rows]))),
      len(all_rows),
      batch_size,
    )

  return collect


def in_batches(run: Callable[[np.ndarray], Tree], count: int, batch_size: int) -> Tree:
  """Results of `run` for `count` examples, in order: NumPy arrays with one entry an example.

  `run` takes indices. All batches have the same size; the last one repeats its last example.
  Results stay on the device until the end. Raises ValueError for a batch size below one.
  """
  if batch_size < 1:
    raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
  size = min(batch_size, count)
  passes = []
  with waiting(f"reading {count:,} examples", count) as advance:
    for start in range(0, count, size):
      passes.append(run(np.minimum(np.arange(start, start + size), count - 1)))
      if len(passes) > 1:  # one batch is computed while the next is prepared
        jax.block_until_ready(passes[-2])
        advance(size)
    jax.block_until_ready(passes[-1])
  return jax.tree.map(lambda *parts: np.concatenate(parts)[:count], *jax.device_get(passes))


def mean_metrics(metrics: Mapping[str, np.ndarray]) -> dict[str, float]:
  """Mean over examples of each metric [n]; raises ValueError when an entry is not finite."""
  for name, values in metrics.items():
    check_finite(f"Metric '{name}'", values)
  return {name: float(np.mean(values, dtype=np.float64)) for name, values in metrics.items()}
