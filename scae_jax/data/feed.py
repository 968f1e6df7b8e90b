"""How a data set reaches a model: what of it stays on the device, and the batches made there."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from scae_jax.data.batches import evaluation_batch, training_batch
from scae_jax.data.dataset import Dataset, crop_middle
from scae_jax.models.system import ImageSpec, Spec

__all__ = ["Feed", "image_feed"]


@dataclasses.dataclass(frozen=True, eq=False)
class Feed:
  """What training needs of a data set.

  Attributes:
    spec: the facts that a model is built from.
    train: arrays of the training split, on the host; empty where examples are generated.
    num_train: training examples an epoch.
    held_out: name of the split that training is judged on.
    heldout: its arrays, on the host.
    num_heldout: its examples.
    training_batch: `(key, train, indices) -> batch` of arrays on the device; jittable, random.
    evaluation_batch: `(heldout, indices) -> batch`; jittable, always the same.
  """

  spec: Spec
  train: Mapping[str, np.ndarray]
  num_train: int
  held_out: str
  heldout: Mapping[str, np.ndarray]
  num_heldout: int
  training_batch: Callable[..., Any]
  evaluation_batch: Callable[..., Any]


def image_feed(
  dataset: Dataset,
  *,
  canvas: int,
  max_shift: int,
  max_rotation: float = 0.0,
  crop: int = 0,
  brightness: float = 0.0,
  contrast: float = 0.0,
) -> Feed:
  """Images on a black canvas: in training changed and moved at random, otherwise in its middle.

  Args:
    dataset: with its held-out split; batches are normalised if it is.
    canvas: side of the square, pixels.
    max_shift: the largest shift, pixels.
    max_rotation: the largest angle in either direction, degrees.
    crop: side of the square that is cut out of every image, pixels: anywhere in training, out of
      the middle otherwise. 0 keeps images whole.
    brightness: see `scae_jax.data.augmentation.jitter`.
    contrast: likewise.

  Raises:
    ValueError: images smaller than what is to be cut out of them.
  """
  train, heldout = dataset.splits["train"], crop_middle(dataset, crop).splits[dataset.held_out]
  return Feed(
    spec=ImageSpec(
      canvas=canvas,
      channels=dataset.channels,
      num_classes=dataset.num_classes,
      normalized=train.mean is not None,
    ),
    train=train.arrays,
    num_train=len(train.labels),
    held_out=dataset.held_out,
    heldout=heldout.arrays,
    num_heldout=len(heldout.labels),
    training_batch=functools.partial(
      training_batch,
      canvas=canvas,
      max_shift=max_shift,
      max_rotation=max_rotation,
      crop=crop,
      brightness=brightness,
      contrast=contrast,
    ),
    evaluation_batch=functools.partial(evaluation_batch, canvas=canvas),
  )
