"""Putting images on the black square that a model sees: in its middle, shifted, turned.

All are pure and jittable.
"""

import jax
import jax.numpy as jnp

from scae_jax.data.augmentation import turn
from scae_jax.typing import Array, Float, Int, PRNGKeyArray, UInt8, typed

__all__ = [
  "pad_to_canvas",
  "place_on_canvas",
  "shift_on_canvas",
  "to_unit_range",
  "turn_and_shift_on_canvas",
]


@typed
def pad_to_canvas(
  images: UInt8[Array, "b h w c"], canvas: int
) -> Float[Array, "b {canvas} {canvas} c"]:
  """Puts images in the middle of a black square; an odd rest goes below and to the right.

  Args:
    images: 0 to 255.
    canvas: side of the square, pixels.

  Returns:
    float32 in [0, 1].

  Raises:
    ValueError: the canvas is smaller than the images.
  """
  return to_unit_range(_pad(images, canvas, border=0))


@typed
def place_on_canvas(
  images: UInt8[Array, "b h w c"], shifts: Int[Array, "b 2"], canvas: int, max_shift: int
) -> Float[Array, "b {canvas} {canvas} c"]:
  """Puts images on a black square, each shifted from the middle as it is told.

  What a shift moves off the canvas is lost; zeros come in.

  Args:
    images: 0 to 255.
    shifts: down and to the right, pixels, from -max_shift to max_shift.
    canvas: side of the square, pixels.
    max_shift: the largest shift, pixels.

  Returns:
    float32 in [0, 1].

  Raises:
    ValueError: the canvas is smaller than the images.
  """
  return to_unit_range(_cut(_pad(images, canvas, border=max_shift), shifts, canvas))


@typed
def shift_on_canvas(
  key: PRNGKeyArray, images: UInt8[Array, "b h w c"], canvas: int, max_shift: int
) -> Float[Array, "b {canvas} {canvas} c"]:
  """`place_on_canvas` at random.

  The two shifts of an image are independent and uniform over the 2 * max_shift + 1 whole numbers in
  [-max_shift, max_shift].

  Args:
    key: of this batch.
    images: 0 to 255.
    canvas: side of the square, pixels.
    max_shift: the largest shift, pixels.

  Returns:
    float32 in [0, 1].

  Raises:
    ValueError: the canvas is smaller than the images, or max_shift is negative.
  """
  _check_shift(max_shift)
  padded = _pad(images, canvas, border=max_shift)
  return to_unit_range(_cut(padded, _draw_shifts(key, len(images), max_shift), canvas))


@typed
def turn_and_shift_on_canvas(
  key: PRNGKeyArray,
  images: Float[Array, "b h w c"],
  canvas: int,
  max_shift: int,
  max_rotation: float,
) -> Float[Array, "b {canvas} {canvas} c"]:
  """Turns each image about its own middle by an angle of its own, and shifts it.

  Bilinear, and black outside of the image. Ink that turns out of the image is not lost while the
  canvas has room for it. The sign of an angle is that of `scae_jax.data.affine.rotation`.

  Args:
    key: of this batch.
    images: any values; black is 0.
    canvas: side of the square, pixels.
    max_shift: the largest shift, pixels; shifts are as in `shift_on_canvas`.
    max_rotation: angles are uniform between this and its negative, degrees; 0 turns nothing.

  Raises:
    ValueError: the canvas is smaller than the images, or max_shift is negative.
  """
  _check_shift(max_shift)
  turn_key, shift_key = jax.random.split(key)
  padded = _pad(images, canvas, border=max_shift)
  if max_rotation:
    degrees = max_rotation * jax.random.uniform(turn_key, (len(images),), minval=-1.0)
    height, width = images.shape[1:3]
    top, left = (canvas - height) // 2 + max_shift, (canvas - width) // 2 + max_shift
    padded = turn(padded, degrees, (top + (height - 1) / 2, left + (width - 1) / 2))
  return _cut(padded, _draw_shifts(shift_key, len(images), max_shift), canvas)


@typed
def to_unit_range(images: UInt8[Array, "..."]) -> Float[Array, "..."]:
  """Bytes as float32 in [0, 1]."""
  return images.astype(jnp.float32) / 255.0


def _check_shift(max_shift: int) -> None:
  if max_shift < 0:
    raise ValueError(f"expected max_shift >= 0 pixels, got {max_shift}; set config.data.max_shift")


def _draw_shifts(key: Array, num_images: int, max_shift: int) -> Array:
  return jax.random.randint(key, (num_images, 2), -max_shift, max_shift + 1)


def _pad(images: Array, canvas: int, *, border: int) -> Array:
  """Centres images on the canvas and adds a border on each side of it."""
  height, width = images.shape[1:3]
  if canvas < max(height, width):
    raise ValueError(
      f"expected a canvas at least as large as the images, {height}x{width} pixels, got {canvas}; "
      f"set config.data.canvas to {max(height, width)} or more"
    )
  top, left = (canvas - height) // 2, (canvas - width) // 2
  rows = (top + border, canvas - height - top + border)
  columns = (left + border, canvas - width - left + border)
  return jnp.pad(images, ((0, 0), rows, columns, (0, 0)))


def _cut(padded: Array, shifts: Array, canvas: int) -> Array:
  """The canvas of each padded image, shifted by no more than its border."""
  # One border serves every shift: each example is then a window of the padded image.
  border = (padded.shape[1] - canvas) // 2

  def window(image: Array, shift: Array) -> Array:
    top, left = border - shift
    return jax.lax.dynamic_slice(image, (top, left, 0), (canvas, canvas, image.shape[2]))

  return jax.vmap(window)(padded, shifts)
