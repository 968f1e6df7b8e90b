"""The order of examples, and batches made on the device from uint8 images.

Everything here is pure and jittable. The order is a function of (key, step) alone, so that a
resumed run sees the batches that an uninterrupted one would have seen.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from scae_jax.typing import Array, Float, Int, PRNGKeyArray, UInt8, typed

__all__ = [
  "epoch_position",
  "evaluation_batch",
  "example_order",
  "pad_to_canvas",
  "shift_on_canvas",
  "training_batch",
]


def epoch_position(step: int, batch_size: int, num_examples: int) -> tuple[int, int]:
  """Where a step begins in the endless sequence of epochs.

  Args:
    step: counted from 0. A Python int, as are the others: a long run's count of examples does not
      fit into int32.
    batch_size: examples a step.
    num_examples: examples an epoch.

  Returns:
    The epoch, from 0, and the number of its examples that earlier steps have used.

  Raises:
    ValueError: a negative step, or no examples in a batch or an epoch.
  """
  if step < 0 or batch_size < 1 or num_examples < 1:
    raise ValueError(
      "expected step >= 0, batch_size >= 1 and num_examples >= 1, got "
      f"{step}, {batch_size} and {num_examples}; correct config.data or config.train"
    )
  return divmod(step * batch_size, num_examples)


@typed
def example_order(
  key: PRNGKeyArray,
  first_epoch: Int[Array, ""] | int,
  offset: Int[Array, ""] | int,
  *,
  num_steps: int,
  batch_size: int,
  num_examples: int,
) -> Int[Array, "{num_steps} {batch_size}"]:
  """The examples of some consecutive steps.

  Epoch e is its own permutation, drawn from fold_in(key, e). Epochs follow each other without a
  gap: a batch may end one and begin the next, and may be larger than the data set. A call computes
  ceil(num_steps * batch_size / num_examples) + 1 permutations, however many steps it covers.

  Args:
    key: of the run, the same at every step.
    first_epoch: the epoch in which the first step begins, from `epoch_position`.
    offset: examples of that epoch that earlier steps have used, in [0, num_examples).
    num_steps: steps to cover, static.
    batch_size: examples a step, static.
    num_examples: examples an epoch, static.

  Returns:
    Indices in [0, num_examples).
  """
  num_indices = num_steps * batch_size
  num_epochs = -(-num_indices // num_examples) + 1

  def permutation(epoch):
    return jax.random.permutation(jax.random.fold_in(key, epoch), num_examples)

  epochs = jax.vmap(permutation)(first_epoch + jnp.arange(num_epochs))
  indices = jax.lax.dynamic_slice_in_dim(epochs.reshape(-1), offset, num_indices)
  return indices.reshape(num_steps, batch_size)


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
  return _to_unit_range(_pad(images, canvas, border=0))


@typed
def shift_on_canvas(
  key: PRNGKeyArray, images: UInt8[Array, "b h w c"], canvas: int, max_shift: int
) -> Float[Array, "b {canvas} {canvas} c"]:
  """Puts images on a black square, each shifted from the middle by a random whole number of pixels.

  The two shifts of an image are independent and uniform over the 2 * max_shift + 1 whole numbers in
  [-max_shift, max_shift], down and to the right positive. What a shift moves off the canvas is
  lost; zeros come in.

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
  if max_shift < 0:
    raise ValueError(f"expected max_shift >= 0 pixels, got {max_shift}; set config.data.max_shift")
  # One border serves every shift: each example is then a window of the padded image.
  padded = _pad(images, canvas, border=max_shift)
  shifts = jax.random.randint(key, (images.shape[0], 2), -max_shift, max_shift + 1)

  def window(image, shift):
    top, left = max_shift - shift
    return jax.lax.dynamic_slice(image, (top, left, 0), (canvas, canvas, image.shape[2]))

  return _to_unit_range(jax.vmap(window)(padded, shifts))


@typed
def training_batch(
  key: PRNGKeyArray,
  split: Mapping[str, Array],
  indices: Int[Array, "b"],
  *,
  canvas: int,
  max_shift: int,
) -> dict[str, Array]:
  """Gathers examples and shifts them at random; see `shift_on_canvas`.

  Args:
    key: of this batch.
    split: `image` uint8 [n, h, w, c] and `label` int32 [n], on the device.
    indices: of the examples, in [0, n).
    canvas: side of the square, pixels.
    max_shift: the largest shift, pixels.

  Returns:
    `image` float32 in [0, 1] [b, canvas, canvas, c] and `label` int32 [b].
  """
  images = shift_on_canvas(key, split["image"][indices], canvas, max_shift)
  return {"image": images, "label": split["label"][indices]}


@typed
def evaluation_batch(
  split: Mapping[str, Array], indices: Int[Array, "b"], *, canvas: int
) -> dict[str, Array]:
  """Gathers examples as `training_batch` does, in the middle of the canvas and unshifted."""
  return {
    "image": pad_to_canvas(split["image"][indices], canvas),
    "label": split["label"][indices],
  }


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


def _to_unit_range(images: Array) -> Array:
  return images.astype(jnp.float32) / 255.0
