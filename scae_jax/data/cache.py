"""Decoded data sets on disk: one compressed `.npz` file each, read without TFDS or the source.

A file describes itself: it can be copied to another machine's cache folder and used there. It is up
to date if it has the fingerprint of the source. Files are replaced atomically.
"""

import contextlib
import io
import json
import os
import pathlib
import re
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import logging

from scae_jax.data.dataset import Dataset, Split
from scae_jax.files import write_whole


def cache_folder(cache_dir: str) -> pathlib.Path:
  """`cache_dir`, else `$SCAE_JAX_CACHE`, else `~/.cache/scae_jax`; ValueError without a home."""
  folder = cache_dir or os.environ.get("SCAE_JAX_CACHE") or "~/.cache/scae_jax"
  try:
    return pathlib.Path(folder).expanduser()
  except RuntimeError as error:
    raise ValueError(
      f"expected a folder for the cache, got {folder!r}, and {error} Set config.data.cache_dir or"
      " SCAE_JAX_CACHE."
    ) from error


def load_or_build(
  path: pathlib.Path, name: str, fingerprint: str, build: Callable[[], Dataset]
) -> Dataset:
  """Reads the data set of this name and fingerprint from a cache file, or builds and caches it."""
  dataset = read_cached(path, name, fingerprint)
  if dataset is None:
    logging.info("Decoding the images of %s, once; this takes up to some tens of seconds.", name)
    dataset = build()
    write_cached(path, dataset, fingerprint)
  return dataset


def newest_cached(folder: pathlib.Path, stem: str, version: str, name: str) -> Dataset | None:
  """Reads the newest usable cache file `<stem>-<version>.npz`, of any source.

  The version is major.minor.patch, or "" for any. The file must hold the data set `name`.
  """
  pattern = re.compile(re.escape(stem) + r"-(\d+)\.(\d+)\.(\d+)\.npz")
  try:
    paths = [*folder.iterdir()]
  except (FileNotFoundError, NotADirectoryError):
    paths = []
  except OSError as error:
    logging.warning("The cache folder %s cannot be read: %s", folder, error)
    paths = []
  path_by_version = {
    tuple(map(int, match.groups())): p for p in paths if (match := pattern.fullmatch(p.name))
  }
  versions = [
    v for v in sorted(path_by_version, reverse=True) if version in ("", ".".join(map(str, v)))
  ]
  datasets = (read_cached(path_by_version[numbers], name) for numbers in versions)
  return next((dataset for dataset in datasets if dataset is not None), None)


def read_cached(path: pathlib.Path, name: str, fingerprint: str | None = None) -> Dataset | None:
  """Reads one cache file of the data set `name`, of the source with the fingerprint if given.

  Returns None if the file does not exist, is of another source, or cannot be used. A damaged file
  is removed with a warning.
  """
  try:
    if not path.is_file():
      return None
    arrays = read_arrays(path)
    metadata = json.loads(arrays["about"].tobytes())
    if fingerprint not in (None, metadata["fingerprint"]):
      return None
    if metadata["name"] != name:
      raise ValueError(f"expected the data set {name!r}, got {metadata['name']!r}")
    splits = {
      split: Split(arrays[f"{split}_images"], arrays[f"{split}_labels"])
      for split in metadata["splits"]
    }
    whole = metadata.get("cropped_from")
    return Dataset(
      name,
      tuple(metadata["class_names"]),
      splits,
      cropped_from=None if whole is None else tuple(whole),
    )
  except (ValueError, KeyError, TypeError, RecursionError) as error:
    logging.warning("The cache file %s is damaged (%s); it is removed.", path, error)
    with contextlib.suppress(OSError):  # in a folder that cannot be written
      path.unlink(missing_ok=True)
  except OSError as error:
    logging.warning("The cache file %s cannot be read: %s", path, error)
  return None


def read_arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
  """Reads an `.npz` file; ValueError if it is damaged, OSError if it cannot be opened."""
  with path.open("rb") as file:
    try:
      with zipfile.ZipFile(file) as archive:
        # Read to the end, where zipfile checks the checksum; NumPy would stop before it.
        contents = {name: io.BytesIO(archive.read(name)) for name in archive.namelist()}
      return {
        name.removesuffix(".npy"): np.lib.format.read_array(content, allow_pickle=False)
        for name, content in contents.items()
      }
    except Exception as error:  # damaged files raise errors of many types
      raise ValueError(f"{type(error).__name__}: {error}") from error


def write_cached(path: pathlib.Path, dataset: Dataset, fingerprint: str) -> None:
  """Writes one cache file atomically; a folder that cannot be written only gives a warning."""
  metadata = {
    "name": dataset.name,
    "class_names": dataset.class_names,
    "splits": list(dataset.splits),
    "fingerprint": fingerprint,
    "cropped_from": dataset.cropped_from,
  }
  arrays: dict[str, Any] = {"about": np.frombuffer(json.dumps(metadata).encode(), np.uint8)}
  for name, split in dataset.splits.items():
    arrays |= {f"{name}_images": split.images, f"{name}_labels": split.labels}
  content = io.BytesIO()
  np.savez_compressed(content, **arrays)
  try:
    write_whole(path, content.getvalue())
  except OSError as error:
    logging.warning(
      "%s cannot be cached in %s (%s): the next start decodes it again. Name a folder that can be "
      "written in cache_dir or SCAE_JAX_CACHE.",
      dataset.name,
      path.parent,
      error,
    )
