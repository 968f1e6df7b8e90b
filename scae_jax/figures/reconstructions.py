"""Templates, and images beside their reconstructions."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from scae_jax.figures.style import (
  GREY,
  LABEL_SIZE,
  NO_OBJECT,
  SMALL_SIZE,
  legend_below,
  new_figure,
  palette,
  row_label,
  show_picture,
)
from scae_jax.typing import Int, Num, typed

MAX_EXAMPLES = 10
MAX_OBJECTS = 5
LEGEND_ROWS = 4
MAX_TEMPLATES = 64
TEMPLATES_A_ROW = 10
WRONG = "#d1242f"  # of an answer that is not the label
_ARROW = "\N{RIGHTWARDS ARROW}"


@typed
def templates(
  templates: Num[np.ndarray, "m t t c"], alphas: Num[np.ndarray, "m t t 1"] | None = None
) -> Figure:
  """Draws the first 64 templates; below them their alpha channels, if any, and the products.

  Where a template is transparent it has no effect, and may be noise.
  """
  num_parts = len(templates)
  num_shown = min(num_parts, MAX_TEMPLATES)
  kinds = [("template", templates)]
  if alphas is not None:
    kinds += [("alpha", alphas), ("\N{MULTIPLICATION SIGN} alpha", templates * alphas)]
  columns = min(num_shown, TEMPLATES_A_ROW)
  rows = math.ceil(num_shown / columns) * len(kinds)
  title = f"Templates of the {num_parts} parts"
  if num_shown < num_parts:
    title += f" (first {num_shown})"
  figure = new_figure(0.85 * columns + 0.9, 0.9 * rows + 0.5, title)
  grid = figure.subplots(rows, columns, squeeze=False)
  for axes in grid.flat:
    axes.set_axis_off()
  for part in range(num_shown):
    for j, (kind, pictures) in enumerate(kinds):
      axes = grid[part // columns * len(kinds) + j, part % columns]
      axes.set_axis_on()
      show_picture(axes, pictures[part])
      if j == 0:
        axes.set_title(str(part), fontsize=SMALL_SIZE, pad=2)
      if part % columns == 0:
        row_label(axes, kind)
      if len(kinds) > 1 and j == len(kinds) - 1:
        axes.set_xlabel(" ", fontsize=LABEL_SIZE // 2)  # space between parts
  return figure


@typed
def reconstructions(
  image: Num[np.ndarray, "n h w c"],
  bottom_up: Num[np.ndarray, "n h w c"],
  top_down: Num[np.ndarray, "n h w c"],
  part_mixing: Num[np.ndarray, "n m h w"],
  part_winner: Int[np.ndarray, "n m"],
  object_presence: Num[np.ndarray, "n k"],
) -> Figure:
  """Draws each example in a column: target, both reconstructions, and its parts by winning object.

  An object has one colour in all columns; those that win the most ink come first. The first 10
  examples are drawn. `bottom_up` is drawn from the part poses that the encoder infers, `top_down`
  from those that the objects predict. `part_mixing` and `part_winner` are as in `colour_parts`;
  `object_presence` only gives the number of objects.
  """
  num_shown = min(len(image), MAX_EXAMPLES)
  part_mixing, part_winner = part_mixing[:num_shown], part_winner[:num_shown]
  winners = _objects_by_ink(part_mixing, part_winner, object_presence.shape[1])
  rank = np.full(part_winner.shape, -1)
  for i, k in enumerate(winners):
    rank[part_winner == k] = i
  coloured = colour_parts(part_mixing, rank, len(winners))
  columns = max(2, num_shown - 2)
  handles = _legend(winners, bool((part_mixing[rank < 0] > 0).any()), LEGEND_ROWS * columns)
  columns = min(len(handles), columns)
  legend_rows = -(-len(handles) // max(1, columns))
  rows = {
    "target": image,
    "from parts": bottom_up,
    "from objects": top_down,
    "parts by\nobject": coloured,
  }
  height = 0.98 * len(rows) + 0.6 + 0.2 * legend_rows
  figure, _ = _show_rows(rows, "Reconstructions", height, margin=1.2)
  if handles:
    # Matplotlib fills column by column, the longer ones first; this order makes rows.
    in_rows = [handle for i in range(columns) for handle in handles[i::columns]]
    legend_below(figure, in_rows, columns, handlelength=1.0)
  return figure


@typed
def object_reconstructions(
  image: Num[np.ndarray, "n h w c"],
  object_reconstruction: Num[np.ndarray, "n k h w c"],
  object_presence: Num[np.ndarray, "n k"],
) -> Figure:
  """Draws each example in a row: the target, and what its 5 most present objects draw alone.

  The most present comes first; below each are its number and presence. The first 10 examples are
  drawn.
  """
  num_shown = min(len(image), MAX_EXAMPLES)
  num_objects = min(object_presence.shape[1], MAX_OBJECTS)
  ranked = np.argsort(-object_presence, axis=1, kind="stable")[:, :num_objects]
  title = "Objects by themselves, most present first"
  figure = new_figure(1.15 * (num_objects + 1) + 0.3, 1.28 * num_shown + 0.5, title)
  grid = figure.subplots(num_shown, num_objects + 1, squeeze=False)
  for i in range(num_shown):
    show_picture(grid[i, 0], image[i])
    for axes, k in zip(grid[i, 1:], ranked[i], strict=True):
      show_picture(axes, object_reconstruction[i, k])
      axes.set_xlabel(
        f"object {k}: {object_presence[i, k]:.2f}", fontsize=SMALL_SIZE, labelpad=2, color=GREY
      )
  grid[0, 0].set_title("target", color=GREY)
  return figure


@typed
def free_form(
  image: Num[np.ndarray, "n h w c"],
  before: Num[np.ndarray, "n h w c"],
  after: Num[np.ndarray, "n h w c"],
  bound_before: Num[np.ndarray, " n"],
  bound_after: Num[np.ndarray, " n"],
  title: str = "",
) -> Figure:
  """Draws each of the first 10 examples in a column, before and after free-form inference.

  Below the image are the reconstructions from its posteriors, with their bounds in nats.
  """
  rows = {"image": image, "before": before, "after": after}
  figure, grid = _show_rows(rows, title, 4.1, margin=1.0)
  for row, bounds in zip(grid[1:], (bound_before, bound_after), strict=True):
    for i, axes in enumerate(row):
      nats = f"{bounds[i]:.0f}" + (" nats" if i == 0 else "")
      axes.set_xlabel(nats, labelpad=3, color=GREY)
  return figure


@typed
def class_reconstructions(
  image: Num[np.ndarray, "n h w c"],
  reconstruction: Num[np.ndarray, "n h w c"],
  label: Int[np.ndarray, " n"],
  predicted: Int[np.ndarray, " n"],
) -> Figure:
  """Draws each of the first 10 examples in a column: image, reconstruction, label and answer.

  A wrong answer is red. `predicted` is the answer, whose capsule is decoded.
  """
  rows = {"image": image, "reconstruction": reconstruction}
  figure, grid = _show_rows(rows, f"Reconstructions: label {_ARROW} answer", 2.7)
  for axes, true_label, answer in zip(grid[1], label, predicted, strict=False):
    _write_answer(axes, str(true_label), str(answer), is_right=true_label == answer)
  return figure


@typed
def overlaid_reconstructions(
  image: Num[np.ndarray, "n h w c"],
  sources: Num[np.ndarray, "n 2 h w c"],
  reconstructions: Num[np.ndarray, "n 2 h w c"],
  label: Int[np.ndarray, "n 2"],
  predicted: Int[np.ndarray, "n 2"],
) -> Figure:
  """Draws each example in a column: an overlay of two images, its sources and its reconstructions.

  One source is red and the other green, and likewise the reconstructions from the capsules of the
  two answers. An answer in `predicted` that is one of the labels has the place of that label. The
  first 10 examples are drawn. Sabour et al. 2017, figure 5.
  """
  rows = {
    "overlay": image,
    "sources": red_and_green(sources),
    "reconstructions": red_and_green(reconstructions),
  }
  figure, grid = _show_rows(rows, f"Overlays: labels {_ARROW} answers", 3.9)
  for axes, true_labels, answers in zip(grid[-1], label, predicted, strict=False):
    texts = (", ".join(map(str, pair)) for pair in (true_labels, answers))
    _write_answer(axes, *texts, is_right=set(true_labels) == set(answers))
  names = {"red": "first label", "lime": "second label", "yellow": "both"}
  handles = [Patch(color=colour, label=name) for colour, name in names.items()]
  legend_below(figure, handles, 3, handlelength=1.0)
  return figure


def colour_parts(part_mixing: np.ndarray, part_winner: np.ndarray, num_objects: int) -> np.ndarray:
  """Colours each pixel by the object that won its part: [n, h, w, 3].

  `part_mixing` [n, m, h, w] in [0, 1] is the share of each part in each pixel times the pixel's
  brightness. `part_winner` int [n, m] is the object that won each part; a number outside [0,
  num_objects) stands for none, and is drawn in grey.
  """
  colours = np.concatenate([palette(num_objects), [NO_OBJECT]])
  is_object = (part_winner >= 0) & (part_winner < num_objects)
  colour_of_part = colours[np.where(is_object, part_winner, num_objects)]
  return np.einsum("nmhw,nmc->nhwc", part_mixing, colour_of_part).clip(0.0, 1.0)


def red_and_green(pairs: np.ndarray) -> np.ndarray:
  """The first of two pictures in red, the second in green: [n, h, w, 3] of [n, 2, h, w, c]."""
  red, green = np.moveaxis(np.mean(pairs, axis=-1), 1, 0)
  return np.stack([red, green, np.zeros_like(red)], axis=-1)


def _show_rows(
  rows: dict[str, np.ndarray], title: str, height: float, margin: float = 1.6
) -> tuple[Figure, np.ndarray]:
  """A figure with a named row for each entry of `rows`, pictures [n, h, w, c]; and its axes.

  The height of the figure and the margin beside the pictures are in inches.
  """
  num_shown = min(len(next(iter(rows.values()))), MAX_EXAMPLES)
  figure = new_figure(max(0.95 * num_shown + margin, 3.2), height, title)
  grid = figure.subplots(len(rows), num_shown, squeeze=False)
  for row, (name, pictures) in zip(grid, rows.items(), strict=True):
    row_label(row[0], name)
    for axes, picture in zip(row, pictures, strict=False):
      show_picture(axes, picture)
  return figure, grid


def _write_answer(axes: Axes, label: str, predicted: str, is_right: bool) -> None:
  colour = GREY if is_right else WRONG
  axes.set_xlabel(f"{label} {_ARROW} {predicted}", labelpad=3, color=colour)


def _objects_by_ink(
  part_mixing: np.ndarray, part_winner: np.ndarray, num_objects: int
) -> np.ndarray:
  """Indices of the objects that win visible parts, the one that wins the most ink first."""
  ink = part_mixing.sum(axis=(2, 3))  # [n, m]
  ink_won = np.array([ink[part_winner == k].sum() for k in range(num_objects)])
  order = np.argsort(-ink_won, kind="stable")
  return order[ink_won[order] > 0]


def _legend(
  winners: Sequence[int] | np.ndarray, has_no_object: bool, max_entries: int
) -> list[Patch]:
  """Up to `max_entries` entries: the objects in order, the number of the rest, and no object."""
  no_object = [Patch(color=NO_OBJECT, label="no object")] if has_no_object else []
  max_objects = max_entries - len(no_object)
  named_winners = winners if len(winners) <= max_objects else winners[: max_objects - 1]
  colours = palette(len(winners))
  handles = [
    Patch(color=tuple(colours[i]), label=f"object {k}") for i, k in enumerate(named_winners)
  ]
  if others := len(winners) - len(named_winners):
    handles.append(Patch(facecolor="none", label=f"and {others} others"))
  return handles + no_object
