"""How a data set reaches a model: what of it stays on the device, and the batches made there."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from scae_jax.data.batches import evaluation_batch, training_batch
from scae_jax.data.dataset import Dataset
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


def image_feed(dataset: Dataset, *, canvas: int, max_shift: int) -> Feed:
  """Images on a black canvas: in training moved by random shifts, otherwise in its middle.

  Args:
    dataset: with its held-out split.
    canvas: side of the square, pixels.
    max_shift: the largest shift, pixels.
  """
  train, heldout = dataset.splits["train"], dataset.splits[dataset.held_out]
  return Feed(
    spec=ImageSpec(canvas=canvas, channels=dataset.channels, num_classes=dataset.num_classes),
    train={"image": train.images, "label": train.labels},
    num_train=len(train.labels),
    held_out=dataset.held_out,
    heldout={"image": heldout.images, "label": heldout.labels},
    num_heldout=len(heldout.labels),
    training_batch=functools.partial(training_batch, canvas=canvas, max_shift=max_shift),
    evaluation_batch=functools.partial(evaluation_batch, canvas=canvas),
  )
