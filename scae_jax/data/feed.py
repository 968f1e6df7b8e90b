"""The feed of a data set to training: its arrays, and functions that make batches of them."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from scae_jax.data.batches import evaluation_batch, training_batch
from scae_jax.data.dataset import Dataset, Split, crop_middle
from scae_jax.data.options import DataOptions
from scae_jax.data.overlay import (
  fixed_overlays,
  overlay_arrays,
  overlay_evaluation_batch,
  overlay_training_batch,
)
from scae_jax.models.system import ImageSpec, Numbers, Spec

# (arrays of a split, on the host or the device, and indices) -> batch; jittable.
MakeBatch = Callable[[Mapping[str, Numbers], Numbers], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, eq=False)
class Feed:
  """What training needs of a data set; arrays are on the host, batches on the device.

  `training_batch(key, train, indices)` is random, `evaluation_batch(heldout, indices)` always the
  same; both are jittable.
  """

  spec: Spec  # the facts that a model is built from
  train: Mapping[str, np.ndarray]  # empty if examples are generated
  num_train: int  # examples an epoch
  held_out: str  # name of the split that training is evaluated on
  heldout: Mapping[str, np.ndarray]
  num_heldout: int
  training_batch: Callable[..., Any]
  evaluation_batch: MakeBatch


def evaluation_examples(
  split: Split, options: DataOptions
) -> tuple[Mapping[str, np.ndarray], MakeBatch]:
  """The examples for evaluation: arrays on the host, one entry an example, and a `MakeBatch`.

  Images are in the middle of the canvas or, with `options.overlay`, overlaid pairs.
  """
  if options.overlay:
    sizes = {"canvas": options.canvas, "max_shift": options.max_shift}
    pairs = fixed_overlays(split, options.max_shift)
    return pairs, functools.partial(overlay_evaluation_batch, **sizes)
  return split.arrays, functools.partial(evaluation_batch, canvas=options.canvas)


def spec_of(options: DataOptions, channels: int, num_classes: int) -> ImageSpec:
  """The facts that a model of images is built from."""
  return ImageSpec(
    canvas=options.canvas,
    channels=channels,
    num_classes=num_classes,
    num_labels=2 if options.overlay else 1,
    normalized=options.normalize,
    two_views=options.two_views,
  )


def image_feed(dataset: Dataset, options: DataOptions) -> tuple[Dataset, Feed]:
  """The data set with images cropped to their middle, and its feed.

  Images are augmented in training, whole ones cropped at random, and in the middle of the canvas in
  evaluation. Raises ValueError if overlaid images are all of one class.
  """
  spec = spec_of(options, dataset.channels, dataset.num_classes)
  train, dataset = dataset.splits["train"], crop_middle(dataset, options.crop)
  heldout = dataset.splits[dataset.held_out]
  examples, make_batch = evaluation_examples(heldout, options)
  return dataset, Feed(
    spec=spec,
    train=overlay_arrays(train) if options.overlay else train.arrays,
    num_train=len(train.labels),
    held_out=dataset.held_out,
    heldout=examples,
    num_heldout=len(heldout.labels),
    training_batch=functools.partial(
      overlay_training_batch if options.overlay else training_batch, options=options
    ),
    evaluation_batch=make_batch,
  )
