"""Two images on top of each other: pairs, shifts and sums, against loops."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scae_jax.data.dataset import Dataset, Split
from scae_jax.data.overlay import fixed_overlays, overlay_evaluation_batch
from tests.toy_data import feed_batch, on_device, random_images
from tests.toy_system import feed_of

LABELS = np.array([2, 0, 0, 3, 2, 0, 2], np.int32)  # none of class 1
CANVAS, MAX_SHIFT = 5, 1


def some_split(labels=LABELS, seed=0) -> Split:
  """Images of 3x2, no two alike."""
  images = random_images(len(labels), 3, 2, 1, low=1, seed=seed)
  return Split(images, np.asarray(labels, np.int32))


def some_feed(**more):
  splits = {"train": some_split(), "test": some_split([1, 3, 0], 1), **more}
  return feed_of(Dataset("toy", tuple("abcd"), splits), CANVAS, max_shift=MAX_SHIFT, overlay=True)


def placed(image: np.ndarray, down: int, right: int) -> np.ndarray:
  canvas = np.zeros((CANVAS, CANVAS, 1))
  for row in range(3):
    for column in range(2):
      canvas[row + 1 + down, column + 1 + right] = image[row, column] / 255
  return canvas


@pytest.fixture(scope="module")
def drawn():
  """2,100 overlays for training, 300 with each image as the first."""
  indices = np.tile(np.arange(7), 300)
  return indices, feed_batch(some_feed(), indices)


@pytest.fixture(scope="module")
def places_of_sources(drawn):
  """Index of the image of each source, and its shift: arrays [2100, 2] and [2100, 2, 2]."""
  places = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)]
  known = [[placed(image, *place) for place in places] for image in some_split().images]
  known = np.reshape(known, (7 * 9, -1))
  sources = drawn[1]["sources"].reshape(-1, known.shape[1])
  matches = np.abs(sources[:, None] - known[None]).max(axis=2) < 1e-6
  assert (matches.sum(axis=1) == 1).all()
  image, place = np.divmod(matches.argmax(axis=1), 9)
  return image.reshape(-1, 2), np.array(places)[place].reshape(-1, 2, 2)


def test_pairs_are_of_the_image_asked_for_and_any_of_another_class(drawn, places_of_sources):
  indices, batch = drawn
  images, _ = places_of_sources
  first, partner = images.T
  np.testing.assert_array_equal(first, indices)
  np.testing.assert_array_equal(batch["label"], LABELS[indices])
  np.testing.assert_array_equal(batch["other_label"], LABELS[partner])
  assert (batch["label"] != batch["other_label"]).all()
  assert_uniform_over_other_classes(partner.reshape(300, 7))


def assert_uniform_over_other_classes(partners):
  """The second images [300, 7] of each image as the first."""
  for first in range(7):
    others = np.flatnonzero(LABELS[first] != LABELS)
    counts = np.bincount(partners[:, first], minlength=7)
    assert set(np.flatnonzero(counts)) == set(others)
    # At least 50 of 300 are expected of each, with a deviation below 7.
    assert np.abs(counts[others] - 300 / len(others)).max() < 30


def test_the_two_shifts_are_uniform_and_independent(places_of_sources):
  _, shifts = places_of_sources
  shifts = shifts.reshape(-1, 4) + 1
  counts = np.bincount(shifts @ [27, 9, 3, 1], minlength=81)
  # 26 of 2,100 are expected of each of 81 pairs of shifts, with a deviation of 5.
  assert counts.min() > 5
  assert counts.max() < 55


def test_images_are_added_and_clipped(drawn):
  batch = drawn[1]
  total = batch["sources"][:, 0] + batch["sources"][:, 1]
  assert (total > 1).any()
  # A compiler may take the sum and what was divided before it in one rounding.
  np.testing.assert_allclose(batch["image"], np.where(total > 1, 1, total), rtol=2e-7)
  assert batch["image"].max() == 1


def test_fixed_partners_are_uniform_and_always_the_same():
  arrays = fixed_overlays(some_split(np.tile(LABELS, 300)), 2)
  assert_uniform_over_other_classes(arrays["partner"].reshape(300, 7) % 7)
  counts = np.bincount(arrays["shifts"].reshape(-1) + 2)
  assert np.abs(counts - 1680).max() < 150  # four deviations
  with pytest.raises(ValueError, match=r"\b3\b.* 1\b"):
    fixed_overlays(some_split([1, 1, 1]), 0)
  small = fixed_overlays(some_split([0, 1, 1, 2]), 4)
  assert small["partner"].tolist() == [1, 3, 3, 0]
  assert small["shifts"][:2].tolist() == [[[-1, -1], [3, -1]], [[1, -2], [0, 3]]]


def test_an_evaluation_batch_has_the_given_partners_and_shifts():
  split = some_split()
  shifts = np.zeros((7, 2, 2), np.int32)
  shifts[4] = [[1, -1], [0, 1]]
  arrays = {"image": split.images, "label": split.labels, "shifts": shifts}
  arrays["partner"] = np.array([1, 0, 0, 0, 3, 0, 1], np.int32)
  evaluate = functools.partial(overlay_evaluation_batch, canvas=CANVAS, max_shift=MAX_SHIFT)
  batch = jax.jit(evaluate)(on_device(arrays), jnp.array([4, 0]))
  expected = np.array(
    [
      [placed(split.images[4], 1, -1), placed(split.images[3], 0, 1)],
      [placed(split.images[0], 0, 0), placed(split.images[1], 0, 0)],
    ]
  )
  np.testing.assert_allclose(batch["sources"], expected, atol=1e-6)
  np.testing.assert_allclose(batch["image"], np.minimum(expected.sum(axis=1), 1), atol=1e-6)
  assert batch["label"].tolist() == [2, 2]
  assert batch["other_label"].tolist() == [3, 0]


@pytest.mark.parametrize("held_out", ["test", "validation"])
def test_a_feed_has_the_held_out_split_and_batches_of_its_form(held_out):
  validation = {"validation": some_split([0, 1], 2)} if held_out == "validation" else {}
  feed = some_feed(**validation)
  split = some_split([0, 1], 2) if validation else some_split([1, 3, 0], 1)
  assert (feed.held_out, feed.num_heldout, feed.num_train) == (held_out, len(split.labels), 7)
  # So that a batch of a step has the same first images with and without overlays.
  np.testing.assert_array_equal(feed.train["image"], some_split().images)
  np.testing.assert_array_equal(feed.train["label"], LABELS)
  expected = fixed_overlays(split, MAX_SHIFT)
  jax.tree.map(np.testing.assert_array_equal, dict(feed.heldout), dict(expected))
  blank = feed.spec.blank_batch(3)
  assert blank["sources"].shape == (3, 2, CANVAS, CANVAS, 1)
  assert (blank["label"] != blank["other_label"]).all()
  key, indices = jax.random.key(0), jnp.zeros(3, int)
  for made in (
    jax.eval_shape(feed.training_batch, key, on_device(feed.train), indices),
    jax.eval_shape(feed.evaluation_batch, on_device(feed.heldout), indices),
  ):
    form, expected = (
      jax.tree.map(lambda x: (x.shape, x.dtype), examples) for examples in (made, blank)
    )
    assert form == expected
