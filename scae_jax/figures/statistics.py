"""Statistics of examples: presences and confusion by class, embeddings, calibration."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from scae_jax.figures.names import Names, written
from scae_jax.figures.style import (
  GREY,
  LABEL_SIZE,
  SMALL_SIZE,
  TITLE_SIZE,
  bare,
  new_figure,
  palette,
  plain,
)
from scae_jax.typing import Int, Num, typed

MAX_CAPSULES = 64
MAX_WRITTEN_CLASSES = 20  # with more, the cells are too small for numbers
MAX_LEGEND = 30


@typed
def presences_by_class(
  features: Num[np.ndarray, "n k"],
  labels: Int[np.ndarray, " n"],
  class_names: Sequence[str],
  title: str = "",
) -> Figure:
  """Draws the mean presence of every capsule (column) on every class (row).

  A capsule's best class is the one with its largest mean. Capsules are sorted by best class, then
  by that mean, the largest first. If there are more than 64, those with the largest means are
  drawn. `features` are non-negative presences or masses; `title` says which.
  """
  means = mean_by_class(features, labels, len(class_names))
  best, preferred = means.max(axis=0), means.argmax(axis=0)
  kept = np.sort(np.argsort(-best, kind="stable")[:MAX_CAPSULES])
  order = kept[np.lexsort((-best[kept], preferred[kept]))]

  names = written(class_names)
  width, height = min(0.24 * len(order), 11), min(0.26 * len(class_names), 12)
  figure = new_figure(width + 2.0 + names.length, height + 1.5)
  axes = figure.add_subplot()
  picture = axes.imshow(means[:, order], cmap="magma", vmin=0.0, aspect="auto")
  axes.set_title(f"Mean by class: {title}" if title else "Mean by class", fontsize=TITLE_SIZE)
  axes.set_xticks(range(len(order)), [str(k) for k in order])
  if len(order) > 24:
    axes.tick_params(axis="x", rotation=90)
  _name_classes(axes.set_yticks, names)
  axes.set(xlabel="capsule", ylabel="class")
  figure.colorbar(picture, ax=axes, pad=0.015, fraction=0.05)
  return figure


@typed
def confusion(
  matrix: Num[np.ndarray, "classes classes"],
  class_names: Sequence[str],
  title: str = "",
  columns: str = "answer",
) -> Figure:
  """Draws how many examples of each label (row) get each answer (column).

  Counts may be halves. `columns` names the answers, such as "label of the cluster".
  """
  shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
  side = float(np.clip(0.42 * len(class_names), 2.5, 11))
  names = written(class_names)
  figure = new_figure(side + 1.2 + names.length, side + 0.8 + names.length)
  axes = figure.add_subplot()
  axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
  axes.set_title(title or "Confusion", fontsize=TITLE_SIZE)
  _name_classes(axes.set_yticks, names)
  _name_classes(axes.set_xticks, names)
  if max(map(len, names.texts)) > 3:
    axes.tick_params(axis="x", rotation=90)
  axes.set(xlabel=columns, ylabel="label")
  if len(class_names) <= MAX_WRITTEN_CLASSES:
    for row, column in zip(*np.nonzero(matrix), strict=True):
      colour = "white" if shares[row, column] > 0.5 else "0.2"
      count = f"{matrix[row, column]:.12g}"
      axes.text(column, row, count, ha="center", va="center", color=colour)
  return figure


@typed
def embedding(
  points: Num[np.ndarray, "n 2"],
  labels: Int[np.ndarray, " n"],
  class_names: Sequence[str],
  title: str = "",
) -> Figure:
  """Scatters examples embedded in the plane, for instance by t-SNE, coloured by their labels.

  The legend has the first 30 classes.
  """
  colours = palette(len(class_names))
  names = written(class_names)
  figure = new_figure(5.8 + names.length, 5.2)
  axes = figure.add_subplot()
  # One collection in the order of the examples: class by class, the last would hide the others.
  axes.scatter(points[:, 0], points[:, 1], s=9, c=colours[labels], alpha=0.8, linewidths=0)
  axes.set_title(title or "Embedding", fontsize=TITLE_SIZE)
  bare(axes)
  axes.set_aspect("equal", adjustable="datalim")
  legend_names = names.texts[:MAX_LEGEND]
  figure.legend(
    handles=[
      Line2D([], [], marker="o", ls="", ms=5, color=colour) for colour in colours[:MAX_LEGEND]
    ],
    labels=legend_names,
    loc="outside right center",
    prop={"family": names.fonts, "size": LABEL_SIZE if len(legend_names) <= 15 else SMALL_SIZE},
    frameon=False,
    handletextpad=0.2,
  )
  return figure


@typed
def reliability(
  count: Num[np.ndarray, " bins"],
  confidence: Num[np.ndarray, " bins"],
  accuracy: Num[np.ndarray, " bins"],
  title: str = "",
) -> Figure:
  """Draws accuracy against confidence by bin, and below it the share of examples in each bin.

  A calibrated classifier lies on the dashed line; a bin below it is overconfident. Dots are at the
  mean confidence of each bin. Arguments are the results of
  `evaluation.classification.by_confidence`.
  """
  share = count / max(count.sum(), 1)
  is_filled = count > 0
  left = np.flatnonzero(is_filled) / len(count)
  blue, orange = palette(2)

  figure = new_figure(4.0, 4.6)
  above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
  style = {"width": 1 / len(count), "align": "edge", "edgecolor": "white", "linewidth": 0.6}
  above.plot([0, 1], [0, 1], ls="--", lw=1, color=GREY, zorder=3)
  above.bar(left, accuracy[is_filled], color=(*blue, 0.55), **style)
  dots = {"ls": "", "marker": "o", "ms": 4, "color": blue, "zorder": 4, "clip_on": False}
  above.plot(confidence[is_filled], accuracy[is_filled], **dots)
  below.bar(left, share[is_filled], color=(*orange, 0.8), **style)
  above.set_title(title or "Reliability", fontsize=TITLE_SIZE)
  above.set_ylabel("accuracy")
  below.set_ylabel("share of\nexamples")
  below.set_xlabel("confidence")
  above.set_xlim(0, 1)
  for axes in (above, below):
    axes.set_ylim(0, 1.02)
    axes.set_axisbelow(True)
    plain(axes)
  below.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
  return figure


def mean_by_class(features: np.ndarray, labels: np.ndarray, num_classes: int) -> np.ndarray:
  """Mean of each feature over each class: [num_classes, k]; zero for a class without examples."""
  is_class = labels == np.arange(num_classes)[:, None]
  return is_class @ features / np.maximum(is_class.sum(axis=1, keepdims=True), 1)


def _name_classes(set_ticks, names: Names) -> None:
  """Writes at most 50 class names along an axis, at equal distances."""
  step = -(-len(names.texts) // 50)
  set_ticks(range(0, len(names.texts), step), names.texts[::step], family=names.fonts)
