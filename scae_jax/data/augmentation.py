"""Random changes of training images inside the jitted step: turns, crops, brightness, contrast.

All are pure and jittable, and change each image [b, h, w, c] by numbers of its own. Shifts are in
`scae_jax.data.canvas`.
"""

import jax
import jax.numpy as jnp

from scae_jax.typing import Array, Float, PRNGKeyArray, typed
from scae_jax.warping import sample_bilinear

__all__ = ["jitter", "random_crop", "turn"]


@typed
def turn(
  images: Float[Array, "b h h c"], degrees: Float[Array, "b"], middle: tuple[float, float]
) -> Float[Array, "b h h c"]:
  """Turns square images, bilinearly; what comes in from outside is black.

  Pixel q of the result has the image's value at R^-1 (q - middle) + middle, as on the host in
  `scae_jax.data.affine.resample`, which rounds to bytes.

  Args:
    images: any values; black is 0.
    degrees: by how much, counter-clockwise as one sees the picture.
    middle: row and column of the point that stays, pixels; 0 is the centre of the first pixel.
  """
  side = images.shape[1]
  row, column = middle
  y, x = jnp.meshgrid(jnp.arange(side) - row, jnp.arange(side) - column, indexing="ij")

  def one(image: Array, angle: Array) -> Array:
    # By elements, not by a matrix product: an accelerator's shorter floats would show.
    cos, sin = jnp.cos(jnp.radians(angle)), jnp.sin(jnp.radians(angle))
    return sample_bilinear(image, sin * x + cos * y + row, cos * x - sin * y + column)

  return jax.vmap(one)(images, degrees)


@typed
def random_crop(
  key: PRNGKeyArray, images: Float[Array, "b h w c"], side: int
) -> Float[Array, "b {side} {side} c"]:
  """Cuts a square out of every image, its place uniform over all whole pixels.

  Args:
    key: of this batch.
    images: any values.
    side: of the square, pixels.

  Raises:
    ValueError: the images are smaller than the square.
  """
  num_images, height, width, channels = images.shape
  if side > min(height, width):
    raise ValueError(
      f"expected images of at least {side}x{side} pixels to crop from, got {height}x{width}; set "
      f"config.data.crop to {min(height, width)} or less"
    )
  room = jnp.array([height - side, width - side])
  corners = jax.random.randint(key, (num_images, 2), 0, room[None] + 1)

  def window(image: Array, corner: Array) -> Array:
    return jax.lax.dynamic_slice(image, (corner[0], corner[1], 0), (side, side, channels))

  return jax.vmap(window)(images, corners)


@typed
def jitter(
  key: PRNGKeyArray, images: Float[Array, "b h w c"], *, brightness: float, contrast: float
) -> Float[Array, "b h w c"]:
  """Changes brightness and contrast: x becomes mean + factor (x - mean) + added.

  The mean is over the pixels and channels of an image. Nothing is clipped, so that it does not
  matter which of the two comes first, nor what number black is.

  Args:
    key: of this batch.
    images: any values.
    brightness: `added` is uniform in [-brightness, brightness).
    contrast: `factor` is uniform in [1 - contrast, 1 + contrast).
  """
  shares = jax.random.uniform(key, (2, images.shape[0], 1, 1, 1), minval=-1.0)
  added, factor = brightness * shares[0], 1.0 + contrast * shares[1]
  mean = jnp.mean(images, axis=(1, 2, 3), keepdims=True)
  return mean + factor * (images - mean) + added
