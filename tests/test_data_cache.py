"""The cache file: what comes back, what is rejected, and what survives damage."""

import io
import os
import pathlib
import zipfile

import numpy as np
import pytest

from scae_jax.data import cache
from scae_jax.data.dataset import Dataset, Split


def toy(value: int = 7) -> Dataset:
  images = np.random.RandomState(value).randint(0, 256, (3, 4, 5, 1)).astype(np.uint8)
  split = Split(images, np.asarray([0, 1, 1], np.int32))
  return Dataset("toy", ("cat", "öl"), {"train": split, "test": split})


def unexpected() -> Dataset:
  raise AssertionError("the source was read although the cache is good")


def test_what_is_written_comes_back(tmp_path):
  path = tmp_path / "new" / "folder" / "toy-1.0.0.npz"
  cache.write_cached(path, toy(), "fingerprint")
  dataset = cache.read_cached(path, "toy", "fingerprint")
  assert dataset is not None
  assert (dataset.name, dataset.class_names, sorted(dataset.splits)) == (
    "toy",
    ("cat", "öl"),
    ["test", "train"],
  )
  for name, split in toy().splits.items():
    np.testing.assert_array_equal(dataset.splits[name].images, split.images)
    np.testing.assert_array_equal(dataset.splits[name].labels, split.labels)
  assert os.listdir(path.parent) == [path.name]  # No partial file is left.


def test_load_or_build_builds_once_and_again_when_the_source_changes(tmp_path):
  path = tmp_path / "toy-1.0.0.npz"
  assert cache.read_cached(path, "toy") is None
  cache.load_or_build(path, "toy", "first", toy)
  cache.load_or_build(path, "toy", "first", unexpected)
  changed = cache.load_or_build(path, "toy", "second", lambda: toy(8))
  again = cache.load_or_build(path, "toy", "second", unexpected)
  for dataset in (changed, again):
    np.testing.assert_array_equal(dataset.splits["train"].images, toy(8).splits["train"].images)


def test_any_damage_is_reported_removed_and_rebuilt(tmp_path, caplog):
  """Every kind of truncation, and a flipped bit in each of many places of the file."""
  path = tmp_path / "toy-1.0.0.npz"
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
      assert "is damaged" in caplog.text
      assert not path.exists()
      num_removed += 1
    else:  # Some bits of a zip file, such as its dates, carry nothing.
      for name, split in toy().splits.items():
        np.testing.assert_array_equal(dataset.splits[name].images, split.images)
        np.testing.assert_array_equal(dataset.splits[name].labels, split.labels)
  assert num_removed > len(damaged) / 2
  path.write_bytes(whole[:-30])
  cache.load_or_build(path, "toy", "f", toy)
  cache.load_or_build(path, "toy", "f", unexpected)


def test_an_array_of_36_tib_is_damage(tmp_path, caplog):
  """The header alone says so: NumPy would ask for as much memory."""
  path = tmp_path / "toy-1.0.0.npz"
  cache.write_cached(path, toy(), "f")
  with zipfile.ZipFile(path) as file:
    contents = {name: file.read(name) for name in file.namelist()}
  header = io.BytesIO()
  np.lib.format.write_array_header_1_0(
    header, {"descr": "<i4", "fortran_order": False, "shape": (10**13,)}
  )
  contents["train_labels.npy"] = header.getvalue()
  with zipfile.ZipFile(path, "w") as file:
    for name, content in contents.items():
      file.writestr(name, content)
  assert cache.read_cached(path, "toy", "f") is None
  assert "is damaged" in caplog.text


def test_a_file_of_another_set_is_not_used(tmp_path, caplog):
  path = tmp_path / "mnist-1.0.0.npz"
  cache.write_cached(path, toy(), "f")
  assert cache.read_cached(path, "mnist") is None
  assert "expected the data set 'mnist', got 'toy'" in caplog.text


@pytest.mark.parametrize("error", [PermissionError(13, "denied"), OSError(28, "no space left")])
def test_a_failed_write_only_warns(tmp_path, caplog, monkeypatch, error):
  def fail(*_):
    raise error

  monkeypatch.setattr(os, "replace", fail)
  path = tmp_path / "toy-1.0.0.npz"
  dataset = cache.load_or_build(path, "toy", "f", toy)
  assert dataset.num_classes == 2
  assert "cannot be cached" in caplog.text
  assert os.listdir(tmp_path) == []


def test_a_cache_folder_that_is_a_file_only_warns(tmp_path, caplog):
  blocked = tmp_path / "file"
  blocked.write_text("")
  cache.load_or_build(blocked / "toy-1.0.0.npz", "toy", "f", toy)
  assert "cannot be cached" in caplog.text
  assert blocked.read_text() == ""


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
  path = tmp_path / "toy-1.0.0.npz"
  cache.write_cached(path, toy(), "old")

  def full(file, **_):
    file.write(b"half")
    raise OSError(28, "no space left")

  monkeypatch.setattr(np, "savez_compressed", full)
  cache.write_cached(path, toy(8), "new")
  assert cache.read_cached(path, "toy", "old") is not None


def test_versions_are_numbers(tmp_path):
  for value, version in enumerate(("1.9.0", "1.10.0", "1.2.0")):
    cache.write_cached(tmp_path / f"toy-{version}.npz", toy(value), "f")
  for name in ("toy-b-9.0.0.npz", "ab-9.0.0.npz", ".toy-9.0.0.npz.1.partial"):
    (tmp_path / name).write_text("")
  for version, value in (("", 1), ("1.9.0", 0)):
    found = cache.newest_cached(tmp_path, "toy", version, "toy")
    assert found is not None
    np.testing.assert_array_equal(found.splits["test"].images, toy(value).splits["test"].images)
  (tmp_path / "toy-1.10.0.npz").write_bytes(b"damaged")
  found = cache.newest_cached(tmp_path, "toy", "", "toy")
  assert found is not None  # the next one
  np.testing.assert_array_equal(found.splits["test"].images, toy(0).splits["test"].images)
  assert cache.newest_cached(tmp_path, "toy", "3.0.0", "toy") is None
  assert cache.newest_cached(tmp_path / "none", "toy", "", "toy") is None


def test_cache_folder_is_given_or_from_the_environment(monkeypatch):
  monkeypatch.setenv("SCAE_JAX_CACHE", "/from/environment")
  assert cache.cache_folder("/given") == pathlib.Path("/given")
  assert cache.cache_folder("") == pathlib.Path("/from/environment")
  monkeypatch.delenv("SCAE_JAX_CACHE")
  assert cache.cache_folder("") == pathlib.Path.home() / ".cache" / "scae_jax"
