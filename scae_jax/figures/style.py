"""Shared by all figures: sizes, fonts, colours, and how an array becomes a picture.

Figures are made without pyplot: they keep no global state and can be drawn in any thread.
"""

import colorsys
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

DPI = 130
TITLE_SIZE = 11
LABEL_SIZE = 9
SMALL_SIZE = 7
# Settings of `report_figures.png`; other sizes are set where they are used.
STYLE: dict[Any, Any] = {  # matplotlib's keys
  "font.size": SMALL_SIZE,
  "axes.labelsize": LABEL_SIZE,
  "axes.titlesize": LABEL_SIZE,
  "figure.titlesize": TITLE_SIZE,
  "text.parse_math": False,  # classes may have a $ in their names
}
GREY = "0.35"  # of secondary text
# Colours that are distinct on black and on white. None is grey, which stands for no object. Ten
# were chosen by eye; each of the others is far, in Oklab, from all before it.
_CHOSEN = """
  #3f8fe0 #ff8c1a #3dbb4f #f24b4b #9b6bf0 #b5794a #f272c8 #d9bf00
  #1fc4cf #8fae1b #0000ff #ea00ff #8c3157 #00ff00 #b9ffb2 #6a00ff
  #9800a6 #d9b2ff #5e468c #ffb2b2 #d5ff00 #008c69 #ff0095 #aa00ff
"""
NO_OBJECT = (0.5, 0.5, 0.5)
_GOLDEN_RATIO = 0.6180339887498949


def new_figure(width: float, height: float, title: str = "") -> Figure:
  """A white figure of `width` x `height` inches whose layout makes room for labels."""
  figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
  if title:
    figure.suptitle(title)
  return figure


def panels(figure: Figure, count: int, columns: int, **options: Any) -> list[Axes]:
  """`count` axes in rows of `columns`; `options` are those of `Figure.subplots`."""
  grid = figure.subplots(math.ceil(count / columns), columns, squeeze=False, **options)
  for axes in grid.flat[count:]:
    axes.set_visible(False)
  return list(grid.flat[:count])


def palette(num_colours: int) -> np.ndarray:
  """Distinct colours, float [num_colours, 3] in [0, 1]; colour i is the same for every length.

  After the 24 fixed colours, hues advance by the golden ratio, alternately light and dark.
  """
  colours = [to_rgb(colour) for colour in _CHOSEN.split()[:num_colours]]
  for i in range(len(colours), num_colours):
    hue = (i * _GOLDEN_RATIO) % 1.0
    saturation, value = ((0.55, 1.0), (0.95, 0.75), (0.35, 0.9))[i % 3]
    colours.append(colorsys.hsv_to_rgb(hue, saturation, value))
  return np.asarray(colours, np.float64).reshape(num_colours, 3)


def show_picture(axes: Axes, picture: np.ndarray) -> None:
  """Draws [h, w] or [h, w, c] in [0, 1], clipped, without axes: black is 0, white is 1.

  Three channels are red, green and blue; any other number of channels is averaged to grey.
  """
  picture = np.clip(np.asarray(picture, np.float32), 0.0, 1.0)
  if picture.ndim == 3 and picture.shape[-1] != 3:
    picture = picture.mean(axis=-1)
  axes.imshow(picture, cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest")
  bare(axes)


def bare(axes: Axes) -> None:
  """Removes ticks and frame, and leaves room for a label."""
  axes.set(xticks=[], yticks=[])
  axes.spines[:].set_visible(False)


def plain(axes: Axes) -> None:
  """Style of axes with curves or bars: a light grid, a frame on two sides."""
  axes.grid(alpha=0.25, lw=0.6)
  axes.spines[["top", "right"]].set_visible(False)


def row_label(axes: Axes, text: str) -> None:
  """Writes `text` upright, to the left of the first picture of a row."""
  axes.set_ylabel(text, rotation=0, ha="right", va="center", labelpad=6, color=GREY)


def legend_below(figure: Figure, handles: Sequence[Artist], columns: int, **options: Any) -> None:
  """A legend without a frame below all axes; `options` are those of `Figure.legend`."""
  place = {"loc": "outside lower center", "ncols": columns, "frameon": False}
  figure.legend(handles=handles, **place, **options)
