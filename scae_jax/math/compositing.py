"""The over operator: templates painted onto one another, each hiding what is below it.

Porter and Duff's operator on colours that are multiplied by their alpha already, so that a warp,
which fades into zeros outside a template, fades colour and alpha together.
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
  """How much of every layer shows through those above it: the product of their 1 - alpha."""
  through = jnp.cumprod(1.0 - alphas[::-1], axis=0)
  above = jnp.concatenate([jnp.ones_like(through[:1]), through[:-1]])
  return above[::-1]
