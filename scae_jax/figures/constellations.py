"""Scenes of points: which capsule won each point, and what the capsules voted for."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Polygon

from scae_jax.figures.style import GREY, NO_OBJECT, legend_below, new_figure, palette, row_label
from scae_jax.typing import Bool, Int, Num, typed

MAX_SCENES = 8
PRESENT = 0.5


def outline(corners: np.ndarray) -> np.ndarray:
  """Corners [c, 2] of a shape, in order around their mean."""
  x, y = (corners - corners.mean(axis=0, keepdims=True)).T
  return corners[np.argsort(np.arctan2(y, x), kind="stable")]


@typed
def constellations(
  points: Num[np.ndarray, "n p 2"],
  presence: Num[np.ndarray, "n p"],
  pattern: Int[np.ndarray, "n p"],
  capsule: Int[np.ndarray, "n p"],
  votes: Num[np.ndarray, "n k v 2"],
  vote_won: Bool[np.ndarray, "n k v"],
  capsule_presence: Num[np.ndarray, "n k"],
) -> Figure:
  """Draws, a column a scene, what the capsules found and which points belong together.

  Above, present points have the colour of the `capsule` that won them (a number outside [0, k)
  stands for none). The votes, where a capsule expects points, that won any present point are the
  corners of a shape, for each capsule that is present (above 0.5). Below, the points of a pattern
  are the corners of a grey one. Points are in [-1, 1]; the first 8 scenes are drawn.
  """
  shown = min(len(points), MAX_SCENES)
  num_capsules = capsule_presence.shape[1]
  colours = np.concatenate([palette(num_capsules), [NO_OBJECT]])
  is_capsule = (capsule >= 0) & (capsule < num_capsules)
  owner = np.where(is_capsule, capsule, num_capsules)

  figure = new_figure(1.5 * shown + 0.7, 3.9, "Constellations")
  grid = figure.subplots(2, shown, squeeze=False)
  row_label(grid[0, 0], "capsules")
  row_label(grid[1, 0], "truth")
  for i, (found, truth) in enumerate(grid.T):
    there = presence[i] > 0
    for k in range(num_capsules):
      if capsule_presence[i, k] > PRESENT and vote_won[i, k].any():
        _shape(found, votes[i, k][vote_won[i, k]], colours[k])
    _dots(found, points[i][there], colours[owner[i][there]])
    for index in np.unique(pattern[i][there]):
      _shape(truth, points[i][there & (pattern[i] == index)], np.full(3, 0.6))
    _dots(truth, points[i][there], np.full((int(there.sum()), 3), 0.2))
  for axes in grid.flat:
    # The same square for every scene, also where jitter puts a point outside.
    axes.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_color("0.8")

  seen = np.unique(owner[:shown][presence[:shown] > 0])
  names = [*(f"capsule {k}" for k in range(num_capsules)), "no capsule"]
  handles = [
    Line2D([], [], marker="o", ls="", color=tuple(colours[k]), label=names[k]) for k in seen
  ]
  handles.append(Line2D([], [], color=GREY, lw=1.0, label="votes of a present capsule"))
  legend_below(figure, handles, min(len(handles), max(2, shown)))
  return figure


def _shape(axes: Axes, corners: np.ndarray, colour: np.ndarray) -> None:
  look = {"facecolor": (*colour, 0.18), "edgecolor": (*colour, 0.9), "lw": 1.0, "zorder": 1}
  axes.add_patch(Polygon(outline(corners), **look))


def _dots(axes: Axes, points: np.ndarray, colours: np.ndarray) -> None:
  axes.scatter(*points.T, s=16, c=colours, edgecolors="white", linewidths=0.4, zorder=2)
