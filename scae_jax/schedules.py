"""Numbers that change while training: straight lines between points (step, value)."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from scae_jax.typing import Array


def line_through(
  points: Any, *, name: str, kind: str, positive: bool
) -> Callable[[Array | int], Array] | None:
  """The value at a step: the first point's before it, the last one's after it, a line between.

  Args:
    points: ((step, value), ...), steps rising.
    name: key of the config, for messages.
    kind: what a value is called there.
    positive: whether values must be above 0, or at least 0.

  Returns:
    A function of the step, counted from 0; None where there are no points.

  Raises:
    ValueError: not pairs of numbers, steps that do not rise, or a value that is too small.
  """
  try:
    found = np.asarray(points, np.float32)
  except (TypeError, ValueError):  # ragged, or no numbers
    found = np.full((1, 2), np.nan, np.float32)
  if found.size == 0:
    return None
  are_pairs = found.ndim == 2 and found.shape[1] == 2
  if not are_pairs or not np.all(found[:, 1] > 0 if positive else found[:, 1] >= 0):
    bound = f"{kind}s above 0" if positive else f"{kind}s of at least 0"
    raise ValueError(f"{name} must be points (step, {kind}) with {bound}; it is {points!r}.")
  if not (np.diff(found[:, 0]) > 0).all():
    raise ValueError(f"{name} must have rising steps; it is {points!r}.")
  return lambda step: jnp.interp(jnp.asarray(step, jnp.float32), found[:, 0], found[:, 1])
