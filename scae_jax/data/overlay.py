"""MultiMNIST: two images of different classes, overlaid (Sabour et al. 2017, section 6).

Each image is shifted independently, the two are added, and the sum is clipped to 1. For training,
pairs are drawn in the jitted step. For evaluation there is a fixed set, with one pair for each test
digit; the paper has a thousand.

A batch has `image` [b, h, w, c], the sum; `label` [b] and `other_label` [b], the classes of the
first and of the second image; and `sources` [b, 2, h, w, c], the two images alone.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scae_jax.data.augmentation import (
  centre_on_canvas,
  random_shifts,
  shift_on_canvas,
  to_unit_range,
)
from scae_jax.data.dataset import Split
from scae_jax.data.options import DataOptions
from scae_jax.models.system import Numbers
from scae_jax.typing import Array, Int, PRNGKeyArray, typed

SEED = 0  # of the fixed pairs; not the run's, so that all runs are scored on the same images


def overlay_arrays(split: Split) -> dict[str, np.ndarray]:
  """The arrays that `overlay_training_batch` takes; ValueError if all images are of one class.

  They are `image` and `label` of the split; `order` int32 [n], all indices sorted by class; and
  `starts` int32 [largest label + 2], the place in `order` where each class starts, and the end.
  """
  labels = split.labels
  if np.all(labels == labels[0]):
    raise ValueError(
      f"expected images of two classes or more to overlay, got {len(labels)} of class {labels[0]}; "
      "set config.data.overlay to False, or use a data set of several classes"
    )
  starts = np.concatenate([[0], np.cumsum(np.bincount(labels))]).astype(np.int32)
  order = np.argsort(labels, kind="stable").astype(np.int32)
  return {"image": split.images, "label": labels, "order": order, "starts": starts}


def fixed_overlays(split: Split, max_shift: int) -> dict[str, np.ndarray]:
  """The arrays that `overlay_evaluation_batch` takes: each image is the first of one pair.

  They are `image` and `label` of the split; `partner` int32 [n], the index of the second image,
  uniform over those of other classes; `shifts` int32 [n, 2, 2], of the first and the second image,
  down and to the right, pixels. They depend on the arguments alone. Raises ValueError if all images
  are of one class.
  """
  generator = np.random.RandomState(SEED)
  partner = _partners(overlay_arrays(split), split.labels, functools.partial(generator.randint, 0))
  shifts = generator.randint(-max_shift, max_shift + 1, (len(partner), 2, 2)).astype(np.int32)
  return {"image": split.images, "label": split.labels, "partner": partner, "shifts": shifts}


@typed
def overlay_training_batch(
  key: PRNGKeyArray,
  train: Mapping[str, Array],
  indices: Int[Array, " b"],
  options: DataOptions,
) -> dict[str, Array]:
  """Overlays each example with another, uniform over the training images of other classes.

  `train` has the arrays of `overlay_arrays`, on the device; `indices` are of the first images.
  """
  partner_key, *shift_keys = jax.random.split(key, 3)
  draw = functools.partial(jax.random.randint, partner_key, indices.shape, 0)
  partner = _partners(train, train["label"][indices], draw)
  shifts = [random_shifts(shift_key, len(indices), options.max_shift) for shift_key in shift_keys]
  return _overlay(train, (indices, partner), shifts, options.canvas, options.max_shift)


@typed
def overlay_evaluation_batch(
  split: Mapping[str, Numbers], indices: Int[Numbers, " b"], *, canvas: int, max_shift: int
) -> dict[str, Any]:
  """Overlays each example with its partner, from the arrays of `fixed_overlays`.

  They are on the host or on the device. `max_shift` is the one that the shifts were drawn with.
  """
  shifts = split["shifts"][indices]
  pairs = (indices, split["partner"][indices])
  return _overlay(split, pairs, [shifts[:, 0], shifts[:, 1]], canvas, max_shift)


def _partners(arrays: Mapping[str, Any], labels: Any, draw: Callable[[Any], Any]) -> Any:
  """The index of an example of another class for each label; `draw(n)` gives integers below n."""
  first, end = arrays["starts"][labels], arrays["starts"][labels + 1]
  draws = draw(len(arrays["order"]) - (end - first))
  # `order` is sorted by class: examples of other classes are before `first` and from `end` on.
  return arrays["order"][draws + (draws >= first) * (end - first)]


def _overlay(
  split: Mapping[str, Any], pairs: tuple[Any, Any], shifts: list[Any], canvas: int, max_shift: int
) -> dict[str, Any]:
  """A batch of overlaid pairs of examples, indices [b] each, shifted by `shifts` [b, 2] each."""
  images = [split["image"][rows] for rows in pairs]
  return {
    **_overlaid(images, shifts, canvas=canvas, max_shift=max_shift),
    "label": split["label"][pairs[0]],
    "other_label": split["label"][pairs[1]],
  }


@functools.partial(jax.jit, static_argnames=("canvas", "max_shift"))
def _overlaid(
  images: list[Array], shifts: list[Array], *, canvas: int, max_shift: int
) -> dict[str, Array]:
  first, second = (
    to_unit_range(shift_on_canvas(centre_on_canvas(image, canvas, max_shift), shift, canvas))
    for image, shift in zip(images, shifts, strict=True)
  )
  return {
    "image": jnp.minimum(first + second, 1.0),
    "sources": jnp.stack([first, second], axis=1),
  }
