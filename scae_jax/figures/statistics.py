"""Tables of numbers as heat maps: capsules against classes, labels against answers."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from scae_jax.figures.style import (
  LABEL_SIZE,
  SMALL_SIZE,
  TITLE_SIZE,
  check_rank,
  check_same_length,
  new_figure,
)

MAX_CAPSULES = 64
MAX_WRITTEN_CLASSES = 20  # with more, the cells are too small for numbers


def mean_by_class(features: np.ndarray, labels: np.ndarray, num_classes: int) -> np.ndarray:
  """Mean of each feature over each class: [num_classes, k]; zero for a class without examples."""
  sums = np.zeros((num_classes, features.shape[1]))
  np.add.at(sums, labels, features)
  counts = np.bincount(labels, minlength=num_classes)
  return sums / np.maximum(counts, 1)[:, None]


def presences_by_class(
  features: np.ndarray, labels: np.ndarray, class_names: Sequence[str], title: str = ""
) -> Figure:
  """Draws the mean presence of every capsule for every class, a row a class.

  Capsules stand in the order of the class on which they are most present, so that capsules that
  specialise make a staircase. Within a class the most present comes first.

  Args:
    features: [n, k], non-negative presences or masses. Of more than 64 capsules the 64 with the
      largest mean over their best class are drawn.
    labels: int [n] in [0, len(class_names)).
    class_names: a name a class.
    title: what the features are.

  Raises:
    ValueError: arrays of another rank, or not of one length.
  """
  features = check_rank("features", features, "n k")
  labels = check_rank("labels", labels, "n")
  check_same_length(features=features, labels=labels)
  means = mean_by_class(features, labels, len(class_names))
  best, preferred = means.max(axis=0), means.argmax(axis=0)
  kept = np.sort(np.argsort(-best, kind="stable")[:MAX_CAPSULES])
  order = kept[np.lexsort((-best[kept], preferred[kept]))]

  figure = new_figure(min(0.24 * len(order), 11) + 2.4, min(0.26 * len(class_names), 12) + 1.5)
  axes = figure.add_subplot()
  picture = axes.imshow(means[:, order], cmap="magma", vmin=0.0, aspect="auto")
  axes.set_title(f"Mean by class: {title}" if title else "Mean by class", fontsize=TITLE_SIZE)
  axes.set_xticks(range(len(order)), [str(k) for k in order], fontsize=SMALL_SIZE)
  if len(order) > 24:
    axes.tick_params(axis="x", rotation=90)
  _name_classes(axes.set_yticks, class_names)
  axes.set_xlabel("capsule", fontsize=LABEL_SIZE)
  axes.set_ylabel("class", fontsize=LABEL_SIZE)
  bar = figure.colorbar(picture, ax=axes, pad=0.015, fraction=0.05)
  bar.ax.tick_params(labelsize=SMALL_SIZE)
  return figure


def confusion(
  matrix: np.ndarray, class_names: Sequence[str], title: str = "", columns: str = "answer"
) -> Figure:
  """Draws which answers the examples of each label get, a row a label.

  Args:
    matrix: [classes, classes], examples by label (row) and by answer (column); halves are counts
      too.
    class_names: a name a class.
    title: what was measured.
    columns: what an answer is, such as "label of the cluster".

  Raises:
    ValueError: a matrix that is not square, or not of as many rows as there are names.
  """
  matrix = check_rank("matrix", matrix, "classes classes")
  if matrix.shape != (len(class_names), len(class_names)):
    raise ValueError(
      f"A confusion matrix of {len(class_names)} classes must be square with that many rows, "
      f"got {matrix.shape}."
    )
  shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
  side = float(np.clip(0.42 * len(class_names), 2.5, 11))
  figure = new_figure(side + 1.6, side + 1.2)
  axes = figure.add_subplot()
  axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
  axes.set_title(title or "Confusion", fontsize=TITLE_SIZE)
  _name_classes(axes.set_yticks, class_names)
  _name_classes(axes.set_xticks, class_names)
  if max(map(len, class_names)) > 3:
    axes.tick_params(axis="x", rotation=90)
  axes.set_xlabel(columns, fontsize=LABEL_SIZE)
  axes.set_ylabel("label", fontsize=LABEL_SIZE)
  if len(class_names) <= MAX_WRITTEN_CLASSES:
    for row, column in zip(*np.nonzero(matrix), strict=True):
      colour = "white" if shares[row, column] > 0.5 else "0.2"
      count = f"{matrix[row, column]:.12g}"
      axes.text(column, row, count, ha="center", va="center", fontsize=SMALL_SIZE, color=colour)
  return figure


def _name_classes(set_ticks, class_names: Sequence[str]) -> None:
  """Writes class names along an axis, every so many when there are too many to read."""
  step = -(-len(class_names) // 50)
  set_ticks(range(0, len(class_names), step), class_names[::step], fontsize=SMALL_SIZE)
