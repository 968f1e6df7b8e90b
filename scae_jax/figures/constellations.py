"""Scenes of points: the capsule that won each point, and the votes of the capsules."""

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
  """Draws each scene in a column: above the points by winning capsule, below the true patterns.

  Above, a present point has the colour of the `capsule` that won it; a number outside [0, k) stands
  for none. A vote is where a capsule expects a point. For each present capsule (above 0.5), the
  votes that won a point are the corners of a shape. Below, the points of each pattern are the
  corners of a grey shape. Points are in [-1, 1]; the first 8 scenes are drawn.
  """
  num_scenes = min(len(points), MAX_SCENES)
  num_capsules = capsule_presence.shape[1]
  colours = np.concatenate([palette(num_capsules), [NO_OBJECT]])
  is_capsule = (capsule >= 0) & (capsule < num_capsules)
  winner = np.where(is_capsule, capsule, num_capsules)

  figure = new_figure(1.5 * num_scenes + 0.7, 3.9, "Constellations")
  grid = figure.subplots(2, num_scenes, squeeze=False)
  row_label(grid[0, 0], "capsules")
  row_label(grid[1, 0], "truth")
  for i, (above, below) in enumerate(grid.T):
    is_present = presence[i] > 0
    for k in range(num_capsules):
      if capsule_presence[i, k] > PRESENT and vote_won[i, k].any():
        _shape(above, votes[i, k][vote_won[i, k]], colours[k])
    _dots(above, points[i][is_present], colours[winner[i][is_present]])
    for index in np.unique(pattern[i][is_present]):
      _shape(below, points[i][is_present & (pattern[i] == index)], np.full(3, 0.6))
    _dots(below, points[i][is_present], np.full((int(is_present.sum()), 3), 0.2))
  for axes in grid.flat:
    # The same square for every scene, even if jitter moves a point out of it.
    axes.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_color("0.8")

  winners = np.unique(winner[:num_scenes][presence[:num_scenes] > 0])
  names = [*(f"capsule {k}" for k in range(num_capsules)), "no capsule"]
  handles = [
    Line2D([], [], marker="o", ls="", color=tuple(colours[k]), label=names[k]) for k in winners
  ]
  handles.append(Line2D([], [], color=GREY, lw=1.0, label="votes of a present capsule"))
  legend_below(figure, handles, min(len(handles), max(2, num_scenes)))
  return figure


def _shape(axes: Axes, corners: np.ndarray, colour: np.ndarray) -> None:
  style = {"facecolor": (*colour, 0.18), "edgecolor": (*colour, 0.9), "lw": 1.0, "zorder": 1}
  axes.add_patch(Polygon(outline(corners), **style))


def _dots(axes: Axes, points: np.ndarray, colours: np.ndarray) -> None:
  axes.scatter(*points.T, s=16, c=colours, edgecolors="white", linewidths=0.4, zorder=2)
