"""Accuracy of several systems against the angle by which the test images are turned."""

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


def viewpoint(
  angles: np.ndarray,
  accuracy: Mapping[str, Mapping[str, np.ndarray]],
  chance: float,
  title: str = "",
) -> Figure:
  """Draws a panel for each way of training, a line for each system, the same colour in both.

  Args:
    angles: [n], degrees.
    accuracy: `{way of training: {system: [n] in [0, 1]}}`.
    chance: the accuracy of a guess, drawn as a dotted line.
    title: of the whole.

  Raises:
    ValueError: nothing to draw, or arrays that are not of one length.
  """
  angles = check_rank("angles", angles, "n")
  names = list(dict.fromkeys(name for lines in accuracy.values() for name in lines))
  if not names:
    raise ValueError("viewpoint needs the accuracies of at least one system, got none.")
  colours = dict(zip(names, palette(len(names)), strict=True))
  figure = new_figure(4.2 * len(accuracy) + 0.3, 3.9, title)
  grid = figure.subplots(1, len(accuracy), squeeze=False, sharey=True)[0]
  drawn = {}
  for axes, (way, lines) in zip(grid, accuracy.items(), strict=True):
    for name, values in lines.items():
      values = check_rank(name, values, "n")
      check_same_length(angles=angles, **{name: values})
      (drawn[name],) = axes.plot(
        angles, 100 * values, color=colours[name], lw=1.4, marker="o", ms=2.5
      )
    axes.axhline(100 * chance, color="0.5", lw=0.8, ls=":")
    axes.set_title(way, fontsize=LABEL_SIZE)
    axes.set_xlabel("test images turned by, degrees", fontsize=LABEL_SIZE)
    axes.set_ylim(0, 101)
    axes.tick_params(labelsize=SMALL_SIZE)
    axes.grid(alpha=0.25, lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
  grid[0].set_ylabel("accuracy, percent", fontsize=LABEL_SIZE)
  figure.legend(
    list(drawn.values()),
    list(drawn),
    loc="outside lower center",
    ncols=min(len(drawn), 4),
    fontsize=LABEL_SIZE,
    frameon=False,
  )
  return figure
