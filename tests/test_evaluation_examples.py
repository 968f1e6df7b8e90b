"""Which examples are used, and which data sets may score a model."""

import numpy as np
import pytest

from scae_jax.data.dataset import Dataset, Split
from scae_jax.evaluation.examples import check_transfer, choose, load_split, one_of_each_class


def dataset(name="toy", side=4, channels=1, names=("a", "b"), n=6):
  images = np.arange(n * side * side * channels, dtype=np.uint8).reshape(n, side, side, channels)
  split = Split(images, (np.arange(n) % len(names)).astype(np.int32))
  return Dataset(name, names, {"train": split, "test": split})


def test_all_examples_stand_in_order_and_few_are_a_shuffle_that_is_the_same_each_time():
  np.testing.assert_array_equal(choose(5, 0), np.arange(5))
  np.testing.assert_array_equal(choose(5, 9), np.arange(5))
  chosen = choose(1000, 100)
  assert len(set(chosen)) == 100
  assert chosen.max() > 500  # not the first hundred, which may be all of one class
  np.testing.assert_array_equal(chosen, choose(1000, 100))
  np.testing.assert_array_equal(chosen[:50], choose(1000, 50))
  with pytest.raises(ValueError, match="-1"):
    choose(5, -1)
  labels = np.array([1, 1, 0, 1, 2, 0])
  np.testing.assert_array_equal(one_of_each_class(labels, 10), [2, 0, 4, 5, 1, 3])
  np.testing.assert_array_equal(one_of_each_class(labels, 4), [2, 0, 4, 5])


def test_images_and_labels_of_chosen_examples_stay_together():
  toy = dataset(n=6)
  split = load_split(toy, "train", 4)
  for image, label in zip(split["image"], split["label"], strict=True):
    index = image[0, 0, 0] // 16
    assert label == index % 2
  with pytest.raises(ValueError, match=r"'validation'.*train, test"):
    load_split(toy, "validation", 0)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"channels": 3}, r"\b1 image channel.* 3\b"),
    ({"names": ("a", "b", "c")}, r"\[a, b\].*\[a, b, c\]"),
    ({"names": ("b", "a")}, r"\[a, b\].*\[b, a\]"),
    ({"side": 9}, r"canvas.*\b8\b.*9 x 9"),
  ],
)
def test_a_data_set_that_does_not_fit_is_refused(changes, message):
  check_transfer(dataset(), dataset("other", side=8), 8)
  with pytest.raises(ValueError, match=message):
    check_transfer(dataset(), dataset("other", **changes), 8)
