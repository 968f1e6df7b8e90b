"""Runs a model over a whole split and gathers what evaluation reads of it."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from scae_jax.data.batches import evaluation_batch
from scae_jax.evaluation.examples import full_batches
from scae_jax.models.system import System
from scae_jax.typing import Array


@struct.dataclass
class Collected:
  """What evaluation reads of some examples.

  Attributes:
    features: {name: [n, d]} of `System.features`.
    readings: {name: [n, d]} of `System.readings`; {} where the system has none.
    measures: {name: [n]} of `System.measures`.
  """

  features: dict[str, Any]
  readings: dict[str, Any]
  measures: dict[str, Any]


Forward = Callable[[Any, Mapping[str, Array]], Collected]


def make_forward(system: System, *, canvas: int) -> Forward:
  """Compiles the pass over one batch: `(variables, examples) -> Collected`.

  Examples are arrays as a split has them, see `collect`.

  It compiles once for each batch size and image size. Noise is off (`train=False`), unless the
  model has a switch that keeps it on: then features depend on the batch size.

  Args:
    system: the model.
    canvas: side of the square that images are padded to, pixels.
  """

  def forward(variables: Any, examples: Mapping[str, Array]) -> Collected:
    count = len(examples["label"])
    batch = evaluation_batch(examples, jnp.arange(count), canvas=canvas)
    output = system.module.apply(variables, batch, train=False)
    found = Collected(
      features=dict(system.features(output)),
      readings=system.all_readings(output),
      measures=dict(system.measures(output, batch)),
    )
    check_shapes("features", found.features, count, 2)
    check_shapes("readings", found.readings, count, 2)
    check_shapes("measures", found.measures, count, 1)
    return found

  return jax.jit(forward)


def collect(
  system: System,
  variables: Any,
  split: Mapping[str, Any],
  *,
  canvas: int,
  batch_size: int,
  forward: Forward | None = None,
) -> Collected:
  """Features, readings and measures of every example of a split, in its order.

  Results wait on the device until the end, so that the device never waits for the host.

  Args:
    system: the model.
    variables: what its module applies.
    split: `image` uint8 [n, h, w, c], `label` int32 [n] and, of normalised images, `mean` and
      `deviation` float32 [n]; arrays of NumPy or JAX.
    canvas: side of the square that images are padded to, pixels.
    batch_size: examples a pass.
    forward: from `make_forward(system, canvas=canvas)`, to share one compilation among splits.

  Returns:
    Arrays of NumPy; features and readings are float32.

  Raises:
    ValueError: an empty split, a batch size below one, or a system whose features or readings are
      not [b, d] or measures not [b].
  """
  arrays = {name: np.asarray(array) for name, array in split.items()}
  count, num_labels = len(arrays["image"]), len(arrays["label"])
  if count == 0 or count != num_labels:
    raise ValueError(
      f"A split needs at least one example and a label for each, got {count} images and "
      f"{num_labels} labels."
    )
  forward = forward or make_forward(system, canvas=canvas)
  outputs = []
  for rows in full_batches(count, batch_size):
    examples = {name: jnp.asarray(array[rows]) for name, array in arrays.items()}
    outputs.append(forward(variables, examples))

  def join(*batches: Array) -> np.ndarray:
    return np.concatenate([np.asarray(batch) for batch in batches])[:count]

  def in_single(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: value.astype(np.float32) for name, value in values.items()}

  found = jax.tree.map(join, *outputs)
  return Collected(in_single(found.features), in_single(found.readings), found.measures)


def mean_measures(measures: Mapping[str, np.ndarray]) -> dict[str, float]:
  """Mean over examples of each measure [n]; raises ValueError when an entry is not finite."""
  for name, values in measures.items():
    broken = ~np.isfinite(values)
    if broken.any():
      raise ValueError(
        f"Measure '{name}' must be finite, but {int(broken.sum())} of {len(values)} examples have "
        "NaN or infinity. The parameters have most likely diverged: evaluate an earlier step."
      )
  return {name: float(np.mean(values, dtype=np.float64)) for name, values in measures.items()}


def check_shapes(kind: str, values: Mapping[str, Array], num_examples: int, rank: int) -> None:
  """Raises unless every array has `num_examples` rows and `rank` axes."""
  for name, value in values.items():
    if value.ndim != rank or value.shape[0] != num_examples:
      expected = f"[{num_examples}, d]" if rank == 2 else f"[{num_examples}]"
      raise ValueError(
        f"`System.{kind}` must give '{name}' as {expected}, one row an example, got {value.shape}."
      )
