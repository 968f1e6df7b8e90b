"""The order of examples, and batches made on the device from uint8 images.

Where a split has statistics of its images (`scae_jax.data.normalization`), batches are normalised.
Everything here is pure and jittable. The order is a function of (key, step) alone, so that a
resumed run sees the batches that an uninterrupted one would have seen.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from scae_jax.data.augmentation import jitter, random_crop
from scae_jax.data.canvas import (
  pad_to_canvas,
  shift_on_canvas,
  to_unit_range,
  turn_and_shift_on_canvas,
)
from scae_jax.typing import Array, Int, PRNGKeyArray, typed

__all__ = ["epoch_position", "evaluation_batch", "example_order", "training_batch"]


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
def training_batch(
  key: PRNGKeyArray,
  split: Mapping[str, Array],
  indices: Int[Array, "b"],
  *,
  canvas: int,
  max_shift: int,
  max_rotation: float = 0.0,
  crop: int = 0,
  brightness: float = 0.0,
  contrast: float = 0.0,
) -> dict[str, Array]:
  """Gathers examples and changes their images at random.

  Images are normalised, if the split says by what. A square is cut out, its brightness and contrast
  change (`scae_jax.data.augmentation`), it turns about its middle and is shifted
  (`scae_jax.data.canvas`). What is zero is not done. Pixels that are not normalised stay in [0, 1]
  when they are jittered: they are clipped.

  Args:
    key: of this batch.
    split: `image` uint8 [n, h, w, c], `label` int32 [n] and, to normalise them, `mean` and
      `deviation` float32 [n], see `dataset.Split`; on the device.
    indices: of the examples, in [0, n).
    canvas: side of the square that images are put on, pixels.
    max_shift: the largest shift, pixels.
    max_rotation: the largest angle in either direction, degrees; uniform.
    crop: side of the square that is cut out, pixels.
    brightness: the most that is added or subtracted, of an image that is normalised in its
      deviations.
    contrast: the most that the factor of the contrast differs from 1.

  Returns:
    `image` float32 [b, canvas, canvas, c], in [0, 1] unless normalised, `label` int32 [b] and, if
    it was given, the `mean` and `deviation` float32 [b] by which images are normalised.

  Raises:
    ValueError: images smaller than the square to be cut out, a canvas smaller than what is put on
      it, or max_shift is negative.
  """
  images, statistics = split["image"][indices], _statistics(split, indices)
  if max_rotation or crop or brightness or contrast or statistics:
    place_key, crop_key, jitter_key = jax.random.split(key, 3)
    images = to_unit_range(images)
    if statistics:
      # The mean is subtracted last, so that what is black around an image is the image's own black.
      images = images / _of_images(statistics["deviation"])
    if crop:
      images = random_crop(crop_key, images, crop)
    if brightness or contrast:
      images = jitter(jitter_key, images, brightness=brightness, contrast=contrast)
      if not statistics:
        images = jnp.clip(images, 0.0, 1.0)
    images = turn_and_shift_on_canvas(place_key, images, canvas, max_shift, max_rotation)
    if statistics:
      images = images - _of_images(statistics["mean"] / statistics["deviation"])
  else:
    images = shift_on_canvas(key, images, canvas, max_shift)
  return {"image": images, "label": split["label"][indices], **statistics}


@typed
def evaluation_batch(
  split: Mapping[str, Array], indices: Int[Array, "b"], *, canvas: int
) -> dict[str, Array]:
  """Gathers examples as `training_batch` does, in the middle of the canvas and unshifted."""
  images, statistics = pad_to_canvas(split["image"][indices], canvas), _statistics(split, indices)
  if statistics:
    images = (images - _of_images(statistics["mean"])) / _of_images(statistics["deviation"])
  return {"image": images, "label": split["label"][indices], **statistics}


def _statistics(split: Mapping[str, Array], indices: Array) -> dict[str, Array]:
  """`mean` and `deviation` [b] of the images, where there are any."""
  return {name: split[name][indices] for name in ("mean", "deviation") if name in split}


def _of_images(numbers: Array) -> Array:
  """Numbers [b], one an image, against pixels [b, h, w, c]."""
  return numbers[:, None, None, None]
