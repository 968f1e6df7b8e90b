"""The order of examples, and batches made from uint8 images.

If a split has statistics of its images (`dataset.normalized`), batches are normalised. All
functions are pure and jittable. The order is a function of (key, step) alone, so that a resumed run
gets the same batches as an uninterrupted one.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from scae_jax.data.augmentation import (
  centre_on_canvas,
  jitter,
  move,
  place_at_random,
  random_crop,
  random_motions,
  random_shifts,
  shift_on_canvas,
  to_unit_range,
)
from scae_jax.data.options import DataOptions
from scae_jax.models.system import Numbers
from scae_jax.typing import Array, Float, Int, Num, PRNGKeyArray, typed


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
  """Indices of the examples of consecutive steps; the first starts `offset` into its epoch.

  Epoch e is a permutation drawn from fold_in(key, e), with the run's key. Epochs follow each other
  without a gap: a batch may span two epochs, and may be larger than the data set.
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
  key: PRNGKeyArray, split: Mapping[str, Array], indices: Int[Array, " b"], options: DataOptions
) -> dict[str, Array]:
  """Gathers examples and augments their images at random, in the order of `DataOptions`.

  `split` has `Split.arrays`, on the device; indices are in [0, n). Returns `image` float32 [b,
  canvas, canvas, c], clipped to [0, 1] unless normalised, `label` int32 [b] and, if the split has
  them, the `mean` and `std` float32 [b] by which images are normalised. With `two_views` every
  other index is dropped and each remaining one is used twice.
  """
  if options.two_views:
    indices = jnp.repeat(indices[::2], 2)
  images, statistics = split["image"][indices], _statistics(split, indices)
  moves = options.max_rotation or options.max_stretch or options.max_shear
  changes = moves or options.crop or options.brightness or options.contrast
  motion_key = shift_key = key
  if changes or statistics:
    place_key, crop_key, jitter_key = jax.random.split(key, 3)
    motion_key, shift_key = jax.random.split(place_key)
    images = to_unit_range(images)
    if statistics:
      # The mean is subtracted last, so that the canvas is as black as the black of the image.
      images = images / _per_image(statistics["std"])
    if options.crop:
      images = random_crop(crop_key, images, options.crop)
    if options.brightness or options.contrast:
      images = jitter(jitter_key, images, brightness=options.brightness, contrast=options.contrast)
      if not statistics:
        images = jnp.clip(images, 0.0, 1.0)
  height, width = images.shape[1:3]
  images = centre_on_canvas(images, options.canvas, options.max_shift)
  if moves:
    # Images move on the canvas, so that ink that leaves the image is kept.
    motions = random_motions(motion_key, len(images), options)
    side = images.shape[1]
    middle = (side - height) // 2 + (height - 1) / 2, (side - width) // 2 + (width - 1) / 2
    images = move(images, motions, middle)
  if options.random_place:
    images = place_at_random(shift_key, images)
  else:
    shifts = random_shifts(shift_key, len(images), options.max_shift)
    images = shift_on_canvas(images, shifts, options.canvas)
  if statistics:
    images = images - _per_image(statistics["mean"] / statistics["std"])
  elif not changes:
    images = to_unit_range(images)
  return {"image": images, "label": split["label"][indices], **statistics}


@typed
def evaluation_batch(
  split: Mapping[str, Numbers], indices: Int[Numbers, " b"], *, canvas: int
) -> dict[str, Any]:
  """Gathers examples as `training_batch` does, and places them by `on_canvas`.

  The arrays of `split` are on the host or on the device; it may lack labels.
  """
  labels = {"label": split["label"][indices]} if "label" in split else {}
  return {**labels, **on_canvas(split["image"][indices], _statistics(split, indices), canvas)}


@functools.partial(jax.jit, static_argnames="canvas")
@typed
def on_canvas(
  images: Num[Array, "b h w c"], statistics: Mapping[str, Float[Array, " b"]], canvas: int
) -> dict[str, Array]:
  """Images as a model takes them, not augmented: `image` float32 [b, canvas, canvas, c].

  `images` are bytes, or float32 in [0, 1]; they are put in the middle of the canvas, on black.
  `statistics` are the `mean` and `std` by which they are normalised, or {}; the batch has them too.
  """
  pixels = centre_on_canvas(images, canvas)
  if pixels.dtype == jnp.uint8:
    pixels = to_unit_range(pixels)
  if statistics:
    pixels = (pixels - _per_image(statistics["mean"])) / _per_image(statistics["std"])
  return {"image": pixels, **statistics}


def _statistics(split: Mapping[str, Any], indices: Any) -> dict[str, Any]:
  """`mean` and `std` [b] of the images; {} if the split has none."""
  return {name: split[name][indices] for name in ("mean", "std") if name in split}


def _per_image(numbers: Array) -> Array:
  """Reshapes numbers [b], one an image, to broadcast against pixels [b, h, w, c]."""
  return numbers[:, None, None, None]
