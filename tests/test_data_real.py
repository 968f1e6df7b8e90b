"""The real prepared TFDS sets, where they are at hand."""

import itertools
import os
import pathlib
import sys

import numpy as np
import pytest

from scae_jax.data import pictures
from scae_jax.data.sources import load_dataset


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "shape", "num_train", "class_names"),
  [
    ("mnist", (28, 28, 1), 60_000, "0 1 2 3 4 5 6 7 8 9"),
    ("cifar10", (32, 32, 3), 50_000, "airplane automobile bird cat deer dog frog horse ship truck"),
  ],
)
def test_real_sets(tfds_dir, tmp_path, monkeypatch, name, shape, num_train, class_names):
  if not (pathlib.Path(tfds_dir) / name).is_dir():
    pytest.skip(f"{name} is not prepared in {tfds_dir}")
  if name == "cifar10":
    # One image of a hundred, the others black: to compress all of them takes ten seconds.
    decode, numbers = pictures.decode_picture, itertools.count()
    blank = np.zeros(shape, np.uint8)
    monkeypatch.setattr(
      pictures, "decode_picture", lambda *given: blank if next(numbers) % 100 else decode(*given)
    )
  dataset = load_dataset(name, tfds_dir, str(tmp_path / name))
  assert dataset.image_shape == shape
  assert " ".join(dataset.class_names) == class_names
  train, test = dataset.splits["train"], dataset.splits["test"]
  assert (len(train.images), len(test.images)) == (num_train, 10_000)
  # MNIST's classes differ by a quarter; those of CIFAR-10 are equal.
  spread = 0.14 if name == "mnist" else 0
  for split in (train, test):
    assert split.images[::100].any(axis=(1, 2, 3)).all()
    counts = np.bincount(split.labels, minlength=10)
    np.testing.assert_allclose(counts, len(split.labels) / 10, rtol=spread)
  monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
  monkeypatch.setattr(pictures, "decode_picture", None)
  again = load_dataset(name, os.devnull, str(tmp_path / name))
  for split_name, split in dataset.splits.items():
    np.testing.assert_array_equal(again.splits[split_name].images, split.images)
    np.testing.assert_array_equal(again.splits[split_name].labels, split.labels)
  if name == "mnist":
    (path,) = (tmp_path / name).iterdir()
    assert path.stat().st_size < 12e6
    # Literal facts about the published files: the sizes of classes, and the mean of all pixels.
    sizes = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert np.bincount(test.labels).tolist() == sizes
    assert abs(train.images.mean() / 255 - 0.1307) < 1e-4
