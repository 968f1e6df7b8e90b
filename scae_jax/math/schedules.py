"""Schedules: piecewise linear functions of the step, given by points (step, value)."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from scae_jax.bounds import Points
from scae_jax.typing import Array


def line_through(points: Points) -> Callable[[Array | int], Array] | None:
  """The schedule as a function of the step; None without points.

  It is linear between points, and constant before the first and after the last point. Steps are
  counted from 0; those of the points increase.
  """
  if not points:
    return None
  steps, values = np.asarray(points, np.float32).T
  return lambda step: jnp.interp(jnp.asarray(step, jnp.float32), steps, values)
