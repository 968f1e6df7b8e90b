"""Images of zero mean and unit variance: statistics, order of operations, training and report."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scae_jax.config import read_settings
from scae_jax.data import transfer
from scae_jax.data.dataset import (
  Dataset,
  crop_middle,
  hold_out_validation,
  normalized,
  pixel_statistics,
)
from scae_jax.data.feed import evaluation_examples
from scae_jax.data.transfer import load_scored, rotated
from scae_jax.evaluation.examples import load_split
from scae_jax.models.system import ImageSpec, labels_of, pixels_of
from scae_jax.training.build import build, check_system
from tests import toy_classifier
from tests.toy_data import assert_uniform, dataset_of, feed_batch, heldout_batch, on_device
from tests.toy_system import data_options, feed_of

HEIGHT, WIDTH, CHANNELS = 6, 5, 2
ROUNDING = 1e-5  # float32, of pixels divided by deviations that are not below 0.02


def some_images(num: int = 8) -> np.ndarray:
  """Dark and light images, of low and high contrast."""
  rng = np.random.RandomState(0)
  middle, reach = rng.randint(60, 190, num), np.tile([10, 60], num)[:num]
  noise = rng.randint(-1000, 1001, (num, HEIGHT, WIDTH, CHANNELS)) / 1000
  values = middle[:, None, None, None] + reach[:, None, None, None] * noise
  return np.round(values).astype(np.uint8)


def some_data(num: int = 8) -> Dataset:
  return dataset_of(some_images(num), some_images(num)[::-1], labels=np.arange(num) % 3)


def by_numpy(images: np.ndarray) -> np.ndarray:
  """Each image normalised by itself, in float64."""
  pixels = images / 255
  return np.stack([(image - image.mean()) / image.std() for image in pixels])


def black(images: np.ndarray) -> np.ndarray:
  """The normalised value of a black pixel of each image, [n, 1, 1, 1]."""
  return np.array([-np.mean(image) / np.std(image) for image in images])[:, None, None, None]


def test_statistics_are_those_of_all_pixels_of_an_image():
  images = np.concatenate([some_images(), np.full((1, HEIGHT, WIDTH, CHANNELS), 7, np.uint8)])
  mean, deviation = pixel_statistics(images)
  assert mean.dtype == deviation.dtype == np.float32
  for i, image in enumerate(images / 255):
    assert mean[i] == pytest.approx(image.mean(), rel=1e-6)
    assert deviation[i] == pytest.approx(image.std() if i < 8 else 1, rel=1e-6)
  assert deviation[8] == 1  # of one grey: sums of whole numbers have no rounding to divide by
  assert pixel_statistics(images / np.float32(255))[1][8] == 1

  # What is largest is the sum of squares times the pixels: 4e16 of 512x512x3 white ones.
  images = np.full((2, 512, 512, 3), 255, np.uint8)
  images[1, :256] = 0
  mean, deviation = pixel_statistics(images)
  # Sums are whole numbers; their quotients, and the roots of those, are rounded once.
  np.testing.assert_array_equal(mean, [1, 0.5])
  np.testing.assert_array_equal(deviation, [1, 0.5])


def test_evaluation_sees_the_middle_of_images_that_were_normalised_whole():
  data, side, canvas = normalized(some_data()), 4, 6
  feed = feed_of(data, canvas, max_shift=1, crop=side, normalize=True)
  assert feed.spec == ImageSpec(canvas=canvas, channels=CHANNELS, num_classes=3, normalized=True)
  rows = np.array([5, 0, 2])
  batch = heldout_batch(feed, rows)
  images = data.splits["test"].images[rows]
  expected = np.tile(black(images), (1, canvas, canvas, CHANNELS))  # the margin is as black as ink
  expected[:, 1:5, 1:5] = by_numpy(images)[:, 1:5, 0:4]
  np.testing.assert_allclose(batch["image"], expected, atol=ROUNDING)
  np.testing.assert_array_equal(batch["label"], data.splits["test"].labels[rows])
  # What is to be looked at is what was there before.
  seen = np.zeros((3, canvas, canvas, CHANNELS))
  seen[:, 1:5, 1:5] = images[:, 1:5, 0:4] / 255
  np.testing.assert_allclose(pixels_of(batch), seen, atol=ROUNDING)
  np.testing.assert_array_equal(labels_of(batch)[:, 0], batch["label"])


def test_training_normalises_whole_images_then_crops_then_jitters():
  """Each result is an affine function of one window of the normalised image."""
  num, side, canvas, brightness, contrast = 300, 4, 6, 0.5, 0.25
  images = some_images(num)
  options = {"crop": side, "brightness": brightness, "contrast": contrast}
  feed = feed_of(normalized(some_data(num)), canvas, **options)
  made = feed_batch(feed, np.arange(num))["image"]
  whole, margin = by_numpy(images), black(images)
  places, factors, added = set(), [], []
  for i, image in enumerate(made):
    np.testing.assert_allclose(image[0], np.full_like(image[0], margin[i]), atol=ROUNDING)
    square = image[1:5, 1:5].reshape(-1)
    fits = []
    for top, left in np.ndindex(HEIGHT - side + 1, WIDTH - side + 1):
      window = whole[i, top : top + side, left : left + side].reshape(-1)
      line = np.polyfit(window, square, 1)
      error = np.abs(np.polyval(line, window) - square).max()
      fits.append((error, (top, left), line, window.mean()))
    error, place, line, mean = min(fits, key=lambda fit: fit[0])
    assert error < 10 * ROUNDING  # nothing is clipped
    places.add(place)
    factors.append(line[0])
    added.append(np.polyval(line, mean) - mean)
  assert len(places) == 6
  # Of images of little contrast and of much alike: in deviations, not in grey levels.
  for kind in (slice(0, None, 2), slice(1, None, 2)):
    assert_uniform(factors[kind], 1 - contrast, 1 + contrast)
    assert_uniform(added[kind], -brightness, brightness)
  assert abs(np.corrcoef(factors, added)[0, 1]) < 0.2  # four deviations


def test_pixels_around_a_moved_image_have_its_normalized_black():
  feed = feed_of(normalized(some_data()), 9, max_shift=1)
  made, images = feed_batch(feed, np.arange(8))["image"], some_images()
  for image, normal, outside in zip(made, by_numpy(images), black(images), strict=True):
    wide = np.pad(normal - outside, ((1, 2), (2, 2), (0, 0)))
    shifted = [np.roll(wide, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    assert min(np.abs(moved + outside - image).max() for moved in shifted) < ROUNDING

  # When they turn: by the same draws the same pictures, but for their scale.
  batch, pixels = (
    feed_batch(feed_of(data, 9, max_rotation=180.0), np.arange(8))
    for data in (normalized(some_data()), some_data())
  )
  np.testing.assert_allclose(pixels_of(batch), pixels["image"], atol=ROUNDING)
  assert pixels_of(pixels) is pixels["image"]
  normal = (batch["image"].min(axis=(1, 2, 3)), black(some_images())[:, 0, 0, 0])
  np.testing.assert_allclose(*normal, rtol=1e-4)  # the margin of the canvas


def test_statistics_stay_with_their_images():
  data = normalized(some_data())
  train = data.splits["train"]
  held = hold_out_validation(data, 3)
  for split in held.splits.values():
    for image, mean, std in zip(split.images, split.mean, split.std, strict=True):
      assert mean == pytest.approx(image.mean() / 255, rel=1e-6)
      assert std == pytest.approx(image.std() / 255, rel=1e-6)
  for moved in (crop_middle(data, 3), rotated(data, 60, 9)):
    np.testing.assert_array_equal(moved.splits["train"].mean, train.mean)
    np.testing.assert_array_equal(moved.splits["train"].std, train.std)
  chosen = load_split(data, "train", 4)
  assert set(chosen) == {"image", "label", "mean", "std"}
  for image, mean in zip(chosen["image"], chosen["mean"], strict=True):
    assert mean == pytest.approx(image.mean() / 255, rel=1e-6)
  assert set(load_split(some_data(), "train", 4)) == {"image", "label"}


@pytest.mark.parametrize("name", ["toy", "rotated_toy:-20..20", "affnist"])
def test_scored_sets_are_normalised_by_their_whole_unmoved_images(name, monkeypatch):
  monkeypatch.setattr(transfer, "load_dataset", lambda *_: some_data())
  monkeypatch.setattr(transfer.affnist, "load_affnist", lambda folder: some_data())
  canvas = 40 if name == "affnist" else 7
  options = data_options(canvas, affnist_dir="folder", crop=4, normalize=True)
  scored = load_scored(name, options).splits["test"]
  mean, std = pixel_statistics(some_data().splits["test"].images)
  np.testing.assert_array_equal(scored.mean, mean)
  np.testing.assert_array_equal(scored.std, std)
  plain = load_scored(name, dataclasses.replace(options, normalize=False)).splits["test"]
  assert plain.mean is None
  np.testing.assert_array_equal(scored.images, plain.images)


def test_normalize_key_changes_training_and_report_alike():
  changes = {"data__crop": 12, "data__num_validation": 100}
  config = toy_classifier.classifier_config(data__normalize=True, **changes)
  settings = read_settings(config)
  system, dataset, feed = build(settings)
  assert feed.spec.normalized
  assert feed.held_out == "validation"
  examples, make_batch = evaluation_examples(dataset.splits["validation"], settings.data)
  rows = jnp.array([5, 0, 7])
  actual = jax.jit(make_batch)(on_device(examples), rows)
  expected = heldout_batch(feed, rows)
  jax.tree.map(np.testing.assert_array_equal, jax.device_get(actual), expected)
  # Digits have a black margin, so the middle is lighter than the whole.
  assert (expected["image"][:, 3:15, 3:15].mean(axis=(1, 2, 3)) > 0.05).all()
  blank = feed.spec.blank_batch(3)
  assert jax.tree.map(np.shape, expected) == jax.tree.map(np.shape, blank)
  check_system(system, feed.spec, 4)
  _, plain, feed = build(read_settings(toy_classifier.classifier_config(**changes)))
  assert not feed.spec.normalized
  assert plain.splits["test"].mean is None
