"""Inputs beside what the parts and the objects make of them."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from scae_jax.figures.style import (
  GREY,
  LABEL_SIZE,
  NO_OBJECT,
  SMALL_SIZE,
  check_rank,
  check_same_length,
  new_figure,
  palette,
  row_label,
  show_picture,
)

MAX_EXAMPLES = 10
MAX_OBJECTS = 5
LEGEND_ROWS = 4


def colour_parts(part_mixing: np.ndarray, part_winner: np.ndarray, num_objects: int) -> np.ndarray:
  """Gives each pixel the colour of the object that won the part it belongs to.

  Args:
    part_mixing: [n, m, h, w] share of each part in each pixel times the pixel's brightness,
      in [0, 1].
    part_winner: int [n, m] in [0, num_objects), the object that won each part; any other number
      stands for no object, and is drawn in grey.
    num_objects: objects there are.

  Returns:
    [n, h, w, 3] in [0, 1]; a pixel shared by several parts gets the mean of their colours.
  """
  colours = np.concatenate([palette(num_objects), [NO_OBJECT]])
  is_object = (part_winner >= 0) & (part_winner < num_objects)
  colour_of_part = colours[np.where(is_object, part_winner, num_objects)]
  return np.einsum("nmhw,nmc->nhwc", part_mixing, colour_of_part).clip(0.0, 1.0)


def reconstructions(
  image: np.ndarray,
  bottom_up: np.ndarray,
  top_down: np.ndarray,
  part_mixing: np.ndarray,
  part_winner: np.ndarray,
  object_presence: np.ndarray,
) -> Figure:
  """Draws, a column an example, the target, both reconstructions, and whose the parts are.

  An object has one colour in all columns. Those that win the most take the first colours, which are
  the easiest to tell apart, and come first in the legend, which is read along its rows.

  Args:
    image: [n, h, w, c] in [0, 1]; the first 10 are drawn.
    bottom_up: [n, h, w, c] from the poses of the parts as the encoder sees them.
    top_down: [n, h, w, c] from the poses that the objects predict.
    part_mixing: [n, m, h, w] share of each part in each pixel times the pixel's brightness.
    part_winner: int [n, m], the object that won each part.
    object_presence: [n, k] in [0, 1]; gives the number of objects.

  Raises:
    ValueError: arrays of another rank, or not of one length.
  """
  image = check_rank("image", image, "n h w c")
  bottom_up = check_rank("bottom_up", bottom_up, "n h w c")
  top_down = check_rank("top_down", top_down, "n h w c")
  part_mixing = check_rank("part_mixing", part_mixing, "n m h w")
  part_winner = check_rank("part_winner", part_winner, "n m")
  object_presence = check_rank("object_presence", object_presence, "n k")
  check_same_length(
    image=image,
    bottom_up=bottom_up,
    top_down=top_down,
    part_mixing=part_mixing,
    part_winner=part_winner,
    object_presence=object_presence,
  )
  shown = min(len(image), MAX_EXAMPLES)
  num_objects = object_presence.shape[1]
  part_mixing, part_winner = part_mixing[:shown], part_winner[:shown]
  winners = _by_use(part_mixing, part_winner, num_objects)
  rank = np.full(part_winner.shape, -1)
  for i, k in enumerate(winners):
    rank[part_winner == k] = i
  coloured = colour_parts(part_mixing, rank, len(winners))
  rows = [
    ("target", image),
    ("from parts", bottom_up),
    ("from objects", top_down),
    ("parts by\nobject", coloured),
  ]
  columns = max(2, shown - 2)
  handles = _legend(winners, bool((part_mixing[rank < 0] > 0).any()), LEGEND_ROWS * columns)
  columns = min(len(handles), columns)
  legend_rows = -(-len(handles) // max(1, columns))
  height = 0.98 * len(rows) + 0.6 + 0.2 * legend_rows
  figure = new_figure(0.95 * shown + 1.2, height, "Reconstructions")
  grid = figure.subplots(len(rows), shown, squeeze=False)
  for i, (label, pictures) in enumerate(rows):
    row_label(grid[i, 0], label)
    for j in range(shown):
      show_picture(grid[i, j], pictures[j])

  if handles:
    figure.legend(
      # Matplotlib fills columns, the longer ones first; so taken, they are in order along the rows.
      handles=[handle for i in range(columns) for handle in handles[i::columns]],
      loc="outside lower center",
      ncols=columns,
      fontsize=SMALL_SIZE,
      frameon=False,
      handlelength=1.0,
    )
  return figure


def object_reconstructions(
  image: np.ndarray, object_reconstruction: np.ndarray, object_presence: np.ndarray
) -> Figure:
  """Draws, a row an example, the target and what its most present objects make by themselves.

  Args:
    image: [n, h, w, c] in [0, 1]; the first 10 are drawn.
    object_reconstruction: [n, k, h, w, c] in [0, 1].
    object_presence: [n, k] in [0, 1]; the 5 most present of each example are drawn, the most
      present first, with their number and presence.

  Raises:
    ValueError: arrays of another rank, or not of one length.
  """
  image = check_rank("image", image, "n h w c")
  object_reconstruction = check_rank("object_reconstruction", object_reconstruction, "n k h w c")
  object_presence = check_rank("object_presence", object_presence, "n k")
  check_same_length(
    image=image, object_reconstruction=object_reconstruction, object_presence=object_presence
  )
  shown = min(len(image), MAX_EXAMPLES)
  num_objects = min(object_presence.shape[1], MAX_OBJECTS)
  ranked = np.argsort(-object_presence, axis=1, kind="stable")[:, :num_objects]
  title = "Objects by themselves, most present first"
  figure = new_figure(1.15 * (num_objects + 1) + 0.3, 1.28 * shown + 0.5, title)
  grid = figure.subplots(shown, num_objects + 1, squeeze=False)
  for i in range(shown):
    show_picture(grid[i, 0], image[i])
    for rank, k in enumerate(ranked[i], start=1):
      axes = grid[i, rank]
      show_picture(axes, object_reconstruction[i, k])
      axes.set_xlabel(
        f"object {k}: {object_presence[i, k]:.2f}", fontsize=SMALL_SIZE, labelpad=2, color=GREY
      )
  grid[0, 0].set_title("target", fontsize=LABEL_SIZE, color=GREY)
  return figure


def _by_use(part_mixing: np.ndarray, part_winner: np.ndarray, num_objects: int) -> np.ndarray:
  """Numbers of the objects that can be seen, the one with the most brightness first."""
  ink = part_mixing.sum(axis=(2, 3))  # [n, m]
  won = np.array([ink[part_winner == k].sum() for k in range(num_objects)])
  order = np.argsort(-won, kind="stable")
  return order[won[order] > 0]


def _legend(winners: np.ndarray, has_no_object: bool, most: int) -> list[Patch]:
  """At most so many entries: objects in order, how many others there are, and grey last."""
  last = [Patch(color=NO_OBJECT, label="no object")] if has_no_object else []
  free = most - len(last)
  named = winners if len(winners) <= free else winners[: free - 1]
  colours = palette(len(winners))
  handles = [Patch(color=tuple(colours[i]), label=f"object {k}") for i, k in enumerate(named)]
  if others := len(winners) - len(named):
    handles.append(Patch(facecolor="none", label=f"and {others} others"))
  return handles + last
