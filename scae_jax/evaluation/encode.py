"""Runs a model over examples and returns what it finds, as NumPy arrays.

Whatever evaluation, library, page and experiments know of a model's outputs comes from here.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from scae_jax.data.feed import MakeBatch
from scae_jax.evaluation.checks import check_finite
from scae_jax.models.system import Encoding, Numbers, System, labels_of
from scae_jax.waiting import waiting

Tree = TypeVar("Tree")
Batch = Mapping[str, Any]


class Measured(NamedTuple):
  """What a model finds in labelled examples, and how well it does."""

  encoding: Encoding  # without `details`
  metrics: Mapping[str, Numbers]  # `System.metrics`, [n] each
  labels: Numbers | None  # int32 [n, 1], or [n, 2] of pairs; None of points


def encode_dataset(
  system: System,
  variables: Any,
  examples: Mapping[str, np.ndarray],
  make_batch: MakeBatch,
  *,
  batch_size: int,
  rows: np.ndarray | None = None,
  part_map: np.ndarray | None = None,
) -> Encoding:
  """Encodes a data set. The encoding lacks `details`, which would fill the memory.

  Args:
    system: the model.
    variables: its parameters.
    examples: arrays with one entry an example.
    make_batch: makes batches of them, such as `data.batches.evaluation_batch`.
    batch_size: examples in a pass. The results of a model that keeps its noise on in evaluation
      depend on it.
    rows: indices of the examples, in any order; None for all.
    part_map: a map [2, 3] of the image that moves the poses of all parts, see
      `System.encode_moved`; None for none.

  Raises:
    ValueError: the batch size is below 1.
  """

  def run(batch: Batch) -> Encoding:
    if part_map is None:
      encoding = encode_batch(system, variables, batch)
    else:
      encoding = _encode_moved_batch(system, variables, batch, part_map)
    return dataclasses.replace(encoding, details={})

  return _over_dataset(run, examples, make_batch, batch_size, rows)


def measure_dataset(
  system: System,
  variables: Any,
  examples: Mapping[str, np.ndarray],
  make_batch: MakeBatch,
  *,
  batch_size: int,
  rows: np.ndarray | None = None,
) -> Measured:
  """Encodes labelled examples and measures the model on them; see `encode_dataset`."""
  run = functools.partial(_measure_batch, system, variables)
  return _over_dataset(run, examples, make_batch, batch_size, rows)


@functools.partial(jax.jit, static_argnames="system")
def encode_batch(system: System, variables: Any, batch: Batch) -> Encoding:
  """`System.encode`, compiled, with float32 for lower precisions."""
  return _in_float32(system.encode(variables, batch))


@functools.partial(jax.jit, static_argnames="system")
def _encode_moved_batch(
  system: System, variables: Any, batch: Batch, part_map: np.ndarray
) -> Encoding:
  assert system.encode_moved is not None
  return _in_float32(system.encode_moved(variables, batch, jax.numpy.asarray(part_map, "float32")))


@functools.partial(jax.jit, static_argnames="system")
def _measure_batch(system: System, variables: Any, batch: Batch) -> Measured:
  output = system.module.apply(variables, batch, train=False)
  encoding = _in_float32(dataclasses.replace(system.encoding(output), details={}))
  labels = labels_of(batch) if "label" in batch else None
  return Measured(encoding, system.metrics(output, batch), labels)


def _in_float32(encoding: Encoding) -> Encoding:
  def convert(array: Any) -> Any:
    return array.astype(np.float32) if jax.numpy.issubdtype(array.dtype, np.floating) else array

  return jax.tree.map(convert, encoding)


def _over_dataset(
  run: Callable[[Batch], Tree],
  examples: Mapping[str, np.ndarray],
  make_batch: MakeBatch,
  batch_size: int,
  rows: np.ndarray | None,
) -> Tree:
  if rows is None:
    rows = np.arange(len(next(iter(examples.values()))))
  with waiting(f"reading {len(rows):,} examples", len(rows)) as advance:
    return in_batches(
      lambda numbers: run(make_batch(examples, rows[numbers])),
      len(rows),
      min(batch_size, len(rows)),
      advance,
    )


def in_batches(
  run: Callable[[np.ndarray], Tree],
  count: int,
  batch_size: int,
  advance: Callable[[int], None] = lambda done: None,
) -> Tree:
  """Joins the results of `run` for `count` examples, as NumPy arrays with one entry an example.

  `run` takes numbers of examples, int [batch_size]; the last batch repeats its last example.
  Results stay on the device until the end. `advance` is told the number of examples done. Raises
  ValueError for a batch size below 1.
  """
  if batch_size < 1:
    raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
  results = []
  for start in range(0, count, batch_size):
    results.append(run(np.minimum(np.arange(start, start + batch_size), count - 1)))
    if len(results) > 1:  # one batch is computed while the next is prepared
      jax.block_until_ready(results[-2])
      advance(batch_size)
  return jax.tree.map(lambda *parts: np.concatenate(parts)[:count], *jax.device_get(results))


def mean_metrics(metrics: Mapping[str, Numbers]) -> dict[str, float]:
  """Mean over examples of each metric [n]; raises ValueError when an entry is not finite."""
  for name, values in metrics.items():
    check_finite(f"Metric '{name}'", np.asarray(values))
  return {name: float(np.mean(values, dtype=np.float64)) for name, values in metrics.items()}
