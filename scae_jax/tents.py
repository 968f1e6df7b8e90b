"""Bilinear sampling of templates as matrix products, for units that multiply.

A pixel that looks at row r and column c of a template sees

  sum_ij [1 - |r - i|]+ [1 - |c - j|]+ template[i, j]

(Jaderberg et al. 2015, "Spatial Transformer Networks", equation 5): t^2 products where a gather
takes four, but no number is looked up or added to by index. Positions are `warping`'s: in template
pixels, zero outside.
"""

import jax.numpy as jnp

from scae_jax.typing import Array, Float, typed


@typed
def tent_weights(position: Float[Array, "b m h w"], side: int) -> Float[Array, "b m h w t"]:
  """[1 - |x - i|]+ of every position x and every pixel i of a side.

  Where the slope jumps, at whole positions, it is the one to the right, as of a gather.
  """
  pixels = jnp.arange(side, dtype=position.dtype).reshape(1, 1, 1, 1, side)
  distance = position[..., None] - pixels
  tent = jnp.where(distance < 0, 1 + distance, 1 - distance)
  return jnp.where((distance >= -1) & (distance < 1), tent, 0)


@typed
def sample_bank(
  templates: Float[Array, "m t t c"],
  rows: Float[Array, "b m h w"],
  columns: Float[Array, "b m h w"],
) -> Float[Array, "b m h w c"]:
  """Templates at fractional positions, as `warping.sample_bilinear` of each."""
  by_row, by_column = (tent_weights(x, templates.shape[1]) for x in (rows, columns))
  # In full precision: products in an accelerator's shorter floats would blur a template.
  across = jnp.einsum("bmhwj,mijc->bmhwic", by_column, templates, precision="highest")
  return jnp.einsum("bmhwic,bmhwi->bmhwc", across, by_row, precision="highest")
