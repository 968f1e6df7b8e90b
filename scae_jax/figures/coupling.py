"""Coupling coefficients: the share of each child that each parent gets, by routing iteration."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from scae_jax.figures.names import Names, written
from scae_jax.figures.style import GREY, new_figure, show_picture
from scae_jax.typing import Num, typed

MAX_ROWS = 64
MAX_WRITTEN_PARENTS = 20  # with more, names would run into each other
MAX_WIDTH = 14.0  # inches, of all maps together
MIN_SHARE = 1e-12  # least weight: all children weigh the same for a parent that gets nothing
MIN_RANGE = 0.1  # of an even share: the least difference with full colour


@typed
def coupling(
  image: Num[np.ndarray, "h w c"],
  coupling: Num[np.ndarray, "i n k"],
  agreement: Num[np.ndarray, "i n k"],
  class_names: Sequence[str] = (),
) -> Figure:
  """Draws the coupling coefficients of one image, a heat map for each iteration of routing.

  `coupling` is the share of each of n children that each of k parents gets; the shares of a child
  sum to one. White is an even share, red is more, blue less. More than 64 children are averaged in
  groups of neighbours. `agreement` is that of each child's vote with each parent, a scalar product
  or a log density. Bars show each parent's mean agreement, weighted by its shares; the largest is
  dark. If a mean is negative, all bars start below the least one. Parents have numbers if
  `class_names` is (). Raises ValueError unless there are as many names as parents.
  """
  iterations, num_children, num_parents = coupling.shape
  names = written(class_names or [str(k) for k in range(num_parents)])
  if len(names.texts) != num_parents:
    raise ValueError(
      f"expected a name for each of {num_parents} parents, got {len(names.texts)} names."
    )
  rows = mean_of_groups(coupling)
  # The colours are symmetric about an even share, and reach the share furthest from it.
  even = 1 / num_parents
  furthest = max(float(np.abs(rows - even).max()), MIN_RANGE * even)
  ends = max(even - furthest, 0.0), even, even + furthest
  scale = TwoSlopeNorm(vmin=ends[0], vcenter=ends[1], vmax=ends[2])
  side = min(float(np.clip(0.19 * num_parents, 1.6, 5.0)), MAX_WIDTH / iterations)
  figure = new_figure(
    side * iterations + 3.2, 4.3 + names.length, "Coupling of children with parents"
  )
  widths = (1.5, *[side] * iterations)
  grid = figure.add_gridspec(2, iterations + 1, height_ratios=(3.4, 1), width_ratios=widths)
  show_picture(figure.add_subplot(grid[0, 0]), image)
  maps = [figure.add_subplot(grid[0, i + 1]) for i in range(iterations)]
  for i, axes in enumerate(maps):
    axes.imshow(rows[i], cmap="RdBu_r", norm=scale, aspect="auto", interpolation="nearest")
    axes.set_title(f"iteration {i + 1}")
    axes.set(xticks=[], yticks=[])
  group_size, remainder = divmod(num_children, rows.shape[1])
  grouped = (
    f", {'about ' if remainder else ''}{group_size} a row" if num_children > rows.shape[1] else ""
  )
  maps[0].set_ylabel(f"{num_children:,} child capsules{grouped}")
  bar = figure.colorbar(maps[-1].images[0], ax=maps, pad=0.015, fraction=0.05, aspect=30)
  least, middle, most = (f"{end:.2g}" for end in ends)
  bar.set_ticks(ends, labels=[least, f"{middle}\neven", most])
  bar.set_label("share of a child")

  bars = figure.add_subplot(grid[1, 1])
  bars.set_ylabel("weighted\nagreement")
  weights = np.maximum(coupling, MIN_SHARE)
  means = np.sum(weights * agreement, axis=1) / np.sum(weights, axis=1)
  # Zero has no meaning for log densities: bars from it would be longest for the least density.
  bottom = min(0.0, 1.1 * means.min())
  _draw_agreement(bars, means[0], bottom, names)
  for i in range(1, iterations):
    axes = figure.add_subplot(grid[1, i + 1], sharey=bars)
    _draw_agreement(axes, means[i], bottom, names)
    axes.tick_params(left=False, labelleft=False)
  return figure


def mean_of_groups(coupling: np.ndarray) -> np.ndarray:
  """Averages [i, n, k] over consecutive groups of n, the larger ones first: [i, min(n, 64), k]."""
  groups = np.array_split(coupling, min(coupling.shape[1], MAX_ROWS), axis=1)
  return np.stack([group.mean(axis=1) for group in groups], axis=1)


def _draw_agreement(axes: Axes, means: np.ndarray, bottom: float, names: Names) -> None:
  """Bars of [k] that stand on `bottom`; the largest is dark."""
  colours = np.where(means == means.max(), "0.2", "0.7")
  axes.bar(range(len(means)), means - bottom, bottom=bottom, color=colours)
  axes.axhline(bottom, color=GREY, lw=0.6)
  axes.set_xlim(-0.5, len(means) - 0.5)
  step = -(-len(names.texts) // MAX_WRITTEN_PARENTS)
  axes.set_xticks(range(0, len(names.texts), step), names.texts[::step], family=names.fonts)
  if max(map(len, names.texts)) > 2:
    axes.tick_params(axis="x", rotation=90)
  axes.set_xlabel("parent capsule")
  axes.spines[["top", "right"]].set_visible(False)
