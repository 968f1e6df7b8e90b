"""Affine motions of images on the host: drawn as affNIST's are, and carried out.

A map here is a matrix [2, 3] that takes a column (x, y, 1) in pixels of an image to pixels of a
canvas: x to the right, y down, pixel centres at whole numbers. Images have a black background;
whatever is not black is ink.
"""

import math

import numpy as np
from scipy import ndimage

# Of affNIST (Tieleman 2013): https://www.cs.toronto.edu/~tijmen/affNIST
MAX_DEGREES = 20.0
MAX_SHEAR = 0.2
SCALES = (0.8, 1.2)
MAX_DRAWS = 100  # of one image's map, before it counts as one that cannot fit


def rotation(degrees: np.ndarray) -> np.ndarray:
  """Rotations [n, 2, 2] by angles [n] in degrees, counter-clockwise as one sees the picture.

  So does `math.geometry.rotation`; the rotation in a pose's six numbers has the opposite sign.
  """
  cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
  return np.stack([np.stack([cos, sin], axis=-1), np.stack([-sin, cos], axis=-1)], axis=-2)


def place(
  linear: np.ndarray, shifts: np.ndarray, image_shape: tuple[int, ...], canvas: int
) -> np.ndarray:
  """Maps [n, 2, 3] that act about the middle of an image, which then lies where batches put it.

  First come the linear maps [n, 2, 2], then the shifts [n, 2], pixels to the right and down. The
  canvas has an odd margin below and to the right, as in `augmentation.centre_on_canvas`.
  """
  size = np.array([image_shape[1], image_shape[0]])
  middle = (size - 1) / 2
  placed = (canvas - size) // 2 + middle
  offsets = shifts + placed - linear @ middle
  return np.concatenate([linear, offsets[..., None]], axis=-1)


def draw_affine(images: np.ndarray, canvas: int, seed: int) -> tuple[np.ndarray, int]:
  """Draws a map for every image [n, h, w, c] from affNIST's distribution.

  Returns maps float64 [n, 2, 3], and the number of images whose first map would not have fitted.
  A map rotates, then stretches along x and y, then shears x by y, as a pose does. Rotation is
  uniform within 20 degrees, the scale of each axis from 0.8 to 1.2, shear within 0.2, the shift
  over those that keep all ink on the canvas. A map whose ink does not fit the canvas is drawn
  again; ValueError after a hundred draws. A fixed function: the stream of `RandomState` never
  changes.
  """
  generator = np.random.RandomState(seed)
  maps, waiting = np.zeros((len(images), 2, 3)), np.arange(len(images))
  num_redrawn = 0
  for attempt in range(MAX_DRAWS):
    # For all images each time: an image's map does not depend on the luck of the others.
    shares = generator.uniform(size=(len(images), 6))[waiting]
    scales = SCALES[0] + (SCALES[1] - SCALES[0]) * shares[:, :2]
    degrees, shear = MAX_DEGREES * (2 * shares[:, 2] - 1), MAX_SHEAR * (2 * shares[:, 3] - 1)
    stretch = scales[:, :, None] * np.eye(2)
    stretch[:, 0, 1] = shear * scales[:, 1]
    drawn = np.concatenate([stretch @ rotation(degrees), np.zeros((len(waiting), 2, 1))], axis=-1)
    low, high = _ink_range(images[waiting], drawn)
    least, most = -1 - low, canvas - high
    fits = np.all(least <= most, axis=1)
    drawn[..., 2] = least + shares[:, 4:] * (most - least)
    maps[waiting[fits]] = drawn[fits]
    waiting = waiting[~fits]
    if attempt == 0:
      num_redrawn = len(waiting)
    if not len(waiting):
      return maps, num_redrawn
  raise ValueError(
    f"expected a canvas that holds every image when it is turned, sheared and stretched, got "
    f"{canvas} pixels, on which image {waiting[0]} ({len(waiting)} such) did not fit in "
    f"{MAX_DRAWS} draws; use images with a black margin, or a model with a larger data.canvas"
  )


def keeps_ink(images: np.ndarray, maps: np.ndarray, canvas: int) -> np.ndarray:
  """Whether all ink of each image [n, h, w, c] stays on the canvas under its map: bool [n].

  True is certain. False may be wrong where the ink fits by less than a pixel.
  """
  low, high = _ink_range(images, maps)
  # What is no more than rounding of the map is not a loss.
  return np.all((low >= -1 - 1e-9) & (high <= canvas + 1e-9), axis=1)


def lost_ink(images: np.ndarray, maps: np.ndarray, canvas: int) -> np.ndarray:
  """Share of every image's ink, the sum of its pixels, that is drawn off the canvas, [n]."""
  lost, cut = np.zeros(len(images)), np.flatnonzero(~keeps_ink(images, maps, canvas))
  if not len(cut):
    return lost
  low, high = _ink_range(images[cut], maps[cut])
  margin = math.ceil(max(np.max(-1 - low), np.max(high - canvas)))
  drawn = resample(images[cut], maps[cut] + np.array([0, 0, margin]), canvas + 2 * margin)
  inside = drawn[:, margin : margin + canvas, margin : margin + canvas]
  total, kept = (np.sum(each, axis=(1, 2, 3), dtype=np.float64) for each in (drawn, inside))
  lost[cut] = (total - kept) / np.maximum(total, 1.0)
  return lost


def resample(images: np.ndarray, maps: np.ndarray, canvas: int) -> np.ndarray:
  """Draws every image on a canvas as its invertible map says, bilinearly and black outside: uint8.

  Canvas pixel q has the image's value at map^-1 q, rounded to a whole number. Within one pixel of
  its outermost pixel centres an image falls to black linearly, as templates do
  (`scae_jax.math.warping`); a map by whole pixels is exact.
  """
  inverse = np.linalg.inv(maps[:, :, :2])[:, ::-1, ::-1]  # SciPy counts rows first
  offsets = -(inverse @ maps[:, ::-1, 2:])[..., 0]
  drawn = np.zeros((len(images), canvas, canvas, images.shape[3]), np.uint8)
  for image, matrix, offset, result in zip(images, inverse, offsets, drawn, strict=True):
    for channel in range(images.shape[3]):
      values, size = image[..., channel].astype(float), (canvas, canvas)
      moved = ndimage.affine_transform(values, matrix, offset, size, order=1, mode="grid-constant")
      result[..., channel] = np.rint(moved)
  return drawn


def _ink_range(images: np.ndarray, maps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Open interval of x and y in which each image's ink lies on the canvas: low and high, [n, 2].

  A pixel is drawn as far as one pixel from its centre. An image without ink counts as one with a
  single pixel in the middle.
  """
  height, width = images.shape[1:3]
  low, high = np.zeros((len(images), 2)), np.zeros((len(images), 2))
  for i, (image, one) in enumerate(zip(images, maps, strict=True)):
    rows, columns = np.nonzero(image.any(axis=-1))
    if not len(rows):
      rows, columns = np.array([height // 2]), np.array([width // 2])
    where = one[:, :2] @ np.stack([columns, rows]) + one[:, 2:]
    reach = np.abs(one[:, :2]).sum(axis=1)
    low[i], high[i] = where.min(axis=1) - reach, where.max(axis=1) + reach
  return low, high
