"""The templates of the part capsules."""

import math

import numpy as np
from matplotlib.figure import Figure

from scae_jax.figures.style import (
  LABEL_SIZE,
  SMALL_SIZE,
  check_rank,
  check_same_length,
  new_figure,
  row_label,
  show_picture,
)

MAX_TEMPLATES = 64
NUM_COLUMNS = 10


def templates(templates: np.ndarray, alphas: np.ndarray | None = None) -> Figure:
  """Draws every template, with its alpha channel and their product below it.

  Where it is transparent a template is of no consequence, and may be noise.

  Args:
    templates: [m, t, t, c] in [0, 1]; the first 64 are drawn.
    alphas: [m, t, t, 1] in [0, 1], how opaque each pixel of a template is; None when the model has
      none.

  Raises:
    ValueError: arrays of another rank, or not one alpha a template.
  """
  templates = check_rank("templates", templates, "m t t c")
  if alphas is not None:
    check_same_length(templates=templates, alphas=check_rank("alphas", alphas, "m t t 1"))
  num_parts = len(templates)
  shown = min(num_parts, MAX_TEMPLATES)
  kinds = [("template", templates)]
  if alphas is not None:
    kinds += [("alpha", alphas), ("\N{MULTIPLICATION SIGN} alpha", templates * alphas)]
  columns = min(shown, NUM_COLUMNS)
  rows = math.ceil(shown / columns) * len(kinds)
  title = f"Templates of the {num_parts} parts"
  if shown < num_parts:
    title += f" (first {shown})"
  figure = new_figure(0.85 * columns + 0.9, 0.9 * rows + 0.5, title)
  grid = figure.subplots(rows, columns, squeeze=False)
  for axes in grid.flat:
    axes.set_axis_off()
  for part in range(shown):
    for j, (kind, pictures) in enumerate(kinds):
      axes = grid[part // columns * len(kinds) + j, part % columns]
      axes.set_axis_on()
      show_picture(axes, pictures[part])
      if j == 0:
        axes.set_title(str(part), fontsize=SMALL_SIZE, pad=2)
      if part % columns == 0:
        row_label(axes, kind)
      if len(kinds) > 1 and j == len(kinds) - 1:
        axes.set_xlabel(" ", fontsize=LABEL_SIZE // 2)  # air between parts
  return figure
