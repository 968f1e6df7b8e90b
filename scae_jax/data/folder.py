"""A user's own images, sorted into one sub-folder a class."""

import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Mapping

import numpy as np
from absl import logging

from scae_jax.data.dataset import Dataset, Split, holdout
from scae_jax.data.pictures import decode_picture

__all__ = ["SUFFIXES", "FolderListing", "list_folder", "load_listing"]

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp")
TEST_FRACTION = 0.2
SPLIT_SEED = 0
_LAYOUTS = "<folder>/<class>/*.png, or <folder>/train/<class>/*.png and <folder>/test/<class>/*.png"


@dataclasses.dataclass(frozen=True)
class FolderListing:
  """What lies in a folder of images.

  Attributes:
    root: absolute path.
    classes: names of the class folders, sorted; their positions are the labels.
    files: image files by split name and class; the one split "" means 'not yet divided'.
    fingerprint: changes with any file's name, size or time of change.
  """

  root: pathlib.Path
  classes: tuple[str, ...]
  files: Mapping[str, Mapping[str, tuple[pathlib.Path, ...]]]
  fingerprint: str

  @property
  def key(self) -> str:
    """A short name for the folder's path, for the cache file."""
    return hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]


def list_folder(data_dir: str) -> FolderListing:
  """Lists the images of a folder without opening them.

  Hidden files are passed over; other files and folders that are not images are counted in a
  warning.

  Args:
    data_dir: the folder; either `<class>/*` or `train/<class>/*` and `test/<class>/*` below it.

  Raises:
    ValueError: no such folder, no class in it, a class without images, one of `train` and `test`
      without the other, or other classes in one than in the other.
  """
  if not data_dir:
    raise ValueError(
      f"data set 'folder': expected the folder of your images ({_LAYOUTS}), got an empty data_dir; "
      "set config.data.dir"
    )
  root = pathlib.Path(os.path.abspath(os.path.expanduser(data_dir)))
  if not root.is_dir():
    raise ValueError(
      f"data set 'folder': expected a folder of images, got {str(root)!r}, which is not a folder; "
      "set config.data.dir to one"
    )
  is_divided = any(
    (root / split).is_dir() and _subfolders(root / split) for split in ("train", "test")
  )
  split_roots = {split: root / split for split in ("train", "test")} if is_divided else {"": root}
  files = {split: _list_classes(split_root) for split, split_root in split_roots.items()}
  classes = [tuple(of_split) for of_split in files.values()]
  if len(set(classes)) > 1:
    raise ValueError(
      f"data set 'folder' {root}: expected the same classes in train and test, got "
      f"{list(classes[0])} and {list(classes[1])}; make the class folders agree"
    )
  facts = hashlib.sha256(os.fsencode(root))
  for path in (
    path for of_split in files.values() for paths in of_split.values() for path in paths
  ):
    status = path.stat()
    facts.update(
      b"\n%b\t%d\t%d" % (os.fsencode(path.relative_to(root)), status.st_size, status.st_mtime_ns)
    )
  return FolderListing(root, classes[0], files, facts.hexdigest())


def load_listing(listing: FolderListing) -> Dataset:
  """Decodes the images of a folder.

  Without `train` and `test` folders, a fifth of each class (rounded, at least one) is held out for
  testing, by a fixed seed and the sorted file names.

  Raises:
    ValueError: naming the file, where it is broken, or of another size or number of channels than
      the first; or a class of one image, that cannot be divided.
  """
  decoded = _decode_splits(listing)
  if "" in decoded:
    decoded = _divide(listing, decoded[""])
  return Dataset("folder", listing.classes, decoded)


def _subfolders(folder: pathlib.Path) -> list[pathlib.Path]:
  return sorted(
    path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
  )


def _list_classes(folder: pathlib.Path) -> dict[str, tuple[pathlib.Path, ...]]:
  """Image files by class name, sorted."""
  classes = _subfolders(folder) if folder.is_dir() else []
  if not classes:
    raise ValueError(
      f"data set 'folder': expected class folders in {folder}, got none; lay the images out as "
      f"{_LAYOUTS}"
    )
  files = {}
  passed_over = []
  for class_folder in classes:
    if not _is_text(class_folder.name):
      raise ValueError(
        f"data set 'folder': expected names of classes in UTF-8, got {os.fsencode(class_folder)!r};"
        " rename that folder"
      )
    visible = sorted(path for path in class_folder.iterdir() if not path.name.startswith("."))
    images = tuple(path for path in visible if path.suffix.lower() in SUFFIXES and path.is_file())
    if not images:
      raise ValueError(
        f"data set 'folder': expected images ({', '.join(SUFFIXES)}) in {class_folder}, got none; "
        "add images to this class or remove its folder"
      )
    passed_over += sorted(set(visible) - set(images))
    files[class_folder.name] = images
  if passed_over:
    logging.warning(
      "%d entries of %s are not images and are passed over, %s among them.",
      len(passed_over),
      folder,
      passed_over[0],
    )
  return files


def _is_text(name: str) -> bool:
  """Whether a file's name can be printed and saved; Linux allows any bytes."""
  return name == name.encode(errors="replace").decode()


def _decode_splits(listing: FolderListing) -> dict[str, Split]:
  first: tuple[pathlib.Path, tuple[int, ...]] | None = None
  splits = {}
  for split, by_class in listing.files.items():
    images, labels = [], []
    for label, class_name in enumerate(listing.classes):
      for path in by_class[class_name]:
        try:
          image = decode_picture(path)
        except ValueError as error:
          raise ValueError(f"data set 'folder', file {path}: {error}") from error
        first = first or (path, image.shape)
        if image.shape != first[1]:
          raise ValueError(
            f"data set 'folder', file {path}: expected height, width and channels {first[1]}, as "
            f"in {first[0]}, got {image.shape}; bring all images to one size and to grey or RGB"
          )
        images.append(image)
        labels.append(label)
    splits[split] = Split(np.stack(images), np.asarray(labels, np.int32))
  return splits


def _divide(listing: FolderListing, split: Split) -> dict[str, Split]:
  """Holds a fifth of each class out."""
  is_test = np.zeros(len(split.labels), bool)
  for label, class_name in enumerate(listing.classes):
    members = np.flatnonzero(split.labels == label)
    if len(members) < 2:
      raise ValueError(
        f"data set 'folder': expected at least 2 images in {listing.root / class_name}, one to "
        "train and one to test on, got 1; add images or provide train and test folders"
      )
    num_test = max(1, round(TEST_FRACTION * len(members)))
    is_test[members[holdout(np.zeros(len(members), np.int64), num_test, SPLIT_SEED)]] = True
  return {
    "train": Split(split.images[~is_test], split.labels[~is_test]),
    "test": Split(split.images[is_test], split.labels[is_test]),
  }
