"""Affine motions of images on the host: draws them as affNIST does, and applies them.

A map is a matrix [2, 3] that takes a column (x, y, 1) in pixels of an image to pixels of a canvas:
x to the right, y down, pixel centres at whole numbers. Images have a black background; pixels that
are not black are ink.
"""

import math

import numpy as np
from scipy import ndimage

# Of affNIST (Tieleman 2013): https://www.cs.toronto.edu/~tijmen/affNIST
MAX_DEGREES = 20.0
MAX_SHEAR = 0.2
SCALES = (0.8, 1.2)
MAX_DRAWS = 100  # of an image's map, after which its ink counts as too large for the canvas


def rotation(degrees: np.ndarray) -> np.ndarray:
  """Rotations [n, 2, 2] by angles [n] in degrees, counter-clockwise as the picture is seen.

  The sign is that of `math.geometry.rotation`; that of the rotation in a pose's six numbers
  is the opposite.
  """
  cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
  return np.stack([np.stack([cos, sin], axis=-1), np.stack([-sin, cos], axis=-1)], axis=-2)


def place(
  linear: np.ndarray, shifts: np.ndarray, image_shape: tuple[int, ...], canvas: int
) -> np.ndarray:
  """Maps [n, 2, 3] that move an image about its middle and put it in the middle of the canvas.

  The linear maps [n, 2, 2] are applied first, then the shifts [n, 2], pixels to the right and down.
  The rest of an odd margin lies below and to the right, as in `augmentation.centre_on_canvas`.
  """
  size = np.array([image_shape[1], image_shape[0]])
  middle = (size - 1) / 2
  placed = (canvas - size) // 2 + middle
  offsets = shifts + placed - linear @ middle
  return np.concatenate([linear, offsets[..., None]], axis=-1)


def draw_affine(images: np.ndarray, canvas: int, seed: int) -> tuple[np.ndarray, int]:
  """Draws a map for every image [n, h, w, c] from affNIST's distribution.

  Returns maps float64 [n, 2, 3], and the number of images whose first map did not fit. A map
  rotates, then stretches along x and y, then shears x by y, as a pose does. Rotation is uniform
  within 20 degrees, the scale of each axis from 0.8 to 1.2, shear within 0.2, and the shift over
  those that keep all ink on the canvas. If no shift does, the map is drawn again; ValueError after
  a hundred draws. The result depends on the arguments alone: `RandomState`'s stream never changes.
  """
  generator = np.random.RandomState(seed)
  maps, undrawn = np.zeros((len(images), 2, 3)), np.arange(len(images))
  num_redrawn = 0
  for attempt in range(MAX_DRAWS):
    # Numbers are drawn for all images, so that an image's map does not depend on the others.
    shares = generator.uniform(size=(len(images), 6))[undrawn]
    scales = SCALES[0] + (SCALES[1] - SCALES[0]) * shares[:, :2]
    degrees, shear = MAX_DEGREES * (2 * shares[:, 2] - 1), MAX_SHEAR * (2 * shares[:, 3] - 1)
    stretch = scales[:, :, None] * np.eye(2)
    stretch[:, 0, 1] = shear * scales[:, 1]
    candidates = np.concatenate(
      [stretch @ rotation(degrees), np.zeros((len(undrawn), 2, 1))], axis=-1
    )
    low, high = _ink_range(images[undrawn], candidates)
    min_shift, max_shift = -1 - low, canvas - high
    fits = np.all(min_shift <= max_shift, axis=1)
    candidates[..., 2] = min_shift + shares[:, 4:] * (max_shift - min_shift)
    maps[undrawn[fits]] = candidates[fits]
    undrawn = undrawn[~fits]
    if attempt == 0:
      num_redrawn = len(undrawn)
    if not len(undrawn):
      return maps, num_redrawn
  raise ValueError(
    f"expected a canvas that holds every image when it is turned, sheared and stretched, got "
    f"{canvas} pixels, on which image {undrawn[0]} ({len(undrawn)} such) did not fit in "
    f"{MAX_DRAWS} draws; use images with a black margin, or a model with a larger data.canvas"
  )


def keeps_ink(images: np.ndarray, maps: np.ndarray, canvas: int) -> np.ndarray:
  """Tells which images [n, h, w, c] keep all ink on the canvas under their maps: bool [n].

  True is certain. False may be wrong if the ink fits by less than a pixel.
  """
  low, high = _ink_range(images, maps)
  # Rounding errors of the map are not a loss.
  return np.all((low >= -1 - 1e-9) & (high <= canvas + 1e-9), axis=1)


def lost_ink(images: np.ndarray, maps: np.ndarray, canvas: int) -> np.ndarray:
  """Share [n] of each image's ink, the sum of its pixels, that is drawn off the canvas."""
  lost, cut_rows = np.zeros(len(images)), np.flatnonzero(~keeps_ink(images, maps, canvas))
  if not len(cut_rows):
    return lost
  low, high = _ink_range(images[cut_rows], maps[cut_rows])
  margin = math.ceil(max(np.max(-1 - low), np.max(high - canvas)))
  drawn = resample(images[cut_rows], maps[cut_rows] + np.array([0, 0, margin]), canvas + 2 * margin)
  inside = drawn[:, margin : margin + canvas, margin : margin + canvas]
  total, kept = (np.sum(ink, axis=(1, 2, 3), dtype=np.float64) for ink in (drawn, inside))
  lost[cut_rows] = (total - kept) / np.maximum(total, 1.0)
  return lost


def resample(images: np.ndarray, maps: np.ndarray, canvas: int) -> np.ndarray:
  """Draws each image on a canvas under its invertible map, bilinearly and black outside: uint8.

  Canvas pixel q has the image's value at map^-1 q, rounded to a whole number. Beyond its outermost
  pixel centres an image falls to black linearly within one pixel, as templates do
  (`scae_jax.math.warping`). A shift by whole pixels is exact.
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
  """The open interval of x and y, low and high [n, 2], that each image's ink takes on the canvas.

  A pixel is drawn up to one pixel from its centre. An image without ink counts as a single pixel in
  the middle.
  """
  height, width = images.shape[1:3]
  low, high = np.zeros((len(images), 2)), np.zeros((len(images), 2))
  for i, (image, image_map) in enumerate(zip(images, maps, strict=True)):
    rows, columns = np.nonzero(image.any(axis=-1))
    if not len(rows):
      rows, columns = np.array([height // 2]), np.array([width // 2])
    positions = image_map[:, :2] @ np.stack([columns, rows]) + image_map[:, 2:]
    reach = np.abs(image_map[:, :2]).sum(axis=1)
    low[i], high[i] = positions.min(axis=1) - reach, positions.max(axis=1) + reach
  return low, high
