"""Many small pictures of one size in one: a table of pictures with lines between them."""

import numpy as np
from matplotlib.axes import Axes

from scae_jax.figures.style import show_picture

GAP = 1  # pixels between pictures
GAP_BRIGHTNESS = 0.35


def show_mosaic(axes: Axes, pictures: np.ndarray) -> None:
  """Draws a table of pictures [rows, columns, h, w, c] in [0, 1], without axes."""
  show_picture(axes, mosaic(pictures))
  axes.images[0].set_interpolation("auto")  # pictures are not a whole number of dots a pixel


def middles(count: int, side: int) -> np.ndarray:
  """Where the middles of `count` pictures of that side lie in a mosaic, pixels, for ticks."""
  return np.arange(count) * (side + GAP) + GAP + (side - 1) / 2


def mosaic(pictures: np.ndarray) -> np.ndarray:
  """One picture of a table of pictures [rows, columns, h, w, c], with grey lines around each."""
  framed = np.pad(
    np.clip(pictures, 0.0, 1.0),
    ((0, 0), (0, 0), (GAP, 0), (GAP, 0), (0, 0)),
    constant_values=GAP_BRIGHTNESS,
  )
  rows, columns, height, width, channels = framed.shape
  table = framed.transpose(0, 2, 1, 3, 4).reshape(rows * height, columns * width, channels)
  return np.pad(table, ((0, GAP), (0, GAP), (0, 0)), constant_values=GAP_BRIGHTNESS)
