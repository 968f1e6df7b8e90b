"""Numbers that change while training: straight lines between points (step, value)."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from scae_jax.bounds import Points
from scae_jax.typing import Array


def line_through(points: Points) -> Callable[[Array | int], Array] | None:
  """The value at a step: the first point's before it, the last one's after it, a line between.

  Steps are counted from 0 and rise. None where there are no points.
  """
  if not points:
    return None
  steps, values = np.asarray(points, np.float32).T
  return lambda step: jnp.interp(jnp.asarray(step, jnp.float32), steps, values)
