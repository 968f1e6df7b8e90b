"""Augments images and puts them on a black canvas: crops, jitter, motions, shifts, places.

All functions are pure and jittable, and change each image of [b, h, w, c] independently. Sides and
shifts are in pixels.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from scae_jax.data.options import DataOptions
from scae_jax.math import geometry
from scae_jax.math.warping import sample_bilinear
from scae_jax.typing import Array, Float, Int, Num, PRNGKeyArray, UInt8, typed


@typed
def windows(
  images: Num[Array, "b h w c"], corners: Int[Array, "b 2"], side: int
) -> Num[Array, "b {side} {side} c"]:
  """Cuts a square out of every image; `corners` are row and column of its upper left corner."""

  def window(image: Array, corner: Array) -> Array:
    return jax.lax.dynamic_slice(image, (*corner, 0), (side, side, image.shape[2]))

  return jax.vmap(window)(images, corners)


@typed
def random_crop(
  key: PRNGKeyArray, images: Float[Array, "b h w c"], side: int
) -> Float[Array, "b {side} {side} c"]:
  """Cuts a square out of every image, at a position uniform over whole pixels."""
  room = jnp.array([[images.shape[1] - side, images.shape[2] - side]])
  return windows(images, jax.random.randint(key, (len(images), 2), 0, room + 1), side)


@typed
def jitter(
  key: PRNGKeyArray, images: Float[Array, "b h w c"], *, brightness: float, contrast: float
) -> Float[Array, "b h w c"]:
  """Changes brightness and contrast: x becomes mean + factor (x - mean) + added.

  The mean is over the pixels and channels of an image. Nothing is clipped, so the order of the two
  and the value of black do not matter. `added` is uniform in [-brightness, brightness), `factor` in
  [1 - contrast, 1 + contrast).
  """
  shares = jax.random.uniform(key, (2, images.shape[0], 1, 1, 1), minval=-1.0)
  added, factor = brightness * shares[0], 1.0 + contrast * shares[1]
  mean = jnp.mean(images, axis=(1, 2, 3), keepdims=True)
  return mean + factor * (images - mean) + added


@typed
def to_unit_range(images: UInt8[Array, "..."]) -> Float[Array, "..."]:
  """Bytes as float32 in [0, 1]."""
  return images.astype(jnp.float32) / 255.0


@typed
def centre_on_canvas(
  images: Num[Array, "b h w c"], canvas: int, border: int = 0
) -> Num[Array, "b side side c"]:
  """Puts images in the middle of a square of zeros; an odd rest goes below and to the right.

  `border` is added on each side of the canvas, as room for shifts.
  """
  height, width = images.shape[1:3]
  top, left = (canvas - height) // 2, (canvas - width) // 2
  rows = (top + border, canvas - height - top + border)
  columns = (left + border, canvas - width - left + border)
  return jnp.pad(images, ((0, 0), rows, columns, (0, 0)))


@typed
def shift_on_canvas(
  centred: Num[Array, "b h h c"], shifts: Int[Array, "b 2"], canvas: int
) -> Num[Array, "b {canvas} {canvas} c"]:
  """Cuts the canvas of each image, shifted down and to the right by at most the border."""
  # Shifting is cutting another window out of the image with its border.
  return windows(centred, (centred.shape[1] - canvas) // 2 - shifts, canvas)


def random_shifts(key: Array, num_images: int, max_shift: int) -> Array:
  """Independent shifts [n, 2], uniform over the whole numbers in [-max_shift, max_shift]."""
  return jax.random.randint(key, (num_images, 2), -max_shift, max_shift + 1)


@typed
def place_at_random(key: PRNGKeyArray, images: Num[Array, "b h h c"]) -> Num[Array, "b h h c"]:
  """Moves what is not black in each image to a place uniform over those where all of it fits."""
  inked = jnp.any(images != 0, axis=3)
  rows_and_columns = jnp.stack([jnp.any(inked, axis=2), jnp.any(inked, axis=1)], axis=1)
  # Numbers of black rows and columns before and after the ink, [b, 2]; none in a black image.
  before = jnp.argmax(rows_and_columns, axis=2)
  after = jnp.argmax(rows_and_columns[:, :, ::-1], axis=2)
  shifts = jax.random.randint(key, before.shape, -before, after + 1)
  return jax.vmap(lambda image, shift: jnp.roll(image, shift, axis=(0, 1)))(images, shifts)


class Motion(NamedTuple):
  """Linear maps of images about their middle: a rotation, then a stretch, then a shear."""

  degrees: Float[Array, " b"]  # counter-clockwise
  scales: Float[Array, "b 2"]  # of x and y, positive
  shears: Float[Array, " b"]  # pixels to the right for each pixel down


def random_motions(key: PRNGKeyArray, num_images: int, options: DataOptions) -> Motion:
  """Draws motions, each number independent and uniform within the bounds of `DataOptions`."""
  # Angles are drawn from the key itself, so that runs with rotations alone stay the same.
  rotation_key, stretch_key, shear_key = key, *jax.random.split(jax.random.fold_in(key, 1))
  degrees = options.max_rotation * _symmetric_uniform(rotation_key, (num_images,))
  scales = 1.0 + options.max_stretch * _symmetric_uniform(stretch_key, (num_images, 2))
  return Motion(degrees, scales, options.max_shear * _symmetric_uniform(shear_key, (num_images,)))


@typed
def move(
  images: Float[Array, "b h h c"], motion: Motion, middle: tuple[float, float]
) -> Float[Array, "b h h c"]:
  """Moves square images bilinearly; pixels from outside an image are 0.

  Pixel q of the result has the image's value at M^-1 (q - middle) + middle, as on the host in
  `scae_jax.data.affine.resample`, which rounds to bytes. `middle`, row and column, is the fixed
  point; 0 is the centre of the first pixel.
  """
  side = images.shape[1]
  row, column = middle
  y, x = jnp.meshgrid(jnp.arange(side) - row, jnp.arange(side) - column, indexing="ij")

  def move_image(image: Array, motion: Motion) -> Array:
    # Elementwise, because matrix products have lower precision on accelerators.
    u, v = (x - motion.shears * y) / motion.scales[0], y / motion.scales[1]
    cos, sin = geometry.rotation(motion.degrees)[0, :2]
    return sample_bilinear(image, sin * u + cos * v + row, cos * u - sin * v + column)

  return jax.vmap(move_image)(images, motion)


def _symmetric_uniform(key: Array, shape: tuple[int, ...]) -> Array:
  return jax.random.uniform(key, shape, minval=-1.0)
