"""Images beside what capsules of classes make of them, with labels and answers."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from scae_jax.figures.style import (
  GREY,
  LABEL_SIZE,
  SMALL_SIZE,
  check_rank,
  check_same_length,
  new_figure,
  row_label,
  show_picture,
)

MAX_EXAMPLES = 10
WRONG = "#d1242f"  # of an answer that is not the label
_ARROW = "\N{RIGHTWARDS ARROW}"


def class_reconstructions(
  image: np.ndarray, reconstruction: np.ndarray, label: np.ndarray, predicted: np.ndarray
) -> Figure:
  """Draws, a column an example, the image, its reconstruction, and below it label and answer.

  An answer that is not the label is red.

  Args:
    image: [n, h, w, c] in [0, 1]; the first 10 are drawn.
    reconstruction: [n, h, w, c].
    label: int [n].
    predicted: int [n], the answer, whose capsule was decoded.

  Raises:
    ValueError: arrays of another rank, or not of one length.
  """
  image = check_rank("image", image, "n h w c")
  reconstruction = check_rank("reconstruction", reconstruction, "n h w c")
  label = check_rank("label", label, "n")
  predicted = check_rank("predicted", predicted, "n")
  check_same_length(image=image, reconstruction=reconstruction, label=label, predicted=predicted)
  shown = min(len(image), MAX_EXAMPLES)
  title = f"Reconstructions: label {_ARROW} answer"
  figure = new_figure(max(0.95 * shown + 1.6, 3.2), 2.7, title)
  grid = figure.subplots(2, shown, squeeze=False)
  row_label(grid[0, 0], "image")
  row_label(grid[1, 0], "reconstruction")
  for i in range(shown):
    show_picture(grid[0, i], image[i])
    show_picture(grid[1, i], reconstruction[i])
    _write_answer(grid[1, i], str(label[i]), str(predicted[i]), label[i] == predicted[i])
  return figure


def overlaid_reconstructions(
  image: np.ndarray,
  sources: np.ndarray,
  reconstructions: np.ndarray,
  label: np.ndarray,
  predicted: np.ndarray,
) -> Figure:
  """Draws, a column an example, two overlaid images, and which of the pixels is whose.

  Below the overlay stand its two sources, one red and one green, and in the same way what the
  capsules of the two answers make of them; where both are, it is yellow. Sabour et al. 2017,
  figure 5.

  Args:
    image: [n, h, w, c] in [0, 1], the overlay; the first 10 are drawn.
    sources: [n, 2, h, w, c] in [0, 1].
    reconstructions: [n, 2, h, w, c], of the two answers.
    label: int [n, 2], of the sources.
    predicted: int [n, 2], the two answers, each in the place of the label that it is, if it is one.

  Raises:
    ValueError: arrays of another rank, or not of one length.
  """
  image = check_rank("image", image, "n h w c")
  sources = check_rank("sources", sources, "n 2 h w c")
  reconstructions = check_rank("reconstructions", reconstructions, "n 2 h w c")
  label = check_rank("label", label, "n 2")
  predicted = check_rank("predicted", predicted, "n 2")
  check_same_length(
    image=image,
    sources=sources,
    reconstructions=reconstructions,
    label=label,
    predicted=predicted,
  )
  shown = min(len(image), MAX_EXAMPLES)
  rows = [
    ("overlay", image[:shown]),
    ("sources", red_and_green(sources[:shown])),
    ("reconstructions", red_and_green(reconstructions[:shown])),
  ]
  title = f"Overlays: labels {_ARROW} answers"
  figure = new_figure(max(0.95 * shown + 1.6, 3.2), 3.9, title)
  grid = figure.subplots(len(rows), shown, squeeze=False)
  for i, (name, pictures) in enumerate(rows):
    row_label(grid[i, 0], name)
    for j in range(shown):
      show_picture(grid[i, j], pictures[j])
  for j, axes in enumerate(grid[-1]):
    texts = (", ".join(map(str, pair)) for pair in (label[j], predicted[j]))
    _write_answer(axes, *texts, is_right=set(label[j]) == set(predicted[j]))
  figure.legend(
    handles=[
      Patch(color="red", label="first label"),
      Patch(color="lime", label="second label"),
      Patch(color="yellow", label="both"),
    ],
    loc="outside lower center",
    ncols=3,
    fontsize=SMALL_SIZE,
    frameon=False,
    handlelength=1.0,
  )
  return figure


def red_and_green(pairs: np.ndarray) -> np.ndarray:
  """The first of two pictures in red, the second in green: [n, h, w, 3] of [n, 2, h, w, c].

  Channels of each picture are averaged.
  """
  red, green = np.moveaxis(np.mean(pairs, axis=-1), 1, 0)
  return np.stack([red, green, np.zeros_like(red)], axis=-1)


def _write_answer(axes: Axes, label: str, predicted: str, is_right: bool) -> None:
  colour = GREY if is_right else WRONG
  axes.set_xlabel(f"{label} {_ARROW} {predicted}", fontsize=LABEL_SIZE, labelpad=3, color=colour)
