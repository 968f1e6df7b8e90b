"""A lower bound of the memory that a run needs, checked before anything runs."""

import dataclasses
import functools
import math
import os
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict
from rich.filesize import decimal

from scae_jax.data.feed import Feed
from scae_jax.models.system import ImageSpec
from scae_jax.training.config import Settings, read_settings
from scae_jax.training.errors import RunError
from scae_jax.training.optimizers import make_optimizer
from scae_jax.training.state import state_shapes
from scae_jax.training.systems import Traced, check_system, make_system, num_bytes

# Keys besides those of the model.
MAY_GROW = (
  "train.batch_size",
  "train.seeds",
  "train.steps_per_dispatch",
  "evaluation.batch_size",
  "data.canvas",
)
MUCH_LESS = 0.8  # of the memory that a run needs, when the key that is to blame is halved


def require_memory(settings: Settings, feed: Feed, traced: Traced, *, training: bool) -> None:
  """Raises `ValueError` unless a run fits the memory of its device, with the key to blame."""
  needed, memory = _needed(settings, feed, traced, training), device_memory()
  if needed <= memory:
    return
  sizes = _sizes(settings)
  # To blame is the largest number that the memory depends on; tracing all would take long.
  candidates = sorted(sizes, key=lambda key: np.max(sizes[key], initial=0), reverse=True)
  needed_with_half = functools.partial(_needed_with_half, settings, feed, training)
  enough = MUCH_LESS * needed
  grows = (key for key in candidates if needed_with_half(key, sizes[key]) <= enough)
  key = next(grows, candidates[0])
  raise ValueError(
    f"config.{key} is {sizes[key]!r}, and the run needs at least {decimal(needed)} of memory;"
    f" expected at most {decimal(memory)}, which the device has. Lower it."
  )


def device_memory() -> int:
  """Memory of a device in bytes: a GPU's or TPU's own; for a CPU, the machine's."""
  device = jax.local_devices()[0]
  statistics = device.memory_stats() if device.platform != "cpu" else None
  if statistics and "bytes_limit" in statistics:
    return statistics["bytes_limit"]
  return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _needed(settings: Settings, feed: Feed, traced: Traced, training: bool) -> int:
  """Bytes that a device needs at least.

  For all seeds the parameters and, in training, the gradient, the optimiser's state and the order
  of examples; and the largest array of a step, whose batch accelerators share, or of a pass of the
  report, of one seed on one device.
  """
  train = settings.train
  in_pass = min(settings.evaluation.batch_size, max(feed.num_train, feed.num_heldout))
  a_pass = traced.in_evaluation * in_pass // train.batch_size
  params = _tree_bytes(traced.params)
  if not training:
    return train.seeds * params + a_pass
  state = state_shapes(traced.params, make_optimizer(settings.optimizer))
  indices = 4 * train.dispatch_length * train.batch_size
  # Devices of a CPU have one memory.
  shares = 1 if jax.default_backend() == "cpu" else jax.device_count()
  a_step = train.seeds * traced.largest // shares
  return train.seeds * (params + _tree_bytes(state) + indices) + max(a_step, a_pass)


def _needed_with_half(
  settings: Settings, feed: Feed, training: bool, key: str, value: Any
) -> float:
  """`_needed` with half the number, or numbers, at a key; infinite if there is no such run."""
  spec = feed.spec
  half = jax.tree.map(lambda number: max(1, number // 2), value)
  config = ConfigDict(settings.config.to_dict())
  config.update_from_flattened_dict({key: half})
  if key == "data.canvas" and isinstance(spec, ImageSpec):
    spec = dataclasses.replace(spec, canvas=half)
  try:
    settings = read_settings(config)
    system, batch_size = make_system(settings, spec), settings.train.batch_size
    traced = check_system(system, spec, batch_size, training=training)
  except (ValueError, RunError):
    return math.inf
  return _needed(settings, feed, traced, training)


def _sizes(settings: Settings) -> dict[str, int | tuple[int, ...]]:
  """The whole numbers of a config that a run's memory may grow with, by key."""
  keys: dict[str, Any] = flatten_dict(settings.config.to_dict(), sep=".")
  return {
    key: value
    for key, value in keys.items()
    if (key.startswith("model.") or key in MAY_GROW)
    and isinstance(value, int | tuple)
    and all(type(number) is int for number in jax.tree.leaves(value))
  }


def _tree_bytes(tree: Any) -> int:
  return sum(num_bytes(leaf) for leaf in jax.tree.leaves(tree))
