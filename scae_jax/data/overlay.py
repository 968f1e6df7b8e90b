"""MultiMNIST: two images of different classes, overlaid (Sabour et al. 2017, section 6).

Each image is shifted on its own, the two are added, and the sum is clipped to 1. For training,
pairs are drawn anew in the jitted step; for evaluation there is one fixed set. The paper overlays
digits of 28x28, shifted by up to 4 pixels, on a canvas of 36x36, and scores a thousand pairs for
each test digit; here it is one.
"""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from scae_jax.data.canvas import place_on_canvas, shift_on_canvas
from scae_jax.data.dataset import Dataset, Split
from scae_jax.data.feed import Feed
from scae_jax.models.system import ImageSpec
from scae_jax.typing import Array, Float, Int, PRNGKeyArray, typed

__all__ = ["fixed_overlays", "overlay_evaluation_batch", "overlay_feed", "overlay_training_batch"]

SEED = 0  # of the fixed pairs; not the run's, so that all runs are scored on the same images


def overlay_feed(dataset: Dataset, *, canvas: int, max_shift: int) -> Feed:
  """Overlaid pairs of images: of the training split at random, of the held-out one always the same.

  A batch has `image` [b, h, w, c], the sum; `label` [b] and `other_label` [b], the classes of the
  first and of the second image; and `sources` [b, 2, h, w, c], the two images alone.

  Args:
    dataset: with its held-out split.
    canvas: side of the square, pixels.
    max_shift: the largest shift of an image, pixels.

  Raises:
    ValueError: a split has images of one class only.
  """
  train, heldout = dataset.splits["train"], dataset.splits[dataset.held_out]
  sizes = {"canvas": canvas, "max_shift": max_shift}
  order, starts = _by_class(train.labels)
  return Feed(
    spec=ImageSpec(
      canvas=canvas, channels=dataset.channels, num_classes=dataset.num_classes, num_labels=2
    ),
    train={"image": train.images, "label": train.labels, "order": order, "starts": starts},
    num_train=len(train.labels),
    held_out=dataset.held_out,
    heldout=fixed_overlays(heldout, max_shift),
    num_heldout=len(heldout.labels),
    training_batch=functools.partial(overlay_training_batch, **sizes),
    evaluation_batch=functools.partial(overlay_evaluation_batch, **sizes),
  )


def fixed_overlays(split: Split, max_shift: int) -> dict[str, np.ndarray]:
  """What `overlay_evaluation_batch` composes: every image once as the first, with its partner.

  A fixed function of its arguments: NumPy promises never to change the stream of `RandomState`.

  Args:
    split: to take the images from.
    max_shift: the largest shift of an image, pixels.

  Returns:
    `image` uint8 [n, h, w, c] and `label` int32 [n], of the split; `partner` int32 [n], the index
    of the second image, uniform over those of other classes; `shifts` int32 [n, 2, 2], of the first
    and the second image, down and to the right, pixels.

  Raises:
    ValueError: all images are of one class.
  """
  generator = np.random.RandomState(SEED)
  order, starts = _by_class(split.labels)
  first, end = starts[split.labels], starts[split.labels + 1]
  draws = generator.randint(0, len(order) - (end - first))
  shifts = generator.randint(-max_shift, max_shift + 1, (len(order), 2, 2))
  return {
    "image": split.images,
    "label": split.labels,
    "partner": order[np.where(draws < first, draws, draws + end - first)],
    "shifts": shifts.astype(np.int32),
  }


@typed
def overlay_training_batch(
  key: PRNGKeyArray,
  train: Mapping[str, Array],
  indices: Int[Array, "b"],
  *,
  canvas: int,
  max_shift: int,
) -> dict[str, Array]:
  """Overlays each example with another, uniform over the training images of other classes.

  Args:
    key: of this batch.
    train: `image` uint8 [n, h, w, c] and `label` int32 [n]; `order` and `starts` as by `_by_class`.
    indices: of the first images, in [0, n).
    canvas: side of the square, pixels.
    max_shift: the largest shift of an image, pixels; see `scae_jax.data.canvas.shift_on_canvas`.

  Returns:
    a batch, see `overlay_feed`.
  """
  partner_key, first_key, second_key = jax.random.split(key, 3)
  label = train["label"][indices]
  # With classes in one order, those of other classes are all before and all after the own one.
  start, end = train["starts"][label], train["starts"][label + 1]
  draws = jax.random.randint(partner_key, label.shape, 0, len(train["order"]) - (end - start))
  partner = train["order"][jnp.where(draws < start, draws, draws + end - start)]
  first = shift_on_canvas(first_key, train["image"][indices], canvas, max_shift)
  second = shift_on_canvas(second_key, train["image"][partner], canvas, max_shift)
  return _overlay(first, second, label, train["label"][partner])


@typed
def overlay_evaluation_batch(
  split: Mapping[str, Array], indices: Int[Array, "b"], *, canvas: int, max_shift: int
) -> dict[str, Array]:
  """Overlays each example with its partner.

  Args:
    split: from `fixed_overlays`, on the device.
    indices: of the first images, in [0, n).
    canvas: side of the square, pixels.
    max_shift: that the shifts were drawn with, pixels.

  Returns:
    a batch, see `overlay_feed`.
  """
  partner, shifts = split["partner"][indices], split["shifts"][indices]
  first = place_on_canvas(split["image"][indices], shifts[:, 0], canvas, max_shift)
  second = place_on_canvas(split["image"][partner], shifts[:, 1], canvas, max_shift)
  return _overlay(first, second, split["label"][indices], split["label"][partner])


def _by_class(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """All indices, class after class, and where each class starts in them.

  Args:
    labels: int32 [n].

  Returns:
    int32 [n], and int32 [largest label + 2]: class l is from entry l to before entry l + 1.

  Raises:
    ValueError: all labels are the same.
  """
  if np.all(labels == labels[0]):
    raise ValueError(
      f"expected images of two classes or more to overlay, got {len(labels)} of class {labels[0]}; "
      "set config.data.overlay to False, or use a data set of several classes"
    )
  starts = np.concatenate([[0], np.cumsum(np.bincount(labels))])
  return np.argsort(labels, kind="stable").astype(np.int32), starts.astype(np.int32)


def _overlay(
  first: Float[Array, "b h w c"],
  second: Float[Array, "b h w c"],
  label: Int[Array, "b"],
  other_label: Int[Array, "b"],
) -> dict[str, Array]:
  return {
    "image": jnp.minimum(first + second, 1.0),
    "label": label,
    "other_label": other_label,
    "sources": jnp.stack([first, second], axis=1),
  }
