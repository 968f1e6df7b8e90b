"""Image filters: the Sobel target of the colour configurations."""

import jax
import jax.numpy as jnp

from scae_jax.typing import Array, Float, typed

# Smaller ranges of edges, for images in [0, 1], are rounding errors.
MIN_EDGE = 1e-5


@typed
def sobel_edges(image: Float[Array, "h w c"]) -> Float[Array, "h w c 2"]:
  """Vertical and horizontal derivatives by the 3x3 Sobel kernels, borders reflected.

  On the last axis, the first entry is the derivative down the rows, the second across the columns.
  Neither is divided by the sum (8) of the kernel's absolute entries.
  """
  smooth, derive = jnp.array([1.0, 2.0, 1.0]), jnp.array([-1.0, 0.0, 1.0])
  kernels = jnp.stack([jnp.outer(derive, smooth), jnp.outer(smooth, derive)], axis=-1)
  padded = jnp.pad(image, ((1, 1), (1, 1), (0, 0)), mode="reflect")
  planes = jnp.moveaxis(padded, -1, 0)[..., None]
  # The lower default precision of an accelerator would change the target by more than one grey
  # level.
  edges = jax.lax.conv_general_dilated(
    planes,
    kernels[:, :, None, :],
    (1, 1),
    "VALID",
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
    precision="highest",
  )
  return jnp.moveaxis(edges, 0, 2)


@typed
def normalized_sobel(image: Float[Array, "h w c"]) -> Float[Array, "h w c"]:
  """|edges - median| scaled to [0, 1] within the image; edges are the mean of both derivatives.

  A constant image gives zeros. Kosiorek et al. 2019, section 3.2; the median is over all pixels and
  channels of the image.
  """
  edges = jnp.mean(sobel_edges(image), axis=-1)
  edges = jnp.abs(edges - jnp.median(edges))
  low, high = jnp.min(edges), jnp.max(edges)
  flat = high - low < MIN_EDGE
  return jnp.where(flat, 0.0, (edges - low) / jnp.where(flat, 1.0, high - low))
