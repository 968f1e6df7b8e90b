"""Data sets: the embedded digits, the checks of every set, the held-out choice, the cache file."""

import dataclasses
import io
import os
import pathlib
import re
import zipfile

import numpy as np
import pytest
from sklearn import datasets

from scae_jax.data import cache
from scae_jax.data.dataset import (
  Dataset,
  EvalDataset,
  Split,
  hold_out_validation,
  holdout,
  in_common_form,
)
from scae_jax.data.digits import upsample_twice
from scae_jax.data.image_files import Form
from scae_jax.data.sources import load_dataset
from tests.toy_data import dataset_of, random_images


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


def test_validation_comes_out_of_training_alone_by_largest_remainders():
  labels = np.asarray([0] * 5 + [1] * 3 + [2] * 2)
  # Shares of 4 in 10 are 2, 1.2 and 0.8: class 2 has the largest remainder.
  chosen = holdout(labels, 4, seed=1)
  assert np.bincount(labels[chosen]).tolist() == [2, 1, 1]
  assert len(set(chosen.tolist())) == 4
  assert holdout(labels, 10, seed=1).tolist() == list(range(10))
  assert holdout(labels, 0, seed=1).tolist() == []
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
  with pytest.raises(ValueError, match=r"20.*'toy'"):
    hold_out_validation(whole, 20)


SOUND = Split(np.zeros((4, 6, 5, 3), np.uint8), np.asarray([0, 1, 1, 0], np.int32))


def make(kind, splits=("train", "test"), **changes):
  split = dataclasses.replace(SOUND, **changes)
  return kind("toy", ("cat", "dog"), dict.fromkeys(splits, split))


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"images": np.zeros((4, 6, 5), np.uint8)}, r"uint8 \[n, h, .* uint8 \[4, 6, 5\]"),
    ({"images": np.zeros((4, 6, 5, 3), np.float32)}, r"float32 \[4, 6, 5, 3\]"),
    ({"images": np.zeros((4, 6, 5, 4), np.uint8)}, r"1 channel.* 3 .*, 4\]"),
    ({"images": np.zeros((0, 6, 5, 3), np.uint8)}, r"\[0, 6, 5, 3\]"),
    ({"labels": np.zeros(3, np.int32)}, r"labels int32 \[4\].*\[3\]"),
    ({"labels": np.zeros(4, np.int64)}, r"labels int32 .*int64 \[4\]"),
    ({"labels": np.asarray([0, 1, 2, 0], np.int32)}, r"\[0, 2\).* 2\b.*example 2\b.*\b1\b"),
    ({"labels": np.asarray([0, -1, -1, 0], np.int32)}, r"\[0, 2\).*-1.*example 1\b.*\b2\b"),
  ],
)
def test_unsound_datasets_are_refused(changes, message):
  for kind in (Dataset, EvalDataset):
    with pytest.raises(ValueError, match=f"'toy'.*'train'.*{message}"):
      make(kind, **changes)


def test_missing_splits_and_different_shapes_are_refused():
  dataset = make(Dataset)
  assert (dataset.num_classes, dataset.image_shape, dataset.image_side) == (2, (6, 5, 3), 6)
  assert make(EvalDataset, ("test",)).held_out == "test"
  with pytest.raises(ValueError, match=r"'train'.*'test'.*\['test'\]"):
    make(Dataset, ("test",))
  with pytest.raises(ValueError, match=r"'test'.*\['train'\]"):
    make(EvalDataset, ("train",))
  larger = Split(np.zeros((4, 7, 5, 3), np.uint8), SOUND.labels)
  with pytest.raises(ValueError, match=r"'toy'.*7, 5, 3"):
    Dataset("toy", ("cat", "dog"), {"train": SOUND, "test": larger})


def toy(value: int = 7) -> Dataset:
  return dataset_of(random_images(3, 4, 5, 1, seed=value), labels=[0, 1, 1])


def unexpected() -> Dataset:
  raise AssertionError("the source was read although the cache is good")


def assert_is(dataset, expected):
  assert dataset is not None
  assert (dataset.name, dataset.class_names) == (expected.name, expected.class_names)
  assert sorted(dataset.splits) == sorted(expected.splits)
  for name, split in expected.splits.items():
    np.testing.assert_array_equal(dataset.splits[name].images, split.images)
    np.testing.assert_array_equal(dataset.splits[name].labels, split.labels)


@pytest.fixture
def path(tmp_path) -> pathlib.Path:
  return tmp_path / "new" / "folder" / "toy-1.0.0.npz"


def test_a_set_is_built_once_and_again_when_its_source_changes(path, caplog):
  assert cache.read_cached(path, "toy") is None
  cache.load_or_build(path, "toy", "first", toy)
  assert_is(cache.load_or_build(path, "toy", "first", unexpected), toy())
  assert os.listdir(path.parent) == [path.name]  # No partial file is left.
  assert_is(cache.load_or_build(path, "toy", "second", lambda: toy(8)), toy(8))
  assert_is(cache.load_or_build(path, "toy", "second", unexpected), toy(8))
  cache.write_cached(path, toy(), "f")
  assert cache.read_cached(path, "mnist") is None
  assert re.search("'mnist'.*'toy'", caplog.text)


def test_any_damage_is_reported_removed_and_rebuilt(path, caplog):
  """Every kind of truncation, and a flipped bit in each of many places of the file."""
  cache.write_cached(path, toy(), "f")
  whole = path.read_bytes()
  damaged = [whole[:length] for length in (0, 1, 40, len(whole) // 2, len(whole) - 1)]
  damaged += [b"not a zip file at all", whole[:100] + bytes(len(whole) - 100)]
  for position in range(0, len(whole), 37):
    flipped = bytearray(whole)
    flipped[position] ^= 0x10
    damaged.append(bytes(flipped))
  num_removed = 0
  for content in damaged:
    path.write_bytes(content)
    caplog.clear()
    dataset = cache.read_cached(path, "toy", "f")
    if dataset is None:
      assert str(path) in caplog.text
      assert not path.exists()
      num_removed += 1
    else:  # Some bits of a zip file, such as its dates, carry nothing.
      assert_is(dataset, toy())
  assert num_removed > len(damaged) / 2
  path.write_bytes(whole[:-30])
  cache.load_or_build(path, "toy", "f", toy)
  cache.load_or_build(path, "toy", "f", unexpected)


def test_an_array_of_36_tib_is_damage(path, caplog):
  """Only the header has that size; NumPy would allocate it."""
  cache.write_cached(path, toy(), "f")
  with zipfile.ZipFile(path) as file:
    contents = {name: file.read(name) for name in file.namelist()}
  header = io.BytesIO()
  described = {"descr": "<i4", "fortran_order": False, "shape": (10**13,)}
  np.lib.format.write_array_header_1_0(header, described)
  contents["train_labels.npy"] = header.getvalue()
  with zipfile.ZipFile(path, "w") as file:
    for name, content in contents.items():
      file.writestr(name, content)
  assert cache.read_cached(path, "toy", "f") is None
  assert str(path) in caplog.text


def test_a_failed_write_warns_and_leaves_the_old_file(path, caplog, monkeypatch):
  """How a file is written whole or not at all: test_evaluation_report.py."""
  cache.write_cached(path, toy(), "old")

  def fail(*_):
    raise OSError(28, "no space left")

  monkeypatch.setattr(os, "replace", fail)
  assert_is(cache.load_or_build(path, "toy", "new", lambda: toy(8)), toy(8))
  assert str(path.parent) in caplog.text
  assert os.listdir(path.parent) == [path.name]
  assert_is(cache.read_cached(path, "toy", "old"), toy())
  caplog.clear()
  blocked = path / "folder" / "toy-1.0.0.npz"  # below a file
  assert_is(cache.load_or_build(blocked, "toy", "f", toy), toy())
  assert str(blocked.parent) in caplog.text


def test_versions_are_compared_as_numbers(tmp_path):
  for value, version in enumerate(("1.9.0", "1.10.0", "1.2.0")):
    cache.write_cached(tmp_path / f"toy-{version}.npz", toy(value), "f")
  for name in ("toy-b-9.0.0.npz", "ab-9.0.0.npz", ".toy-9.0.0.npz.1.partial"):
    (tmp_path / name).write_text("")
  for version, value in (("", 1), ("1.9.0", 0)):
    assert_is(cache.newest_cached(tmp_path, "toy", version, "toy"), toy(value))
  (tmp_path / "toy-1.10.0.npz").write_bytes(b"damaged")
  assert_is(cache.newest_cached(tmp_path, "toy", "", "toy"), toy(0))  # the next one
  assert cache.newest_cached(tmp_path, "toy", "3.0.0", "toy") is None
  assert cache.newest_cached(tmp_path / "none", "toy", "", "toy") is None


def test_cache_folder_is_given_or_from_the_environment(monkeypatch):
  monkeypatch.setenv("SCAE_JAX_CACHE", "/from/environment")
  assert cache.cache_folder("/given") == pathlib.Path("/given")
  assert cache.cache_folder("") == pathlib.Path("/from/environment")
  monkeypatch.delenv("SCAE_JAX_CACHE")
  assert cache.cache_folder("") == pathlib.Path.home() / ".cache" / "scae_jax"


@pytest.fixture
def unreadable(request, tmp_path):
  """A cache folder that cannot be read, by root neither."""
  if request.param == "name of 300 letters":
    yield tmp_path / ("x" * 300)
    return
  folder, user = tmp_path / "closed", os.geteuid()
  folder.mkdir(mode=0)
  if user == 0:
    os.seteuid(65_534)  # nobody
  yield folder
  os.seteuid(user)
  folder.chmod(0o700)


@pytest.mark.parametrize("unreadable", ["mode 000", "name of 300 letters"], indirect=True)
def test_a_cache_folder_that_cannot_be_read_only_warns(unreadable, caplog):
  assert_is(cache.load_or_build(unreadable / "toy-1.0.0.npz", "toy", "f", toy), toy())
  assert len(caplog.messages) == 2  # one of reading, one of writing
  assert all(str(unreadable) in message for message in caplog.messages)
  caplog.clear()
  assert cache.newest_cached(unreadable, "toy", "", "toy") is None
  assert str(unreadable) in caplog.text


def test_a_cache_folder_of_no_user_names_the_key():
  with pytest.raises(ValueError, match=r"config\.data\.cache_dir"):
    cache.cache_folder("~nobody-of-this-name/x")


def test_images_of_any_set_are_resized_to_a_form():
  whole, small = load_dataset("digits"), load_dataset("digits", form=Form(side=8, channels=3))
  assert small.image_shape == (8, 8, 3)
  for name, split in whole.splits.items():
    # From 16 to 8 each pixel is a mean of 4x4 by weights 1, 3, 3, 1; rounding apart.
    padded = np.pad(split.images[..., 0].astype(float), ((0, 0), (1, 1), (1, 1)))
    weights = np.array([1, 3, 3, 1]) / 8
    rows = sum(w * padded[:, i : i + 15 : 2] for i, w in enumerate(weights))
    means = sum(w * rows[:, :, i : i + 15 : 2] for i, w in enumerate(weights))
    inner = small.splits[name].images[:, 1:-1, 1:-1, 1]
    np.testing.assert_allclose(inner, means[:, 1:-1, 1:-1], atol=1.1)
    np.testing.assert_array_equal(small.splits[name].labels, split.labels)
  stereo = dataset_of(random_images(3, 4, 5, 2))
  assert in_common_form(stereo, Form(side=8)).image_shape == (8, 8, 2)
  with pytest.raises(ValueError, match=r"config\.data\.channels"):
    in_common_form(stereo, Form(channels=1))
