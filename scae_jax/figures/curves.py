"""What was measured while training, against the step."""

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from scae_jax.figures.style import (
  LABEL_SIZE,
  SMALL_SIZE,
  check_rank,
  check_same_length,
  new_figure,
  palette,
)

MAX_PANELS = 24
NUM_COLUMNS = 3
SPLITS = ("train", "validation", "test")


def training_curves(steps: np.ndarray, values: Mapping[str, np.ndarray]) -> Figure:
  """Draws each quantity in its own panel, because each has its own unit.

  Args:
    steps: [n], training steps.
    values: `{name: [n]}`; NaN where a quantity was not measured. `train/x`, `validation/x` and
      `test/x` share the panel `x`. The first 24 panels are drawn.

  Raises:
    ValueError: no quantity, or arrays that are not of one length.
  """
  steps = check_rank("steps", steps, "n")
  if not values:
    raise ValueError("training_curves needs at least one quantity, got none.")
  curves = {name: check_rank(name, values[name], "n") for name in values}
  check_same_length(steps=steps, **curves)
  panels: dict[str, dict[str, np.ndarray]] = {}
  for name, curve in curves.items():
    split, _, quantity = name.partition("/")
    if split not in SPLITS or not quantity:
      split, quantity = "", name
    panels.setdefault(quantity, {})[split] = curve

  shown = list(panels.items())[:MAX_PANELS]
  columns = min(len(shown), NUM_COLUMNS)
  rows = math.ceil(len(shown) / columns)
  figure = new_figure(3.2 * columns + 0.3, 1.9 * rows + 0.7, "Training")
  grid = figure.subplots(rows, columns, squeeze=False)
  for axes in list(grid.flat)[len(shown) :]:
    axes.set_visible(False)
  blue, orange = palette(2)
  colours: dict[str, np.ndarray] = {"train": blue, "validation": orange, "test": orange, "": blue}
  lines = {}
  for i, (quantity, by_split) in enumerate(shown):
    axes = grid.flat[i]
    for split, curve in by_split.items():
      measured = np.isfinite(curve)
      marker = "o" if measured.sum() == 1 else ""  # a line of one point would not be seen
      (lines[split],) = axes.plot(
        steps[measured], curve[measured], lw=1.2, marker=marker, ms=3, color=colours[split]
      )
    axes.set_xlim(0, 1.03 * max(steps.max(initial=0), 1))  # the same in every panel
    axes.set_title(quantity, fontsize=LABEL_SIZE)
    axes.tick_params(labelsize=SMALL_SIZE)
    axes.grid(alpha=0.25, lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if i + columns >= len(shown):  # nothing below
      axes.set_xlabel("step", fontsize=LABEL_SIZE)
  named = {split: lines[split] for split in SPLITS if split in lines}
  if named:
    figure.legend(
      list(named.values()),
      list(named),
      loc="outside lower center",
      ncols=len(named),
      fontsize=LABEL_SIZE,
      frameon=False,
    )
  return figure
