"""The embedded digits, the checks of every data set, and the held-out choice."""

import numpy as np
import pytest
from sklearn import datasets

from scae_jax.data.dataset import Dataset, Split, hold_out_validation, holdout
from scae_jax.data.digits import upsample_twice
from scae_jax.data.sources import load_dataset


def test_digits_are_all_there_once():
  dataset = load_dataset("digits")
  train, test = dataset.splits["train"], dataset.splits["test"]
  assert (len(train.images), len(test.images)) == (1437, 360)
  assert dataset.image_shape == (16, 16, 1)
  assert (dataset.num_classes, dataset.channels, dataset.image_side) == (10, 1, 16)
  images, labels = datasets.load_digits(return_X_y=True)
  expected = upsample_twice(np.asarray(images).astype(np.int64).reshape(-1, 8, 8), maximum=16)

  def rows(images, labels):
    """Images with their labels, in an order that does not depend on the split."""
    table = np.column_stack([images.reshape(len(images), -1), labels])
    return table[np.lexsort(table.T)]

  together = [np.concatenate(parts) for parts in zip(*map(astuple, (train, test)), strict=True)]
  np.testing.assert_array_equal(rows(*together), rows(expected, labels))


def astuple(split: Split):
  return split.images, split.labels


def test_digits_split_is_the_first_1437_and_the_last_360():
  """A change of the split would make recorded results incomparable."""
  labels = np.asarray(datasets.load_digits(return_X_y=True)[1])
  splits = load_dataset("digits").splits
  np.testing.assert_array_equal(splits["train"].labels, labels[:1437])
  np.testing.assert_array_equal(splits["test"].labels, labels[1437:])


def test_upsampling_is_bilinear():
  """Against an explicit loop over half-pixel centres."""
  values = np.random.RandomState(0).randint(0, 17, (2, 3, 4))
  actual = upsample_twice(values, maximum=16)
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


def test_upsampling_keeps_black_and_white():
  values = np.asarray([[[0, 16], [0, 16]]])
  actual = upsample_twice(values, maximum=16)[0, 0, :, 0]
  assert actual.tolist() == [0, 64, 191, 255]  # 255 * (0, 1/4, 3/4, 1), rounded.


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


def make(images=None, labels=None, splits=("train", "test")) -> Dataset:
  images = np.zeros((4, 6, 5, 3), np.uint8) if images is None else images
  labels = np.asarray([0, 1, 1, 0], np.int32) if labels is None else labels
  return Dataset("toy", ("cat", "dog"), dict.fromkeys(splits, Split(images, labels)))


def test_a_sound_dataset_passes():
  dataset = make()
  assert (dataset.num_classes, dataset.image_shape, dataset.image_side) == (2, (6, 5, 3), 6)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ({"splits": ("train",)}, r"expected the splits 'train' and 'test', got \['train'\]"),
    ({"images": np.zeros((4, 6, 5), np.uint8)}, r"expected images of rank 4 .* \(4, 6, 5\)"),
    ({"images": np.zeros((4, 6, 5, 3), np.float32)}, "expected images of dtype uint8 .* float32"),
    ({"images": np.zeros((4, 6, 5, 4), np.uint8)}, r"expected 1 channel .* or 3 .*, got 4;"),
    ({"images": np.zeros((0, 6, 5, 3), np.uint8)}, "expected at least one image"),
    ({"labels": np.zeros(3, np.int32)}, r"one int32 label for each of the 4 images, got .*\(3,\)"),
    ({"labels": np.zeros(4, np.int64)}, "one int32 label .* got dtype int64"),
    ({"labels": np.asarray([0, 1, 2, 0], np.int32)}, r"in \[0, 2\), got 2 for example 2 \(1 such"),
    ({"labels": np.asarray([0, -1, -1, 0], np.int32)}, r"got -1 for example 1 \(2 such"),
  ],
)
def test_unsound_datasets_are_refused(arguments, message):
  with pytest.raises(ValueError, match=f"(?s)'toy'.*{message}"):
    make(**arguments)


def test_splits_of_different_shapes_are_refused():
  splits = {
    name: Split(np.zeros((1, side, 5, 1), np.uint8), np.zeros(1, np.int32))
    for name, side in (("train", 5), ("test", 6))
  }
  with pytest.raises(ValueError, match="expected images of one shape"):
    Dataset("toy", ("cat",), splits)
