"""Whether the same part draws the same stroke when the image turns."""

import numpy as np
from matplotlib.figure import Figure

from scae_jax.figures.mosaic import middles, show_mosaic
from scae_jax.figures.reconstructions import colour_parts
from scae_jax.figures.style import GREY, SMALL_SIZE, check_rank, check_same_length, new_figure

MAX_EXAMPLES = 8


def part_identity(
  image: np.ndarray, part_mixing: np.ndarray, degrees: np.ndarray, source: str = ""
) -> Figure:
  """Draws an image turned by every angle, and below it its parts, each in a colour of its own.

  Smith et al. 2020, arXiv 2004.03553, figure 5. Where a stroke keeps its colour through a row, one
  part stands for it at every angle.

  Args:
    image: [n, r, h, w, c] in [0, 1]; the first 8 are drawn, a pair of rows each.
    part_mixing: [n, r, m, h, w], share of each part in each pixel times the brightness of what is
      drawn there.
    degrees: [r], counter-clockwise.
    source: which model they are of, for the title.

  Raises:
    ValueError: arrays of another rank, or whose lengths differ.
  """
  image = check_rank("image", image, "n r h w c")
  part_mixing = check_rank("part_mixing", part_mixing, "n r m h w")
  degrees = check_rank("degrees", degrees, "r")
  check_same_length(image=image, part_mixing=part_mixing)
  check_same_length(image=image[0], part_mixing=part_mixing[0], degrees=degrees)
  shown = min(len(image), MAX_EXAMPLES)
  num_angles, num_parts, height, width = part_mixing.shape[1:]
  width_in_inches = max(0.8 * num_angles + 0.8, 3.6)  # the title's at least
  title = f"The {num_parts} parts, each in its own colour" + (f"\n{source}" if source else "")
  height_in_inches = 1.65 * shown + (1.0 if source else 0.8)
  figure = new_figure(width_in_inches, height_in_inches, title)
  grid = figure.subplots(shown, 1, squeeze=False)[:, 0]
  for i, axes in enumerate(grid):
    parts = np.tile(np.arange(num_parts), (num_angles, 1))
    coloured = colour_parts(part_mixing[i], parts, num_parts)
    show_mosaic(axes, np.stack([in_colour(image[i]), coloured]))
    axes.set_yticks(middles(2, height), ["image", "parts"])
    if i == 0:
      labels = [f"{angle:g}\N{DEGREE SIGN}" for angle in degrees]
      axes.set_xticks(middles(num_angles, width), labels)
      axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=SMALL_SIZE, labelcolor=GREY, pad=3)
  return figure


def in_colour(pictures: np.ndarray) -> np.ndarray:
  """Pictures [n, h, w, c] with three channels: those of three as they are, others as their mean."""
  if pictures.shape[-1] == 3:
    return pictures
  return np.repeat(pictures.mean(axis=-1, keepdims=True), 3, axis=-1)
