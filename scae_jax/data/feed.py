"""How a data set reaches a model: what of it stays on the device, and the batches made there."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from scae_jax.data.augmentation import Augmentation
from scae_jax.data.batches import evaluation_batch, training_batch
from scae_jax.data.dataset import Dataset, Split
from scae_jax.data.overlay import (
  fixed_overlays,
  overlay_arrays,
  overlay_evaluation_batch,
  overlay_training_batch,
)
from scae_jax.models.system import ImageSpec, Spec


@dataclasses.dataclass(frozen=True, eq=False)
class Feed:
  """What training needs of a data set; arrays are on the host, batches on the device.

  `training_batch(key, train, indices)` is random, `evaluation_batch(heldout, indices)` always the
  same; both are jittable.
  """

  spec: Spec  # the facts that a model is built from
  train: Mapping[str, np.ndarray]  # empty where examples are generated
  num_train: int  # examples an epoch
  held_out: str  # name of the split that training is judged on
  heldout: Mapping[str, np.ndarray]
  num_heldout: int
  training_batch: Callable[..., Any]
  evaluation_batch: Callable[..., Any]


def image_feed(train: Split, dataset: Dataset, options: Augmentation) -> Feed:
  """A feed of images: augmented in training, in the middle of the canvas in evaluation.

  With `options.crop`, `train` holds whole images, which are cropped at random, and `dataset` holds
  images cropped to their middle. Raises ValueError if images of one class are to be overlaid.
  """
  heldout = dataset.splits[dataset.held_out]
  if options.overlay:
    arrays = overlay_arrays(train), fixed_overlays(heldout, options.max_shift)
    batches = overlay_training_batch, overlay_evaluation_batch
    sizes = {"canvas": options.canvas, "max_shift": options.max_shift}
  else:
    arrays = train.arrays, heldout.arrays
    batches = training_batch, evaluation_batch
    sizes = {"canvas": options.canvas}
  return Feed(
    spec=ImageSpec(
      canvas=options.canvas,
      channels=dataset.channels,
      num_classes=dataset.num_classes,
      num_labels=2 if options.overlay else 1,
      normalized=train.mean is not None,
      two_views=options.two_views,
    ),
    train=arrays[0],
    num_train=len(train.labels),
    held_out=dataset.held_out,
    heldout=arrays[1],
    num_heldout=len(heldout.labels),
    training_batch=functools.partial(batches[0], options=options),
    evaluation_batch=functools.partial(batches[1], **sizes),
  )
