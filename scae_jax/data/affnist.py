"""The official affNIST test files: MNIST's test digits under affine maps, in MATLAB's format.

Tieleman 2013, https://www.cs.toronto.edu/~tijmen/affNIST, the set 'transformed'. A file holds one
struct `affNISTdata`; its `image` is uint8 [1600, n], a column an image of 40x40 pixels row by row,
and its `label_int` [1, n] the digit.
"""

import pathlib
import warnings

import numpy as np
import scipy.io

from scae_jax.data.dataset import EvalDataset, Split

SIDE = 40  # pixels
CLASS_NAMES = tuple(str(digit) for digit in range(10))
_STRUCT = "affNISTdata"


def load_affnist(folder: str) -> EvalDataset:
  """The set `affnist`, [n, 40, 40, 1], of the official test files in a folder."""
  paths = find_batches(folder)
  batches = [read_batch(path) for path in paths]
  images = np.concatenate([batch.images for batch in batches])
  labels = np.concatenate([batch.labels for batch in batches])
  notes = [f"official affNIST: {len(images):,} images of {len(paths)} file(s) in {folder}."]
  # Digits are on average taller than wide. Files in MATLAB's own order, column by column, would be
  # read as digits mirrored at the diagonal.
  if _spread(images.sum(axis=(2, 3))) < _spread(images.sum(axis=(1, 3))):
    images = images.transpose(0, 2, 1, 3)
    notes.append("affNIST's images lay on their sides, column by column, and were set upright.")
  path = str(pathlib.Path(folder).expanduser().absolute())
  return EvalDataset(
    "affnist", CLASS_NAMES, {"test": Split(images, labels)}, tuple(notes), path=path
  )


def find_batches(folder: str) -> list[pathlib.Path]:
  """The test files in a folder or its subfolder `transformed`, as in the archives, in order.

  They are `test_batches/1.mat`, ..., else `1.mat`, ..., else `test.mat`. Raises ValueError if there
  are none or a number is missing.
  """
  root = pathlib.Path(folder).expanduser()
  for parent in (root, root / "transformed"):
    for subfolder in (parent / "test_batches", parent):
      path_by_number = {
        int(path.stem): path for path in subfolder.glob("[1-9]*.mat") if path.stem.isdecimal()
      }
      if missing := set(range(1, max(path_by_number, default=0))) - set(path_by_number):
        raise ValueError(
          f"affNIST's test files in {str(subfolder)!r} end with {max(path_by_number)}.mat, and"
          f" {min(missing)}.mat is missing; unpack or download it again"
        )
      if path_by_number:
        return [path_by_number[number] for number in sorted(path_by_number)]
    if (parent / "test.mat").is_file():
      return [parent / "test.mat"]
  raise ValueError(
    "expected affNIST's test files (test_batches/1.mat, ..., 1.mat, ..., or test.mat) in "
    f"{str(root)!r}, got none; correct config.data.affnist_dir, or "
    "leave it empty to draw the same distribution from MNIST's test digits, as affine_mnist"
  )


def read_batch(path: pathlib.Path) -> Split:
  """Images uint8 [n, 40, 40, 1], read row by row, and labels int32 [n]; ValueError if damaged."""
  try:
    with warnings.catch_warnings():
      warnings.simplefilter("error")
      content = scipy.io.loadmat(path, variable_names=[_STRUCT])
  except Exception as error:  # SciPy raises any type for damaged files, NameError and warnings too
    raise ValueError(
      f"expected a whole MATLAB file (version 5 to 7.2) of affNIST, got {path}, which cannot be "
      f"read ({type(error).__name__}: {error}); unpack or download it again"
    ) from error
  record = np.asarray(content.get(_STRUCT))
  names = (record.dtype.names or ()) if record.size == 1 else ()
  fields = (record[name].item() if name in names else None for name in ("image", "label_int"))
  images, labels = map(np.asarray, fields)
  labels = labels.ravel()
  is_number = labels.dtype.kind in "uif"
  non_digits = [label for label in labels.tolist() if not (is_number and label in range(10))]
  if (
    non_digits
    or images.dtype != np.uint8
    or images.shape != (SIDE**2, len(labels))
    or not len(labels)
  ):
    raise ValueError(
      f"affNIST file {path}: expected a struct {_STRUCT!r} with 'image' uint8 [{SIDE**2}, n] and "
      f"'label_int', n digits, got 'image' {images.dtype} {list(images.shape)} and {len(labels)} "
      f"labels, {len(non_digits)} of which are no digits, as {non_digits[:1]}; use the files of "
      "affNIST's set 'transformed', 40x40 pixels"
    )
  return Split(images.T.reshape(-1, SIDE, SIDE, 1), labels.astype(np.int32))


def _spread(ink: np.ndarray) -> float:
  """Variance of the position of the ink [n, 40] about its mean, summed over images."""
  position, amount = np.arange(SIDE, dtype=np.float64), np.maximum(ink.sum(axis=1), 1)
  mean = ink @ position / amount
  return float(np.sum(ink @ np.square(position) / amount - np.square(mean)))
