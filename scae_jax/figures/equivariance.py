"""How poses follow when the image is moved, by size of the motion."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from scae_jax.figures.style import (
  GREY,
  LABEL_SIZE,
  SMALL_SIZE,
  check_rank,
  check_same_length,
  new_figure,
  palette,
)

UNITS = {"translation": "pixels", "rotation": "degrees", "scaling": "factor"}
_ROWS = {
  "error": "distance from the\nideal pose, pixels",
  "ratio": "error / error of a pose\nthat does not move",
  "presence_change": "change of\npresence",
}


def equivariance(
  curves: Mapping[str, Mapping[str, np.ndarray]], between: Mapping[str, float], title: str = ""
) -> Figure:
  """Draws, for each family of motions, the error of poses and the change of presences.

  Three rows: the mean distance of poses from where they should be, in pixels, with that of poses
  that do not move dashed; the ratio of the two; and the mean change of presences, with that between
  different examples dotted.

  Args:
    curves: by family, each `size` [n] and for each kind of capsule `<kind>/error`,
      `<kind>/unmoved` and `<kind>/presence_change`, [n]; NaN where nothing was measured.
    between: by kind, the mean absolute difference of presences between examples.
    title: what was measured.

  Raises:
    ValueError: no family, or arrays that are not of one length.
  """
  if not curves:
    raise ValueError("equivariance needs at least one family of motions, got none.")
  for family in curves.values():
    ranked = {name: check_rank(name, values, "n") for name, values in family.items()}
    check_same_length(**ranked)
  figure = new_figure(3.0 * len(curves) + 1.2, 6.4, title)
  grid = figure.subplots(len(_ROWS), len(curves), squeeze=False, sharey="row", sharex="col")
  colours = dict(zip(between, palette(len(between)), strict=True))
  for column, (family, values) in enumerate(curves.items()):
    sizes, (errors, ratios, presences) = values["size"], grid[:, column]
    for kind, colour in colours.items():
      look = {"color": colour, "lw": 1.4, "marker": "o", "ms": 3.5}
      error, unmoved = values[f"{kind}/error"], values[f"{kind}/unmoved"]
      errors.plot(sizes, error, label=kind, **look)
      errors.plot(sizes, unmoved, label=f"{kind} that do not move", **look | {"ls": "--", "lw": 1})
      moves = unmoved > 0  # without a motion there is no ratio
      ratios.plot(sizes[moves], error[moves] / unmoved[moves], **look)
      presences.plot(sizes, values[f"{kind}/presence_change"], **look)
      label = f"{kind}, between examples"
      presences.axhline(between[kind], color=colour, lw=1, ls=":", label=label)
    ratios.axhline(1.0, color=GREY, lw=1, ls="--")
    errors.set_title(family, fontsize=LABEL_SIZE)
    if np.array_equal(sizes, np.round(sizes)):
      presences.xaxis.set_major_locator(MaxNLocator(integer=True))
    presences.set_xlabel(UNITS.get(family, "size"), fontsize=LABEL_SIZE)
  for axes in grid.flat:
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=SMALL_SIZE)
    axes.grid(alpha=0.25, lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
  for axes, label in zip(grid[:, 0], _ROWS.values(), strict=True):
    axes.set_ylabel(label, fontsize=LABEL_SIZE)
  handles = [line for axes in grid[::2, 0] for line in axes.get_legend_handles_labels()[0]]
  figure.legend(
    handles=handles,
    loc="outside lower center",
    ncols=3,
    fontsize=SMALL_SIZE,
    frameon=False,
  )
  return figure
