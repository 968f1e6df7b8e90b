"""The embedded digits, the checks of every data set, and the held-out choice."""

import dataclasses

import numpy as np
import pytest
from sklearn import datasets

from scae_jax.data.dataset import Dataset, EvalDataset, Split, hold_out_validation, holdout
from scae_jax.data.digits import upsample_twice
from scae_jax.data.sources import load_dataset


def test_digits_are_the_first_1437_and_the_last_360():
  """A change of the split would make recorded results incomparable."""
  dataset = load_dataset("digits")
  assert dataset.image_shape == (16, 16, 1)
  assert (dataset.num_classes, dataset.channels, dataset.image_side) == (10, 1, 16)
  assert dataset.notes == ()
  images, labels = datasets.load_digits(return_X_y=True)
  images = upsample_twice(np.asarray(images).reshape(-1, 8, 8))
  for name, rows in (("train", slice(1437)), ("test", slice(1437, 1797))):
    np.testing.assert_array_equal(dataset.splits[name].images, images[rows])
    np.testing.assert_array_equal(dataset.splits[name].labels, np.asarray(labels)[rows])


def test_upsampling_is_bilinear():
  """Against an explicit loop over half-pixel centres."""
  values = np.random.RandomState(0).randint(0, 17, (2, 3, 4))
  actual = upsample_twice(values)
  assert actual.shape == (2, 6, 8, 1)
  for index in np.ndindex(actual.shape[:3]):
    example, row, column = index
    y, x = (row + 0.5) / 2 - 0.5, (column + 0.5) / 2 - 0.5
    total = 0.0
    for i in (np.floor(y), np.floor(y) + 1):
      for j in (np.floor(x), np.floor(x) + 1):
        weight = (1 - abs(y - i)) * (1 - abs(x - j))
        total += weight * values[example, int(np.clip(i, 0, 2)), int(np.clip(j, 0, 3))]
    # Rounded to a whole number: half of one is all that may be between.
    assert abs(actual[(*index, 0)] - total * 255 / 16) <= 0.5
  # 255 * (0, 1/4, 3/4, 1), and a half that is rounded up.
  assert upsample_twice(np.array([[[0, 16]] * 2]))[0, 0, :, 0].tolist() == [0, 64, 191, 255]
  # Weights are quarters and values multiples of 1/16: no processor rounds them.
  assert upsample_twice(np.full((1, 2, 2), 8)).max() == 128


def test_holdout_shares_by_largest_remainder():
  labels = np.asarray([0] * 5 + [1] * 3 + [2] * 2)
  # Shares of 4 in 10 are 2, 1.2 and 0.8: class 2 has the largest remainder.
  chosen = holdout(labels, 4, seed=1)
  assert np.bincount(labels[chosen]).tolist() == [2, 1, 1]
  assert len(set(chosen.tolist())) == 4
  assert holdout(labels, 10, seed=1).tolist() == list(range(10))
  assert holdout(labels, 0, seed=1).tolist() == []


def test_validation_comes_out_of_training_alone():
  images = np.arange(20, dtype=np.uint8).reshape(20, 1, 1, 1)
  labels = np.asarray([0] * 10 + [1] * 10, np.int32)
  whole = Dataset("toy", ("cat", "dog"), dict.fromkeys(("train", "test"), Split(images, labels)))
  assert hold_out_validation(whole, 0) is whole
  assert whole.held_out == "test"
  divided = hold_out_validation(whole, 6)
  assert divided.held_out == "validation"
  train, validation = divided.splits["train"], divided.splits["validation"]
  assert divided.splits["test"] is whole.splits["test"]
  assert np.bincount(validation.labels).tolist() == [3, 3]
  together = np.concatenate([train.images, validation.images])
  assert sorted(together.ravel().tolist()) == list(range(20))
  for split in (train, validation):
    np.testing.assert_array_equal(split.labels, split.images.ravel() // 10)
  with pytest.raises(ValueError, match="must leave some of the 20 training examples of 'toy'"):
    hold_out_validation(whole, 20)


SOUND = Split(np.zeros((4, 6, 5, 3), np.uint8), np.asarray([0, 1, 1, 0], np.int32))


def make(kind, splits=("train", "test"), **changes):
  split = dataclasses.replace(SOUND, **changes)
  return kind("toy", ("cat", "dog"), dict.fromkeys(splits, split))


@pytest.mark.parametrize("kind", [Dataset, EvalDataset])
@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"images": np.zeros((4, 6, 5), np.uint8)}, r"images uint8 \[n, h, .*, got uint8 \[4, 6, 5\]"),
    ({"images": np.zeros((4, 6, 5, 3), np.float32)}, r"from 0 to 255, .* float32 \[4, 6, 5, 3\]"),
    ({"images": np.zeros((4, 6, 5, 4), np.uint8)}, r"1 channel .* 3 \(RGB\), got .*, 4\];"),
    ({"images": np.zeros((0, 6, 5, 3), np.uint8)}, r"at least one, .*\[0, 6, 5, 3\]"),
    ({"labels": np.zeros(3, np.int32)}, r"labels int32 \[4\], one an image, got .*\[3\]"),
    ({"labels": np.zeros(4, np.int64)}, r"labels int32 .* got int64 \[4\]"),
    ({"labels": np.asarray([0, 1, 2, 0], np.int32)}, r"in \[0, 2\), got 2 for example 2 \(1 such"),
    ({"labels": np.asarray([0, -1, -1, 0], np.int32)}, r"got -1 for example 1 \(2 such"),
  ],
)
def test_unsound_datasets_are_refused(kind, changes, message):
  with pytest.raises(ValueError, match=f"'toy', split 'train': expected .*{message}"):
    make(kind, **changes)


def test_splits_that_are_needed_and_of_one_shape():
  dataset = make(Dataset)
  assert (dataset.num_classes, dataset.image_shape, dataset.image_side) == (2, (6, 5, 3), 6)
  assert make(EvalDataset, ("test",)).held_out == "test"
  with pytest.raises(ValueError, match=r"expected the splits 'train' and 'test', got \['test'\]"):
    make(Dataset, ("test",))
  with pytest.raises(ValueError, match=r"expected the splits 'test', got \['train'\]"):
    make(EvalDataset, ("train",))
  larger = Split(np.zeros((4, 7, 5, 3), np.uint8), SOUND.labels)
  with pytest.raises(ValueError, match="expected images of one shape"):
    Dataset("toy", ("cat", "dog"), {"train": SOUND, "test": larger})
