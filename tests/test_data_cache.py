"""The cache file: what comes back, what is rejected, and what survives damage."""

import io
import os
import pathlib
import zipfile

import numpy as np
import pytest

from scae_jax.data import cache
from scae_jax.data.dataset import Dataset
from tests.toy_data import dataset_of, random_images


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


def test_it_is_built_once_and_again_when_the_source_changes(path):
  assert cache.read_cached(path, "toy") is None
  cache.load_or_build(path, "toy", "first", toy)
  assert_is(cache.load_or_build(path, "toy", "first", unexpected), toy())
  assert os.listdir(path.parent) == [path.name]  # No partial file is left.
  assert_is(cache.load_or_build(path, "toy", "second", lambda: toy(8)), toy(8))
  assert_is(cache.load_or_build(path, "toy", "second", unexpected), toy(8))


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
      assert "is damaged" in caplog.text
      assert not path.exists()
      num_removed += 1
    else:  # Some bits of a zip file, such as its dates, carry nothing.
      assert_is(dataset, toy())
  assert num_removed > len(damaged) / 2
  path.write_bytes(whole[:-30])
  cache.load_or_build(path, "toy", "f", toy)
  cache.load_or_build(path, "toy", "f", unexpected)


def test_an_array_of_36_tib_is_damage(path, caplog):
  """The header alone says so: NumPy would ask for as much memory."""
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
  assert "is damaged" in caplog.text


def test_a_file_of_another_set_is_not_used(path, caplog):
  cache.write_cached(path, toy(), "f")
  assert cache.read_cached(path, "mnist") is None
  assert "expected the data set 'mnist', got 'toy'" in caplog.text


@pytest.mark.parametrize("error", [PermissionError(13, "denied"), OSError(28, "no space left")])
@pytest.mark.parametrize("fails", ["replace", "write"])
def test_a_failed_write_warns_and_leaves_the_old_file(path, caplog, monkeypatch, error, fails):
  cache.write_cached(path, toy(), "old")

  def fail(file, *_, **__):
    if fails == "write":
      file.write(b"half")
    raise error

  monkeypatch.setattr(*((os, "replace") if fails == "replace" else (np, "savez_compressed")), fail)
  assert_is(cache.load_or_build(path, "toy", "new", lambda: toy(8)), toy(8))
  assert "cannot be cached" in caplog.text
  assert os.listdir(path.parent) == [path.name]
  assert_is(cache.read_cached(path, "toy", "old"), toy())


def test_a_cache_folder_that_is_a_file_only_warns(tmp_path, caplog):
  blocked = tmp_path / "file"
  blocked.write_text("")
  assert_is(cache.load_or_build(blocked / "toy-1.0.0.npz", "toy", "f", toy), toy())
  assert "cannot be cached" in caplog.text
  assert blocked.read_text() == ""


def test_two_processes_do_not_write_into_one_file(path, monkeypatch):
  written = []
  replace = os.replace
  monkeypatch.setattr(os, "replace", lambda *both: written.append(both[0]) or replace(*both))
  for number in (1, 2):
    monkeypatch.setattr(os, "getpid", lambda number=number: number)
    cache.write_cached(path, toy(), "f")
  assert len(set(written)) == 2


def test_versions_are_numbers(tmp_path):
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
