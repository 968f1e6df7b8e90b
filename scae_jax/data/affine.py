"""Affine motions of images on the host: drawn as affNIST's are, and carried out.

A map here is a matrix [2, 3] that takes a column (x, y, 1) in pixels of an image to pixels of a
canvas: x to the right, y down, pixel centres at whole numbers. Images have a black background;
whatever is not black is ink.
"""

import dataclasses
import math

import numpy as np

__all__ = [
  "Drawn",
  "affine_linear",
  "draw_affine",
  "keeps_ink",
  "lost_ink",
  "place",
  "resample",
  "rotation",
]

# Of affNIST (Tieleman 2013): https://www.cs.toronto.edu/~tijmen/affNIST
MAX_DEGREES = 20.0
MAX_SHEAR = 0.2
SCALES = (0.8, 1.2)
MAX_DRAWS = 100  # of one image's map, before it counts as one that cannot fit
_CHUNK = 500  # images at once: bounds the memory


@dataclasses.dataclass(frozen=True, eq=False)
class Drawn:
  """Maps drawn for some images.

  Attributes:
    maps: float64 [n, 2, 3], image pixels to canvas pixels.
    num_redrawn: images whose first map would not have fitted on the canvas.
  """

  maps: np.ndarray
  num_redrawn: int


def rotation(degrees: np.ndarray) -> np.ndarray:
  """Rotations [n, 2, 2] by angles [n] in degrees, counter-clockwise as one sees the picture.

  So do Pillow, SciPy and torchvision. The rotation of a pose (`scae_jax.geometry`) has the opposite
  sign, because its y runs down too.
  """
  cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
  return np.stack([np.stack([cos, sin], axis=-1), np.stack([-sin, cos], axis=-1)], axis=-2)


def affine_linear(
  scale_x: np.ndarray, scale_y: np.ndarray, degrees: np.ndarray, shear: np.ndarray
) -> np.ndarray:
  """Linear maps [n, 2, 2] that turn first, then stretch along x and y, then shear x by y.

  It is the order of a pose, see `scae_jax.geometry.affine_matrix`. A shear of 1 leans an upright
  line by 45 degrees.

  Args:
    scale_x: [n].
    scale_y: [n].
    degrees: [n], as for `rotation`.
    shear: [n].
  """
  rows = [[scale_x, shear * scale_y], [np.zeros_like(scale_x), scale_y]]
  stretch = np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)
  return stretch @ rotation(degrees)


def place(
  linear: np.ndarray, shifts: np.ndarray, image_shape: tuple[int, ...], canvas: int
) -> np.ndarray:
  """Maps that act about the middle of an image, which then lies where batches put it.

  Args:
    linear: [n, 2, 2].
    shifts: [n, 2], pixels to the right and down, after the linear map.
    image_shape: height and width first, pixels.
    canvas: side of the canvas, pixels. An odd margin goes below and to the right, as in
      `scae_jax.data.canvas.pad_to_canvas`.

  Returns:
    float64 [n, 2, 3].
  """
  size = np.array([image_shape[1], image_shape[0]])
  middle = (size - 1) / 2
  placed = (canvas - size) // 2 + middle
  offsets = shifts + placed - linear @ middle
  return np.concatenate([linear, offsets[..., None]], axis=-1)


def draw_affine(images: np.ndarray, canvas: int, seed: int) -> Drawn:
  """Draws a map for every image from affNIST's distribution.

  Rotation uniform within 20 degrees, shear within 0.2, scale of each axis from 0.8 to 1.2; the
  shift uniform over all at which every bit of ink stays on the canvas. Where the canvas is too
  small for the ink under a map, that map is drawn again, so that a small canvas has fewer of the
  large ones.

  A fixed function of its arguments: NumPy promises never to change the stream of `RandomState`.

  Args:
    images: uint8 [n, h, w, c].
    canvas: side of the canvas, pixels.
    seed: of the choice.

  Raises:
    ValueError: the ink of an image does not fit on the canvas in a hundred draws.
  """
  generator = np.random.RandomState(seed)
  maps, waiting = np.zeros((len(images), 2, 3)), np.arange(len(images))
  num_redrawn = 0
  for attempt in range(MAX_DRAWS):
    # For all images each time: an image's map does not depend on the luck of the others.
    shares = generator.uniform(size=(len(images), 6))[waiting]
    first, last = SCALES
    linear = affine_linear(
      first + (last - first) * shares[:, 0],
      first + (last - first) * shares[:, 1],
      MAX_DEGREES * (2 * shares[:, 2] - 1),
      MAX_SHEAR * (2 * shares[:, 3] - 1),
    )
    no_shift = np.zeros((len(waiting), 2, 1))
    low, high = _ink_range(images[waiting], np.concatenate([linear, no_shift], axis=-1))
    least, most = -1 - low, canvas - high
    fits = np.all(least <= most, axis=1)
    shifts = least + shares[:, 4:] * (most - least)
    maps[waiting[fits]] = np.concatenate([linear, shifts[..., None]], axis=-1)[fits]
    waiting = waiting[~fits]
    if attempt == 0:
      num_redrawn = len(waiting)
    if not len(waiting):
      return Drawn(maps, num_redrawn)
  raise ValueError(
    f"expected a canvas that holds every image when it is turned, sheared and stretched, got "
    f"{canvas} pixels, on which image {waiting[0]} ({len(waiting)} such) did not fit in "
    f"{MAX_DRAWS} draws; use images with a black margin, or a model with a larger data.canvas"
  )


def keeps_ink(images: np.ndarray, maps: np.ndarray, canvas: int) -> np.ndarray:
  """Tells of which images all ink stays on the canvas: bool [n].

  An image that is said to keep its ink loses none; of the others some lose none either, by less
  than a pixel.

  Args:
    images: uint8 [n, h, w, c].
    maps: [n, 2, 3], image pixels to canvas pixels.
    canvas: side, pixels.
  """
  low, high = _ink_range(images, maps)
  # What is no more than rounding of the map is not a loss.
  return np.all((low >= -1 - 1e-9) & (high <= canvas + 1e-9), axis=1)


def lost_ink(images: np.ndarray, maps: np.ndarray, canvas: int) -> np.ndarray:
  """Share of every image's ink, the sum of its pixels, that is drawn off the canvas: float64 [n].

  Of an image that is said to keep its ink, and of one without any, it is 0.

  Args:
    images: uint8 [n, h, w, c].
    maps: [n, 2, 3], image pixels to canvas pixels, invertible.
    canvas: side, pixels.
  """
  lost, cut = np.zeros(len(images)), np.flatnonzero(~keeps_ink(images, maps, canvas))
  if not len(cut):
    return lost
  low, high = _ink_range(images[cut], maps[cut])
  margin = math.ceil(max(np.max(-1 - low), np.max(high - canvas)))
  for start in range(0, len(cut), _CHUNK):
    rows = cut[start : start + _CHUNK]
    wider = maps[rows] + np.array([0, 0, margin])
    drawn = resample(images[rows], wider, canvas + 2 * margin)
    total = np.sum(drawn, axis=(1, 2, 3), dtype=np.float64)
    inside = drawn[:, margin : margin + canvas, margin : margin + canvas]
    kept = np.sum(inside, axis=(1, 2, 3), dtype=np.float64)
    lost[rows] = (total - kept) / np.maximum(total, 1.0)
  return lost


def resample(images: np.ndarray, maps: np.ndarray, canvas: int) -> np.ndarray:
  """Draws every image on a canvas as its map says, bilinearly and black outside.

  Canvas pixel q has the image's value at map^-1 q, rounded to a whole number. Within one pixel of
  its outermost pixel centres an image falls to black linearly, as templates do
  (`scae_jax.warping`); a map by whole pixels is exact.

  Args:
    images: uint8 [n, h, w, c].
    maps: [n, 2, 3], image pixels to canvas pixels, invertible.
    canvas: side, pixels.

  Returns:
    uint8 [n, canvas, canvas, c].
  """
  num_images, _, _, channels = images.shape
  drawn = np.zeros((num_images, canvas, canvas, channels), np.uint8)
  for start in range(0, num_images, _CHUNK):
    rows = slice(start, start + _CHUNK)
    drawn[rows] = _resample(images[rows], maps[rows], canvas)
  return drawn


def _resample(images: np.ndarray, maps: np.ndarray, canvas: int) -> np.ndarray:
  num_images, height, width, channels = images.shape
  row, column = np.divmod(np.arange(canvas * canvas), canvas)
  pixels = np.stack([column, row])
  x, y = np.moveaxis(np.linalg.inv(maps[:, :, :2]) @ (pixels - maps[:, :, 2:]), 1, 0)
  # One ring of black, and a second one at the far end for positions that are clipped there.
  padded = np.pad(images, ((0, 0), (1, 2), (1, 2), (0, 0)))
  x, y = np.clip(x, -1, width) + 1, np.clip(y, -1, height) + 1
  left, top = x.astype(int), y.astype(int)
  right, down = (x - left)[..., None], (y - top)[..., None]
  example = np.arange(num_images)[:, None]
  upper = (1 - right) * padded[example, top, left] + right * padded[example, top, left + 1]
  lower = (1 - right) * padded[example, top + 1, left] + right * padded[example, top + 1, left + 1]
  values = np.rint((1 - down) * upper + down * lower).astype(np.uint8)
  return values.reshape(num_images, canvas, canvas, channels)


def _ink_range(images: np.ndarray, maps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Open interval of x and y in which each image's ink lies on the canvas: low and high, [n, 2].

  A pixel is drawn as far as one pixel from its centre. An image without ink counts as one with a
  single pixel in the middle.
  """
  height, width = images.shape[1:3]
  y, x = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
  points = np.stack([x, y]).reshape(2, -1)
  low, high = np.zeros((len(images), 2)), np.zeros((len(images), 2))
  for start in range(0, len(images), _CHUNK):
    rows = slice(start, start + _CHUNK)
    light = images[rows].max(axis=3).reshape(-1, height * width)
    light[light.max(axis=1) == 0, (height // 2) * width + width // 2] = 1
    ink = (light > 0)[:, None]
    where = maps[rows, :, :2] @ points + maps[rows, :, 2:]
    reach = np.abs(maps[rows, :, :2]).sum(axis=2)
    low[rows] = np.where(ink, where, np.inf).min(axis=2) - reach
    high[rows] = np.where(ink, where, -np.inf).max(axis=2) + reach
  return low, high
