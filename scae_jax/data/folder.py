"""A user's own images, sorted into one sub-folder a class."""

import concurrent.futures
import dataclasses
import hashlib
import os
import pathlib
import unicodedata
from collections.abc import Mapping

import numpy as np
from absl import logging

from scae_jax.data.dataset import Dataset, Split, holdout
from scae_jax.data.image_files import AS_IT_IS, Form, decode_picture, decode_pictures

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp")
TEST_FRACTION = 0.2
SPLIT_SEED = 0
_LAYOUTS = "<folder>/<class>/*.png, or <folder>/train/<class>/*.png and <folder>/test/<class>/*.png"


@dataclasses.dataclass(frozen=True)
class FolderListing:
  """The files of a folder of images, by split and class, both sorted.

  The split is "" if there are no `train` and `test` folders. The position of a class is its label.
  """

  root: pathlib.Path  # absolute
  files: dict[str, dict[str, list[pathlib.Path]]]

  @property
  def key(self) -> str:
    """A short name for the folder's path, for the cache file."""
    return hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]

  @property
  def paths(self) -> list[pathlib.Path]:
    """All files, by split and class."""
    return [
      path
      for by_class in self.files.values()
      for class_paths in by_class.values()
      for path in class_paths
    ]

  @property
  def fingerprint(self) -> str:
    """Changes with the name or any byte of any file.

    Every file is read, because files that are swapped keep their sizes and may keep their times.
    Raises ValueError if one cannot be read.
    """
    total = hashlib.sha256()
    with concurrent.futures.ThreadPoolExecutor() as pool:  # hashing releases the interpreter's lock
      for path, digest in zip(self.paths, pool.map(_digest, self.paths), strict=True):
        total.update(b"%b\0%b" % (os.fsencode(path.relative_to(self.root)), digest))
    return total.hexdigest()


def list_folder(data_dir: str) -> FolderListing:
  """Lists the images of a folder without opening them: `<class>/*`, or below `train` and `test`.

  Hidden files are skipped; others that are no image of a class are skipped with a warning. Raises
  ValueError if there is no such folder, no class, a class without images, or if `train` and `test`
  have different classes.
  """
  root = pathlib.Path(os.path.abspath(os.path.expanduser(data_dir)))
  if not data_dir or not root.is_dir():
    raise ValueError(
      f"data set 'folder': expected the folder of your images ({_LAYOUTS}), got {data_dir!r}, "
      "which is not a folder; set config.data.dir to one"
    )
  is_divided = any(_subfolders(root / split) for split in ("train", "test"))
  splits = ("train", "test") if is_divided else ("",)
  files = {split: _list_classes(root / split) for split in splits}
  if is_divided:
    _warn_of_skipped(root, [path for path in _visible(root) if path.name not in splits])
  classes = [list(by_class) for by_class in files.values()]
  if classes[0] != classes[-1]:
    composed = [{unicodedata.normalize("NFC", name) for name in names} for names in classes]
    look_alike = composed[0] == composed[1]
    raise ValueError(
      f"data set 'folder' {root}: expected the same classes in train and test, got "
      f"{classes[0]} and {classes[1]}; make the class folders agree"
      + " (letters with accents are written in two ways, NFC and NFD; rename one)"
      * look_alike
    )
  return FolderListing(root, files)


def load_listing(listing: FolderListing, form: Form = AS_IT_IS) -> Dataset:
  """Decodes the images of a folder and brings them to one form.

  Without `train` and `test` folders, a fifth of each class (rounded, at least one) is held out for
  testing, by a fixed seed and the sorted file names. Raises ValueError, which names the file or
  class, if `decode_pictures` fails or a class has a single image, which cannot be divided.
  """
  classes = tuple(next(iter(listing.files.values())))
  paths = listing.paths
  images = decode_pictures(((f"data set 'folder', file {path}", path) for path in paths), form)
  _warn_of_black(images, paths)
  splits, start = {}, 0
  for split, by_class in listing.files.items():
    counts = [len(class_paths) for class_paths in by_class.values()]
    rows = slice(start, start := start + sum(counts))
    splits[split] = Split(images[rows], np.repeat(np.arange(len(counts), dtype=np.int32), counts))
  if "" in splits:
    is_test = _chosen_for_test(listing.root, classes, splits[""].labels)
    splits = {"train": splits[""].take(~is_test), "test": splits[""].take(is_test)}
  _warn_of_copies(listing.root, splits)
  whole = form.resized_shape(decode_picture(paths[0]).shape[:2]) if form.middle else None
  return Dataset("folder", classes, splits, cropped_from=whole)


def _visible(folder: pathlib.Path) -> list[pathlib.Path]:
  """The entries of a folder that are not hidden, sorted; [] if it is no folder."""
  return sorted(path for path in folder.glob("*") if path.name[0] != ".")


def _subfolders(folder: pathlib.Path) -> list[pathlib.Path]:
  return [path for path in _visible(folder) if path.is_dir()]


def _digest(path: pathlib.Path) -> bytes:
  try:
    with path.open("rb") as file:
      return hashlib.file_digest(file, "blake2b").digest()
  except OSError as error:
    raise ValueError(
      f"data set 'folder': expected a file that can be read, got {path}: {error}; allow it, or"
      " remove the file"
    ) from error


def _warn_of_black(images: np.ndarray, paths: list[pathlib.Path]) -> None:
  if len(black := np.flatnonzero(~images.any(axis=(1, 2, 3)))):
    logging.warning(
      "%d of %d images are black all over, %s among them; transparent pixels become black.",
      len(black),
      len(images),
      paths[black[0]],
    )


def _warn_of_copies(root: pathlib.Path, splits: Mapping[str, Split]) -> None:
  trained = {hash(image.tobytes()) for image in splits["train"].images}
  num_copies = sum(hash(image.tobytes()) in trained for image in splits["test"].images)
  if num_copies:
    logging.warning(
      "%d of the %d test images of %s are training images, too: scores on them are no measure of"
      " new images. Remove one of each two copies.",
      num_copies,
      len(splits["test"].images),
      root,
    )


def _warn_of_skipped(folder: pathlib.Path, skipped: list[pathlib.Path]) -> None:
  if skipped:
    logging.warning(
      "%d entries of %s are skipped, %s among them: they are neither class folders nor images.",
      len(skipped),
      folder,
      skipped[0],
    )


def _list_classes(folder: pathlib.Path) -> dict[str, list[pathlib.Path]]:
  """Image files by class name, sorted."""
  files, skipped = {}, [path for path in _visible(folder) if not path.is_dir()]
  for class_folder in _subfolders(folder):
    name = class_folder.name
    if name != name.encode(errors="replace").decode():  # Linux allows any bytes
      raise ValueError(
        f"data set 'folder': expected names of classes in UTF-8, got {os.fsencode(class_folder)!r};"
        " rename that folder"
      )
    visible = _visible(class_folder)
    files[name] = [p for p in visible if p.suffix.lower() in SUFFIXES and p.is_file()]
    skipped += sorted(set(visible) - set(files[name]))
  empty = folder if not files else next((folder / name for name in files if not files[name]), None)
  if empty:
    raise ValueError(
      f"data set 'folder': expected images ({', '.join(SUFFIXES)}) in {empty}, got none; lay them "
      f"out as {_LAYOUTS}, and remove classes that have none"
    )
  _warn_of_skipped(folder, skipped)
  return files


def _chosen_for_test(
  root: pathlib.Path, classes: tuple[str, ...], labels: np.ndarray
) -> np.ndarray:
  """Marks a fifth of each class for testing: bool [n]."""
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
