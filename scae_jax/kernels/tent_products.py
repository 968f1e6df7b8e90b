"""The gradient of bilinear sampling with respect to the template, as a product of two matrices.

A pixel p that looks at (row_p, column_p) reads template pixel (i, j) with the weight
tent(row_p - i) tent(column_p - j), where tent(x) = [1 - |x|]+. So with gradients G_p of what was
read, the template's gradient is sum_p tent(row_p - i) G_p tent(column_p - j). A GPU multiplies
matrices faster than it adds many numbers to few addresses, and always in the same order.

Written for the inside of a Pallas kernel, where arrays are powers of two.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from scae_jax.typing import Array

# The least side of a matrix that Triton multiplies.
MIN_SIDE = 16


def tent_factors(
  rows: Array, columns: Array, gradients: list[Array], side: int
) -> tuple[Array, Array]:
  """Matrices whose product is the gradient of every channel of a template, one below the other.

  Of positions [p] in the template, in its pixels, and gradients [p] of what was read of each
  channel. The template's side is filled up to a power of two of at least 16.

  They are [n * side, p] and [p, side], n the number of channels filled up to a power of two. Row
  n * side + i of the first is the tent of template row i times the gradient of channel n.
  """
  line = jax.lax.iota(jnp.int32, pl.next_power_of_2(len(gradients)) * side)
  channel, row = line // side, (line % side).astype(rows.dtype)
  gradient = jnp.zeros((line.shape[0], rows.shape[0]), rows.dtype)
  for number, values in enumerate(gradients):
    gradient = jnp.where(channel[:, None] == number, values[None, :], gradient)
  column = jax.lax.iota(jnp.int32, side).astype(rows.dtype)
  left = _tent(rows[None, :] - row[:, None]) * gradient
  return left, _tent(columns[:, None] - column[None, :])


def _tent(distance: Array) -> Array:
  """[1 - |distance|]+."""
  return jnp.maximum(1.0 - jnp.abs(distance), 0.0)
