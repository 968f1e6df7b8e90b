"""Features in two dimensions, coloured by class."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from scae_jax.figures.style import (
  LABEL_SIZE,
  SMALL_SIZE,
  TITLE_SIZE,
  bare,
  check_rank,
  check_same_length,
  new_figure,
  palette,
)

MAX_LEGEND = 30


def embedding(
  points: np.ndarray, labels: np.ndarray, class_names: Sequence[str], title: str = ""
) -> Figure:
  """Scatters points that were embedded in the plane, as by t-SNE.

  Args:
    points: [n, 2]; only distances mean anything, so the axes bear no numbers.
    labels: int [n] in [0, len(class_names)), the colour of each point.
    class_names: a name a class; the first 30 stand in the legend.
    title: what was embedded.

  Raises:
    ValueError: arrays of another rank, or not of one length.
  """
  points = check_rank("points", points, "n 2")
  labels = check_rank("labels", labels, "n")
  check_same_length(points=points, labels=labels)
  colours = palette(len(class_names))
  figure = new_figure(6.4, 5.2)
  axes = figure.add_subplot()
  # One collection in the order of the examples: by class, the last class would hide the others.
  axes.scatter(points[:, 0], points[:, 1], s=9, c=colours[labels], alpha=0.8, linewidths=0)
  axes.set_title(title or "Embedding", fontsize=TITLE_SIZE)
  bare(axes)
  axes.set_aspect("equal", adjustable="datalim")
  shown = range(min(len(class_names), MAX_LEGEND))
  figure.legend(
    handles=[
      Line2D([], [], marker="o", ls="", ms=5, color=colours[i], label=class_names[i]) for i in shown
    ],
    loc="outside right center",
    fontsize=LABEL_SIZE if len(shown) <= 15 else SMALL_SIZE,
    frameon=False,
    handletextpad=0.2,
  )
  return figure
