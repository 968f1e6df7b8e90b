"""A user's own images, sorted into one sub-folder a class."""

import dataclasses
import hashlib
import itertools
import os
import pathlib

import numpy as np
from absl import logging

from scae_jax.data.dataset import Dataset, Split, holdout
from scae_jax.data.pictures import decode_picture

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp")
TEST_FRACTION = 0.2
SPLIT_SEED = 0
_LAYOUTS = "<folder>/<class>/*.png, or <folder>/train/<class>/*.png and <folder>/test/<class>/*.png"


@dataclasses.dataclass(frozen=True)
class FolderListing:
  """What lies in a folder of images.

  Attributes:
    root: absolute path.
    files: image files by split and class, both sorted; the split "" means 'not yet divided'. The
      position of a class is its label.
  """

  root: pathlib.Path
  files: dict[str, dict[str, list[pathlib.Path]]]

  @property
  def key(self) -> str:
    """A short name for the folder's path, for the cache file."""
    return hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]

  @property
  def fingerprint(self) -> str:
    """Changes with any file's name, size or time of change."""
    facts = hashlib.sha256(os.fsencode(self.root))
    for by_class in self.files.values():
      for path in itertools.chain.from_iterable(by_class.values()):
        status = path.stat()
        name = os.fsencode(path.relative_to(self.root))
        facts.update(b"\n%b\t%d\t%d" % (name, status.st_size, status.st_mtime_ns))
    return facts.hexdigest()


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
  is_divided = any(_subfolders(root / split) for split in ("train", "test"))
  splits = ("train", "test") if is_divided else ("",)
  files = {split: _list_classes(root / split) for split in splits}
  classes = [list(by_class) for by_class in files.values()]
  if classes[0] != classes[-1]:
    raise ValueError(
      f"data set 'folder' {root}: expected the same classes in train and test, got "
      f"{classes[0]} and {classes[1]}; make the class folders agree"
    )
  return FolderListing(root, files)


def load_listing(listing: FolderListing) -> Dataset:
  """Decodes the images of a folder.

  Without `train` and `test` folders, a fifth of each class (rounded, at least one) is held out for
  testing, by a fixed seed and the sorted file names.

  Raises:
    ValueError: naming the file, where it is broken, or of another size or number of channels than
      the first; or a class of one image, that cannot be divided.
  """
  first: tuple[pathlib.Path, tuple[int, ...]] | None = None
  splits, classes = {}, tuple(next(iter(listing.files.values())))
  for split, by_class in listing.files.items():
    images, labels = [], []
    for label, paths in enumerate(by_class.values()):
      for path in paths:
        try:
          images.append(decode_picture(path))
        except ValueError as error:
          raise ValueError(f"data set 'folder', file {path}: {error}") from error
        labels.append(label)
        shape = images[-1].shape
        first = first or (path, shape)
        if shape != first[1]:
          raise ValueError(
            f"data set 'folder', file {path}: expected height, width and channels {first[1]}, as "
            f"in {first[0]}, got {shape}; bring all images to one size and to grey or RGB"
          )
    splits[split] = Split(np.stack(images), np.asarray(labels, np.int32))
  if "" in splits:
    is_test = _chosen_for_test(listing.root, classes, splits[""].labels)
    splits = {"train": splits[""].take(~is_test), "test": splits[""].take(is_test)}
  return Dataset("folder", classes, splits)


def _subfolders(folder: pathlib.Path) -> list[pathlib.Path]:
  """Folders that are not hidden, sorted; none of what is no folder."""
  return sorted(path for path in folder.glob("*") if path.is_dir() and path.name[0] != ".")


def _list_classes(folder: pathlib.Path) -> dict[str, list[pathlib.Path]]:
  """Image files by class name, sorted."""
  files, passed_over = {}, []
  for class_folder in _subfolders(folder):
    name = class_folder.name
    if name != name.encode(errors="replace").decode():  # Linux allows any bytes
      raise ValueError(
        f"data set 'folder': expected names of classes in UTF-8, got {os.fsencode(class_folder)!r};"
        " rename that folder"
      )
    visible = sorted(path for path in class_folder.iterdir() if path.name[0] != ".")
    files[name] = [p for p in visible if p.suffix.lower() in SUFFIXES and p.is_file()]
    passed_over += sorted(set(visible) - set(files[name]))
    if not files[name]:
      raise ValueError(
        f"data set 'folder': expected images ({', '.join(SUFFIXES)}) in {class_folder}, got none; "
        "add images to this class or remove its folder"
      )
  if not files:
    raise ValueError(
      f"data set 'folder': expected class folders in {folder}, got none; lay the images out as "
      f"{_LAYOUTS}"
    )
  if passed_over:
    logging.warning(
      "%d entries of %s are not images and are passed over, %s among them.",
      len(passed_over),
      folder,
      passed_over[0],
    )
  return files


def _chosen_for_test(
  root: pathlib.Path, classes: tuple[str, ...], labels: np.ndarray
) -> np.ndarray:
  """A fifth of each class: bool [n]."""
  is_test = np.zeros(len(labels), bool)
  for label, name in enumerate(classes):
    members = np.flatnonzero(labels == label)
    if len(members) < 2:
      raise ValueError(
        f"data set 'folder': expected at least 2 images in {root / name}, one to "
        "train and one to test on, got 1; add images or provide train and test folders"
      )
    num_test = max(1, round(TEST_FRACTION * len(members)))
    is_test[members[holdout(np.zeros(len(members), np.int64), num_test, SPLIT_SEED)]] = True
  return is_test
