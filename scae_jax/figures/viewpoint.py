"""Accuracy of several systems against an angle: of the test images, or of those of training."""

from collections.abc import Collection, Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from scae_jax.figures.style import (
  LABEL_SIZE,
  SMALL_SIZE,
  check_rank,
  check_same_length,
  new_figure,
  palette,
)

MAX_TICKS = 8  # as many angles as have room for a tick each
TICKS = 45.0  # degrees, of more angles than that


def viewpoint(
  angles: np.ndarray,
  accuracy: Mapping[str, Mapping[str, np.ndarray]],
  chance: float,
  title: str = "",
  *,
  across: str = "test images turned by, degrees",
  num_columns: int = 0,
  baselines: Collection[str] = (),
  dashed: Collection[str] = (),
  marked: Collection[float] = (),
) -> Figure:
  """Draws a panel for each way of training, a line for each system, the same colour in all.

  Up to 8 angles have a tick each; of more there is one every 45 degrees.

  Args:
    angles: [n], degrees.
    accuracy: `{way of training or of scoring: {system: [n] in [0, 1]}}`; NaN leaves a gap.
    chance: the accuracy of a guess, drawn as a dotted line.
    title: of the whole.
    across: what the angles are of.
    num_columns: panels side by side; 0 is all.
    baselines: names of systems whose lines are grey and dashed.
    dashed: names of others whose lines are dashed, such as those scored in another way.
    marked: angles at which a thin line stands.

  Raises:
    ValueError: nothing to draw, or arrays that are not of one length.
  """
  angles = check_rank("angles", angles, "n")
  names = list(dict.fromkeys(name for lines in accuracy.values() for name in lines))
  if not names:
    raise ValueError("viewpoint needs the accuracies of at least one system, got none.")
  in_colour = [name for name in names if name not in baselines]
  colours = dict(zip(in_colour, palette(len(in_colour)), strict=True))
  num_columns = num_columns or len(accuracy)
  num_rows = -(-len(accuracy) // num_columns)
  figure = new_figure(4.2 * num_columns + 0.3, 3.3 * num_rows + 0.6, title)
  grid = figure.subplots(num_rows, num_columns, squeeze=False, sharey=True)
  drawn = {}
  for axes in grid.flat[len(accuracy) :]:
    axes.set_visible(False)
  for axes, (way, lines) in zip(grid.flat, accuracy.items(), strict=False):
    for name, values in lines.items():
      values = check_rank(name, values, "n")
      check_same_length(angles=angles, **{name: values})
      look = {
        "color": colours.get(name, "0.5"),
        "ls": "--" if name in dashed or name in baselines else "-",
      }
      (drawn[name],) = axes.plot(angles, 100 * values, **look, lw=1.4, marker="o", ms=2.5)
    axes.axhline(100 * chance, color="0.5", lw=0.8, ls=":")
    for angle in marked:
      axes.axvline(angle, color="0.7", lw=0.6, zorder=0)
    axes.set_title(way, fontsize=LABEL_SIZE)
    axes.set_xlabel(across, fontsize=LABEL_SIZE)
    axes.set_ylim(0, 101)
    if len(angles) <= MAX_TICKS:
      axes.set_xticks(angles)
    else:
      axes.xaxis.set_major_locator(MultipleLocator(TICKS))
    axes.tick_params(labelsize=SMALL_SIZE)
    axes.grid(alpha=0.25, lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
  for axes in grid[:, 0]:
    axes.set_ylabel("accuracy, percent", fontsize=LABEL_SIZE)
  drawn = dict(sorted(drawn.items(), key=lambda entry: entry[0] in baselines))  # those at last
  figure.legend(
    list(drawn.values()),
    list(drawn),
    loc="outside lower center",
    ncols=min(len(drawn), 4),
    fontsize=LABEL_SIZE,
    frameon=False,
  )
  return figure
