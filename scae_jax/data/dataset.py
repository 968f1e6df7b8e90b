"""Data sets in memory: images and labels by split, checked on construction."""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from typing import ClassVar, Self, TypeVar

import numpy as np

from scae_jax.data.image_files import AS_IT_IS, Form, in_form, middle


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
  """The examples of one split, on the host."""

  images: np.ndarray  # uint8 [n, h, w, c], 0 to 255
  labels: np.ndarray  # int32 [n], in [0, num_classes)
  # Mean over all pixels of an image, scaled to [0, 1], float32 [n]; None unless `normalized`.
  mean: np.ndarray | None = None
  std: np.ndarray | None = None  # likewise the standard deviation, above 0

  @property
  def arrays(self) -> dict[str, np.ndarray]:
    """Arrays that batches are made of: `image`, `label` and, if normalised, `mean` and `std`."""
    arrays = {"image": self.images, "label": self.labels}
    if self.mean is not None and self.std is not None:
      arrays |= {"mean": self.mean, "std": self.std}
    return arrays

  @functools.cached_property
  def fingerprint(self) -> str:
    """A hash of all images and labels, 16 letters; the same on every machine."""
    digest = hashlib.blake2b(self.images.tobytes(), digest_size=8)
    digest.update(self.labels.tobytes())
    return digest.hexdigest()

  def take(self, rows: np.ndarray) -> Self:
    """Some of the examples, by their indices or by a mask."""
    mean, std = (
      None if statistic is None else statistic[rows] for statistic in (self.mean, self.std)
    )
    return type(self)(self.images[rows], self.labels[rows], mean, std)


@dataclasses.dataclass(frozen=True, eq=False)
class EvalDataset:
  """Examples that a model can be scored on; nothing is fitted to them.

  Raises ValueError if a split is missing, empty or not as `Split` requires.
  """

  name: str  # in tables and folders
  class_names: tuple[str, ...]  # by label
  splits: Mapping[str, Split]  # "test" at least; all have images of one shape
  notes: tuple[str, ...] = ()  # sentences for every report on it
  # Height and width, pixels, of the images before their middle was cut out; None if they are whole.
  cropped_from: tuple[int, int] | None = None
  # The folder or the dotted path that it was loaded from; "" if in memory or at the usual place.
  path: str = ""
  # Whether the name identifies the images, as for the embedded digits and TFDS's sets.
  has_known_name: bool = False

  required_splits: ClassVar[tuple[str, ...]] = ("test",)

  def __post_init__(self):
    where = f"data set {self.name!r}"
    if not set(self.required_splits) <= set(self.splits):
      expected = " and ".join(map(repr, self.required_splits))
      raise ValueError(f"{where}: expected the splits {expected}, got {sorted(self.splits)}")
    for name, split in self.splits.items():
      _check_split(f"{where}, split {name!r}", split, self.num_classes)
    shapes = {name: split.images.shape[1:] for name, split in self.splits.items()}
    if len(set(shapes.values())) > 1:
      raise ValueError(
        f"{where}: expected images of one shape [h, w, c] in all splits, got {shapes}; resize them "
        "to one size and load them as data.name='folder'"
      )

  @property
  def num_classes(self) -> int:
    return len(self.class_names)

  @property
  def held_out(self) -> str:
    """The split that training is evaluated on: "validation" if there is one, else "test"."""
    return "validation" if "validation" in self.splits else "test"

  @property
  def image_shape(self) -> tuple[int, int, int]:
    """Height, width (pixels) and channels."""
    height, width, channels = self.splits["test"].images.shape[1:]
    return height, width, channels

  @property
  def image_side(self) -> int:
    """The longer side, pixels: the smallest canvas that holds the images."""
    return max(self.image_shape[:2])

  @property
  def channels(self) -> int:
    return self.image_shape[2]


@dataclasses.dataclass(frozen=True)
class Preview:
  """The facts of an `EvalDataset` that are known before its images are decoded."""

  name: str
  class_names: tuple[str, ...]
  splits: tuple[str, ...]
  channels: int = 0  # 0 if unknown
  image_shape: tuple[int, int] = (0, 0)  # height and width, pixels; 0 if unknown

  @property
  def image_side(self) -> int:
    return max(self.image_shape)


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset(EvalDataset):
  """A data set for training and evaluation, with the splits "train" and "test".

  It also has "validation" if some of the training examples are held out.
  """

  required_splits: ClassVar[tuple[str, ...]] = ("train", "test")


def _check_split(where: str, split: Split, num_classes: int) -> None:
  """Raises ValueError unless the examples are as `Split` requires."""
  images, labels = split.images, split.labels
  is_sound = images.ndim == 4 and images.shape[3] in (1, 2, 3) and 0 not in images.shape
  if not is_sound or images.dtype != np.uint8:
    raise ValueError(
      f"{where}: expected images uint8 [n, h, w, c] from 0 to 255, at least one, of 1 channel "
      f"(grey), 2 (a stereo pair) or 3 (RGB), got {images.dtype} {list(images.shape)}; convert them"
    )
  if labels.dtype != np.int32 or labels.shape != (len(images),):
    raise ValueError(
      f"{where}: expected labels int32 [{len(images)}], one an image, got {labels.dtype} "
      f"{list(labels.shape)}; give each image the index of its class, by labels.astype(np.int32)"
    )
  outside = np.flatnonzero((labels < 0) | (labels >= num_classes))
  if outside.size:
    raise ValueError(
      f"{where}: expected labels in [0, {num_classes}), got {labels[outside[0]]} for example "
      f"{outside[0]} ({outside.size} such labels); unlabelled examples cannot be used, and the "
      "class names must cover all labels"
    )


def holdout(labels: np.ndarray, num_test: int, seed: int) -> np.ndarray:
  """Chooses a test set with the class proportions of the whole: sorted indices [num_test].

  The shares of the classes are rounded so that the total is exact (largest remainders first, then
  lower labels). Scikit-learn's stratified split would choose other examples, and saved runs would
  resume with other training data.
  """
  classes, counts = np.unique(labels, return_counts=True)
  # Shares as integers with a common denominator: no rounding can change the split.
  quotas, remainders = np.divmod(counts * num_test, len(labels))
  quotas[np.argsort(-remainders, kind="stable")[: num_test - quotas.sum()]] += 1
  generator = np.random.RandomState(seed)
  chosen = [
    generator.permutation(np.flatnonzero(labels == label))[:quota]
    for label, quota in zip(classes, quotas, strict=True)
  ]
  return np.sort(np.concatenate(chosen))


def hold_out_validation(dataset: Dataset, num_validation: int, seed: int = 0) -> Dataset:
  """Moves training examples to a split "validation", so that the test split can stay unseen.

  The seed is not the run's, so that all runs have the same split. Raises ValueError if no training
  example would be left.
  """
  train = dataset.splits["train"]
  if not 0 <= num_validation < len(train.labels):
    raise ValueError(
      f"config.data.num_validation must leave some of the {len(train.labels)} training examples of "
      f"{dataset.name!r} to train on; it is {num_validation}. Set it to 0, or lower."
    )
  if num_validation == 0:
    return dataset
  is_held_out = np.zeros(len(train.labels), bool)
  is_held_out[holdout(train.labels, num_validation, seed)] = True
  changed = {"train": train.take(~is_held_out), "validation": train.take(is_held_out)}
  return dataclasses.replace(dataset, splits={**dataset.splits, **changed})


AnySet = TypeVar("AnySet", bound=EvalDataset)


def in_common_form(dataset: AnySet, form: Form) -> AnySet:
  """Brings all images to a form; ValueError if a stereo pair is to become grey or RGB."""
  if form == AS_IT_IS:
    return dataset
  splits = {
    name: dataclasses.replace(split, images=in_form(split.images, form))
    for name, split in dataset.splits.items()
  }
  whole = form.resized_shape(dataset.image_shape[:2]) if form.middle else None
  return dataclasses.replace(dataset, splits=splits, cropped_from=whole)


def crop_middle(dataset: AnySet, side: int) -> AnySet:
  """The middle square of every image, its side in pixels; 0 returns the data set as it is.

  The larger part of an odd rest is cut off below and to the right; smaller images raise ValueError.
  """
  height, width, _ = dataset.image_shape
  if side > min(height, width):
    raise ValueError(
      f"config.data.crop must be at most the side of the images of {dataset.name!r}, "
      f"{height}x{width} pixels; it is {side}. Set it to {min(height, width)} or less, or to 0."
    )
  if side == 0:
    return dataset
  splits = {
    name: dataclasses.replace(
      split, images=np.ascontiguousarray(middle(split.images, (side, side)))
    )
    for name, split in dataset.splits.items()
  }
  return dataclasses.replace(
    dataset, splits=splits, cropped_from=dataset.cropped_from or (height, width)
  )


def normalized(dataset: AnySet) -> AnySet:
  """The data set with zero mean and unit variance in batches (Hinton et al. 2018, section 5).

  Images stay bytes; each has its mean and standard deviation, by which `scae_jax.data.batches`
  normalises it.
  """
  splits = {}
  for name, split in dataset.splits.items():
    mean, std = pixel_statistics(split.images)
    splits[name] = dataclasses.replace(split, mean=mean, std=std)
  return dataclasses.replace(dataset, splits=splits)


def pixel_statistics(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Mean and standard deviation, float32 [n], of the pixels of [n, h, w, c], bytes as 0 to 1.

  A constant image has a deviation of 1 instead of 0, so that it is all zeros when normalised.
  """
  pixels = images.reshape(len(images), -1)
  if images.dtype != np.uint8:
    mean, std = pixels.mean(axis=1), pixels.std(axis=1)
    std = np.where(np.ptp(pixels, axis=1) == 0, 0, std)  # rounding may make it positive
  else:
    # Integers up to the root: a constant image has a variance of exactly 0.
    count, total = pixels.shape[1], pixels.sum(axis=1, dtype=np.int64)
    squares = np.einsum("np,np->n", pixels, pixels, dtype=np.int64)
    mean, std = total / count / 255, np.sqrt(count * squares - np.square(total)) / count / 255
  return mean.astype(np.float32), np.where(std == 0, 1, std).astype(np.float32)
