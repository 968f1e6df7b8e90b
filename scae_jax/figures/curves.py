"""Curves: training against the step, pose errors and accuracies against a motion of the image."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, MultipleLocator

from scae_jax.figures.style import (
  GREY,
  LABEL_SIZE,
  legend_below,
  new_figure,
  palette,
  panels,
  plain,
)
from scae_jax.typing import Num, typed

MAX_PANELS = 24
NUM_COLUMNS = 3
SPLITS = ("train", "validation", "test")
UNITS = {"translation": "pixels", "rotation": "degrees", "scaling": "factor"}
_ROWS = (
  "distance from the\nideal pose, pixels",
  "error / error of a pose\nthat does not move",
  "change of\npresence",
)
MAX_TICKS = 8  # angles that have room for a tick each
TICKS = 45.0  # degrees between ticks of more angles
Lines = Mapping[str, Mapping[str, Num[np.ndarray, " n"]]]


@typed
def training_curves(
  steps: Num[np.ndarray, " n"], values: Mapping[str, Num[np.ndarray, " n"]]
) -> Figure:
  """Draws each quantity in its own panel, since units differ.

  Values are NaN where a quantity was not measured. `train/x`, `validation/x` and `test/x` share the
  panel `x`. The first 24 panels are drawn.
  """
  by_quantity: dict[str, dict[str, np.ndarray]] = {}
  for name, curve in values.items():
    split, _, quantity = name.partition("/")
    if split not in SPLITS or not quantity:
      split, quantity = "", name
    by_quantity.setdefault(quantity, {})[split] = curve

  quantities = list(by_quantity.items())[:MAX_PANELS]
  columns = min(len(quantities), NUM_COLUMNS)
  rows = math.ceil(len(quantities) / columns)
  figure = new_figure(3.2 * columns + 0.3, 1.9 * rows + 0.7, "Training")
  grid = panels(figure, len(quantities), columns)
  blue, orange = palette(2)
  colours: dict[str, np.ndarray] = {"train": blue, "validation": orange, "test": orange, "": blue}
  lines = {}
  for i, (axes, (quantity, by_split)) in enumerate(zip(grid, quantities, strict=True)):
    for split, curve in by_split.items():
      measured = np.isfinite(curve)
      marker = "o" if measured.sum() == 1 else ""  # a line of one point is invisible
      style = {"lw": 1.2, "marker": marker, "ms": 3, "color": colours[split], "label": split}
      (lines[split],) = axes.plot(steps[measured], curve[measured], **style)
    axes.set_xlim(0, 1.03 * max(steps.max(initial=0), 1))  # the same in every panel
    axes.set_title(quantity)
    plain(axes)
    if i + columns >= len(quantities):  # nothing below
      axes.set_xlabel("step")
  if legend_lines := [lines[split] for split in SPLITS if split in lines]:
    legend_below(figure, legend_lines, len(legend_lines), fontsize=LABEL_SIZE)
  return figure


@typed
def equivariance(results: Mapping[str, Any], title: str = "") -> Figure:
  """Draws, for each family of motions, the error of poses and the change of presences.

  The rows are the mean distance of poses from the ideal ones, pixels (dashed: that of poses that do
  not move); the ratio of the two; and the mean change of presences (dotted: that between different
  examples).

  `results` are what `experiments.equivariance.measure_equivariance` returns. Families without any
  size are left out.
  """
  families = [family for family in UNITS if results.get(family)]
  figure = new_figure(3.0 * len(families) + 1.2, 6.4, title)
  grid = figure.subplots(len(_ROWS), len(families), squeeze=False, sharey="row", sharex="col")
  colours = dict(zip(results["present"], palette(len(results["present"])), strict=True))
  for family, (errors, ratios, presences) in zip(families, grid.T, strict=True):
    sizes = np.array([entry["size"] for entry in results[family]])
    for kind, colour in colours.items():
      style = {"color": colour, "lw": 1.4, "marker": "o", "ms": 3.5}
      # None, for sizes that were not measured, becomes NaN.
      error, unmoved, change = (
        np.array([entry[kind][name] for entry in results[family]], float)
        for name in ("pose_error", "pose_unmoved", "presence_change")
      )
      errors.plot(sizes, error, label=kind, **style)
      errors.plot(sizes, unmoved, label=f"{kind} that do not move", **style | {"ls": "--", "lw": 1})
      moves = unmoved > 0  # without a motion there is no ratio
      ratios.plot(sizes[moves], error[moves] / unmoved[moves], **style)
      presences.plot(sizes, change, **style)
      between = results["present"][kind]["presence_between_examples"]
      label = f"{kind}, between examples"
      presences.axhline(between, color=colour, lw=1, ls=":", label=label)
    ratios.axhline(1.0, color=GREY, lw=1, ls="--")
    errors.set_title(family)
    if np.array_equal(sizes, np.round(sizes)):
      presences.xaxis.set_major_locator(MaxNLocator(integer=True))
    presences.set_xlabel(UNITS[family])
  for axes in grid.flat:
    axes.set_ylim(bottom=0)
    plain(axes)
  for axes, label in zip(grid[:, 0], _ROWS, strict=True):
    axes.set_ylabel(label)
  handles = [line for axes in grid[::2, 0] for line in axes.get_legend_handles_labels()[0]]
  legend_below(figure, handles, 3)
  return figure


@typed
def viewpoint(
  angles: Num[np.ndarray, " n"],
  accuracy: Lines,
  chance: float,
  title: str = "",
  *,
  across: str = "test images rotated by, degrees",
  num_columns: int = 0,
  baselines: Collection[str] = (),
  dashed: Collection[str] = (),
  marked: Collection[int] = (),
) -> Figure:
  """Draws accuracy by angle: a panel for each way of training, a line for each system.

  `accuracy` is `{way of training or of scoring: {system: shares in [0, 1]}}`; NaN leaves a gap. A
  system has the same colour in all panels. `baselines` are grey and dashed; systems in `dashed` are
  dashed in their colour. A dotted line is at `chance`, the accuracy of a guess, and a thin vertical
  one at each angle in `marked`. Up to 8 angles, in degrees, have a tick each; more have one every
  45 degrees. `num_columns` panels stand side by side, 0 for all.
  """
  names = list(dict.fromkeys(name for lines in accuracy.values() for name in lines))
  in_colour = [name for name in names if name not in baselines]
  colours = dict(zip(in_colour, palette(len(in_colour)), strict=True))
  num_columns = num_columns or len(accuracy)
  num_rows = -(-len(accuracy) // num_columns)
  figure = new_figure(4.2 * num_columns + 0.3, 3.3 * num_rows + 0.6, title)
  grid = panels(figure, len(accuracy), num_columns, sharey=True)
  drawn: dict[str, Artist] = {}
  for axes, (way, lines) in zip(grid, accuracy.items(), strict=True):
    for name, values in lines.items():
      is_dashed = name in dashed or name in baselines
      style = {"color": colours.get(name, "0.5"), "ls": "--" if is_dashed else "-", "label": name}
      (drawn[name],) = axes.plot(angles, 100 * values, **style, lw=1.4, marker="o", ms=2.5)
    axes.axhline(100 * chance, color="0.5", lw=0.8, ls=":")
    for angle in marked:
      axes.axvline(angle, color="0.7", lw=0.6, zorder=0)
    axes.set_title(way)
    axes.set_xlabel(across)
    axes.set_ylim(0, 101)
    if len(angles) <= MAX_TICKS:
      axes.set_xticks(angles)
    else:
      axes.xaxis.set_major_locator(MultipleLocator(TICKS))
    plain(axes)
  for axes in grid[::num_columns]:
    axes.set_ylabel("accuracy, percent")
  # Baselines last.
  handles = [drawn[name] for name in sorted(drawn, key=lambda name: name in baselines)]
  legend_below(figure, handles, min(len(handles), 4), fontsize=LABEL_SIZE)
  return figure
