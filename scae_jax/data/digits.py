"""scikit-learn's embedded handwritten digits: real data that needs no file and no network."""

import numpy as np

from scae_jax.data.dataset import Dataset, Split

NUM_TEST = 360


def load_digits() -> Dataset:
  """Loads the 1,797 digits of 8x8 pixels, upsampled to 16x16.

  They are the test part of the UCI set 'Optical Recognition of Handwritten Digits', values 0 to 16,
  here 0 to 255. The first 1,437 are for training and the last 360 for testing, in scikit-learn's
  order, which goes by writer: part of the test is by hands that training never saw, and it is
  harder than a random split. k-means finds 74 % of it, and about 80 % of a random one.

  Returns:
    Images uint8 [n, 16, 16, 1], ten classes.
  """
  # Imported here because it takes a second that the other sources need not spend.
  from sklearn import datasets

  raw_images, labels = datasets.load_digits(return_X_y=True)
  images = upsample_twice(np.asarray(raw_images).astype(np.int64).reshape(-1, 8, 8), maximum=16)
  labels = np.asarray(labels).astype(np.int32)
  train, test = slice(0, -NUM_TEST), slice(-NUM_TEST, None)
  splits = {"train": Split(images[train], labels[train]), "test": Split(images[test], labels[test])}
  return Dataset("digits", tuple(str(digit) for digit in range(10)), splits)


def upsample_twice(images: np.ndarray, maximum: int) -> np.ndarray:
  """Doubles height and width bilinearly (half-pixel centres, edges repeated).

  In integers, rounded to nearest once at the end: the same on every machine and NumPy.

  Args:
    images: int64 [n, h, w], values in [0, maximum].
    maximum: the value that becomes 255.

  Returns:
    uint8 [n, 2h, 2w, 1].
  """
  rows, columns = (_doubling(side) for side in images.shape[1:])
  sixteenths = rows @ images @ columns.T  # Each axis has brought a factor of 4.
  scale = 16 * maximum
  return ((sixteenths * 255 + scale // 2) // scale).astype(np.uint8)[..., None]


def _doubling(side: int) -> np.ndarray:
  """Four times the linear weights [2 side, side] at -1/4 and +1/4 pixel around each sample."""
  own = np.repeat(np.arange(side), 2)
  other = np.clip(own + np.tile([-1, 1], side), 0, side - 1)
  return 3 * np.eye(side, dtype=np.int64)[own] + np.eye(side, dtype=np.int64)[other]
