"""What each dimension of a capsule stands for: reconstructions of perturbed capsules."""

import math

import numpy as np
from matplotlib.figure import Figure

from scae_jax.figures.mosaic import middles, show_mosaic
from scae_jax.figures.style import GREY, LABEL_SIZE, SMALL_SIZE, check_rank, new_figure

MAX_EXAMPLES = 6
MAX_DIMENSIONS = 16
MAX_COLUMNS = 3


def capsule_dimensions(perturbed: np.ndarray, offsets: np.ndarray) -> Figure:
  """Draws a block an example: a row a dimension of its capsule, a column an offset added to it.

  Sabour et al. 2017, figure 4.

  Args:
    perturbed: [n, d, s, h, w, c] in [0, 1], reconstructions; the first 6 examples and the first 16
      dimensions are drawn.
    offsets: [s], what was added to the dimension.

  Raises:
    ValueError: arrays of another rank, or not one offset a column.
  """
  perturbed = check_rank("perturbed", perturbed, "n d s h w c")
  offsets = check_rank("offsets", offsets, "s")
  if perturbed.shape[2] != len(offsets):
    raise ValueError(
      f"'perturbed' {perturbed.shape} must have one picture an offset on axis 2, got {len(offsets)}"
      " offsets."
    )
  perturbed = perturbed[:MAX_EXAMPLES, :MAX_DIMENSIONS]
  shown, num_dimensions, num_offsets, height, width, _ = perturbed.shape
  rows = math.ceil(shown / MAX_COLUMNS)
  columns = math.ceil(shown / rows)
  figure = new_figure(
    0.27 * num_offsets * columns + 0.9,
    0.27 * height / width * num_dimensions * rows + 0.55 * rows + 0.5,
    "Capsules with one dimension changed",
  )
  grid = figure.subplots(rows, columns, squeeze=False)
  for axes in grid.flat[shown:]:
    axes.set_visible(False)
  # Of the columns, ticks at both ends and in between.
  across, down = middles(num_offsets, width), middles(num_dimensions, height)
  ticked = sorted({0, (num_offsets - 1) // 2, num_offsets - 1})
  for i, axes in enumerate(grid.flat[:shown]):
    show_mosaic(axes, perturbed[i])
    axes.set_xticks(across[ticked], [f"{offsets[s]:+.2f}" for s in ticked])
    axes.set_yticks(down, [str(d) for d in range(num_dimensions)])
    axes.tick_params(length=0, labelsize=SMALL_SIZE, labelcolor=GREY, pad=2)
    if i % columns == 0:
      axes.set_ylabel("dimension", fontsize=LABEL_SIZE, color=GREY)
    if i + columns >= shown:  # nothing below
      axes.set_xlabel("offset", fontsize=LABEL_SIZE, color=GREY)
  return figure
