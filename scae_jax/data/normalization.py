"""Images of zero mean and unit variance, each by its own pixels (Hinton et al. 2018, section 5).

Images stay bytes wherever they are kept; beside them stand the mean and the standard deviation of
each, by which batches are normalised when they are made (`scae_jax.data.batches`). Both are of the
whole image: they do not depend on where it is cut, and do not undo its jitter.
"""

import dataclasses

import numpy as np

from scae_jax.data.dataset import AnySet

__all__ = ["normalized", "pixel_statistics"]


def normalized(dataset: AnySet) -> AnySet:
  """A data set whose batches are normalised, by its images as they are here.

  Args:
    dataset: any.
  """
  splits = {}
  for name, split in dataset.splits.items():
    mean, deviation = pixel_statistics(split.images)
    splits[name] = dataclasses.replace(split, mean=mean, deviation=deviation)
  return dataclasses.replace(dataset, splits=splits)


def pixel_statistics(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Mean and standard deviation of each image's pixels, over all channels, as 0 to 1.

  The two images of a stereo pair count as one. An image of one grey has a deviation of 1 instead of
  0, and so is all zeros when it is normalised.

  Args:
    images: uint8 [n, h, w, c].

  Returns:
    float32 [n] and float32 [n].
  """
  pixels = images.reshape(len(images), -1)
  count = pixels.shape[1]
  # Whole numbers up to the root: one grey has a variance of 0 exactly.
  total = pixels.sum(axis=1, dtype=np.int64)
  squares = np.einsum("np,np->n", pixels, pixels, dtype=np.int64)
  deviation = np.sqrt(count * squares - np.square(total)) / count / 255
  deviation[deviation == 0] = 1
  return (total / count / 255).astype(np.float32), deviation.astype(np.float32)
