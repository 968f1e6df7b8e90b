"""The official affNIST test files: MNIST's test digits under affine maps, in MATLAB's format.

Tieleman 2013, https://www.cs.toronto.edu/~tijmen/affNIST, the set 'transformed'. A file holds one
struct `affNISTdata`; its `image` is uint8 [1600, n], a column an image of 40x40 pixels row by row,
and its `label_int` [1, n] the digit.
"""

import pathlib
import warnings
from typing import Any, NoReturn

import numpy as np
import scipy.io

from scae_jax.data.dataset import EvalDataset, Split

SIDE = 40  # pixels
_STRUCT = "affNISTdata"
_LAYOUTS = "test_batches/1.mat, ..., 1.mat, ..., or test.mat"


def load_affnist(folder: str) -> EvalDataset:
  """Reads the official test files, one after the other.

  Args:
    folder: what the archives were unpacked to, see `find_batches`.

  Returns:
    The set `affnist`: uint8 [n, 40, 40, 1], ten classes, in the order of the files.

  Raises:
    ValueError: there are none, or one is damaged or not of affNIST; the message names it.
  """
  paths = find_batches(folder)
  batches = [read_batch(path) for path in paths]
  columns = np.concatenate([batch.images for batch in batches])
  images, is_upright = _upright(columns)
  labels = np.concatenate([batch.labels for batch in batches])
  notes = [f"official affNIST: {len(images):,} images of {len(paths)} file(s) in {folder}."]
  if not is_upright:
    notes.append("affNIST's images lay on their sides, column by column, and were set upright.")
  names = tuple(str(digit) for digit in range(10))
  return EvalDataset("affnist", names, {"test": Split(images, labels)}, tuple(notes))


def find_batches(folder: str) -> list[pathlib.Path]:
  """The test files in a folder, in order: `test_batches/1.mat`, ..., else `1.mat`, ... themselves,
  else `test.mat`, which is read whole; also one folder `transformed` down, as the archives are
  packed.

  Raises:
    ValueError: no such folder, none of these in it, or one missing among those with a number.
  """
  root = pathlib.Path(folder).expanduser()
  for top in (root, root / "transformed"):
    for place in (top / "test_batches", top):
      found = {int(path.stem): path for path in place.glob("[1-9]*.mat") if path.stem.isdecimal()}
      if missing := set(range(1, max(found, default=0))) - set(found):
        raise ValueError(
          f"affNIST's test files in {str(place)!r} end with {max(found)}.mat, and"
          f" {min(missing)}.mat is missing; unpack or download it again"
        )
      if found:
        return [found[number] for number in sorted(found)]
    if (top / "test.mat").is_file():
      return [top / "test.mat"]
  raise ValueError(
    f"expected affNIST's test files ({_LAYOUTS}) in {str(root)!r}, got none; correct the folder "
    "(config.data.affnist_dir or --affnist_dir), or leave it empty to draw the same distribution "
    "from MNIST's test digits, as affine_mnist"
  )


def read_batch(path: pathlib.Path) -> Split:
  """One file: images uint8 [n, 40, 40, 1], read row by row, and labels int32 [n].

  Raises:
    ValueError: it cannot be read, or has not the fields in their shapes; the message names it.
  """
  try:
    with warnings.catch_warnings():
      warnings.simplefilter("error")
      content = scipy.io.loadmat(path, variable_names=[_STRUCT])
  except Exception as error:  # SciPy meets damage with whatever comes, NameError and warnings too
    raise ValueError(
      f"expected a whole MATLAB file (version 5 to 7.2) of affNIST, got {path}, which cannot be "
      f"read ({type(error).__name__}: {error}); unpack or download it again"
    ) from error
  images, labels = (_field(path, content, name) for name in ("image", "label_int"))
  if images.ndim != 2 or len(images) != SIDE**2 or images.dtype != np.uint8 or 0 in images.shape:
    _refuse(path, f"'image' uint8 [{SIDE**2}, n]", f"{images.dtype} {list(images.shape)}")
  labels = labels.ravel()
  if labels.size != images.shape[1] or labels.dtype.kind not in "uif":
    expected = f"{images.shape[1]} numbers 'label_int', one an image"
    _refuse(path, expected, f"{labels.size} of {labels.dtype}")
  if not np.isin(labels, np.arange(10)).all():
    _refuse(path, "labels 0 to 9", f"{labels[~np.isin(labels, np.arange(10))][0]}")
  return Split(images.T.reshape(-1, SIDE, SIDE, 1), labels.astype(np.int32))


def _field(path: pathlib.Path, content: dict[str, Any], name: str) -> np.ndarray:
  record = content.get(_STRUCT)
  if not isinstance(record, np.ndarray) or record.shape != (1, 1) or record.dtype.names is None:
    _refuse(path, f"one struct {_STRUCT!r}", "none" if record is None else f"{type(record)}")
  if name not in record.dtype.names:
    _refuse(path, f"a field {name!r} of {_STRUCT!r}", f"the fields {list(record.dtype.names)}")
  return np.asarray(record[name][0, 0])


def _refuse(path: pathlib.Path, expected: str, received: str) -> NoReturn:
  raise ValueError(
    f"affNIST file {path}: expected {expected}, got {received}; use the files of affNIST's set "
    "'transformed', 40x40 pixels"
  )


def _upright(images: np.ndarray) -> tuple[np.ndarray, bool]:
  """Images set upright, and whether they were.

  Digits are taller than wide, on the whole. Files written from MATLAB's own order, column by
  column, would show them mirrored at the diagonal, and every figure would be of other pictures.
  """
  position = np.arange(SIDE, dtype=np.float64)

  def spread(ink: np.ndarray) -> float:
    """Variance of the ink of an image [n, 40] about its own middle, summed over images."""
    amount = np.maximum(ink.sum(axis=1), 1)
    mean = ink @ position / amount
    return float(np.sum(ink @ np.square(position) / amount - np.square(mean)))

  is_upright = spread(images.sum(axis=(2, 3))) >= spread(images.sum(axis=(1, 3)))
  return (images if is_upright else images.transpose(0, 2, 1, 3)), is_upright
