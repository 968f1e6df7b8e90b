"""The over operator: templates painted over one another.

Porter and Duff's operator on premultiplied colours, which are multiplied by their alpha. A warp,
which fades to zero outside a template, then fades colour and alpha together.
"""

import jax.numpy as jnp

from scae_jax.typing import Array, Float, typed


@typed
def over(colours: Float[Array, "m h w c"], alphas: Float[Array, "m h w"]) -> Float[Array, "h w c"]:
  """Paints m layers onto black, the first at the bottom: C <- colour + (1 - alpha) C for each.

  Colours are multiplied by their alphas, which are in [0, 1].
  """
  return jnp.sum(visibility(alphas)[..., None] * colours, axis=0)


@typed
def visibility(alphas: Float[Array, "m h w"]) -> Float[Array, "m h w"]:
  """The share of each layer that shows through the layers above: the product of their 1 - alpha."""
  through = jnp.cumprod(1.0 - alphas[::-1], axis=0)
  above = jnp.concatenate([jnp.ones_like(through[:1]), through[:-1]])
  return above[::-1]
