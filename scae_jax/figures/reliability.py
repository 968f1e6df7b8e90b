"""How often answers of a confidence are right: a reliability diagram."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from scae_jax.figures.style import (
  GREY,
  LABEL_SIZE,
  SMALL_SIZE,
  TITLE_SIZE,
  check_rank,
  check_same_length,
  new_figure,
  palette,
)

NUM_BINS = 15  # Guo et al. 2017
_INNER_EDGES = np.arange(1, NUM_BINS) / NUM_BINS


def by_confidence(
  confidence: np.ndarray, is_right: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Sorts answers into 15 equal bins of confidence.

  Bin i holds confidences above i / 15 and up to (i + 1) / 15; the first one holds 0 too.

  Args:
    confidence: [n] in [0, 1].
    is_right: [n], 0 or 1.

  Returns:
    Of each bin, [15] each: the number of answers, their mean confidence and the share of right
    ones; the last two are 0 of a bin without answers.
  """
  bins = np.digitize(confidence, _INNER_EDGES, right=True)
  count = np.bincount(bins, minlength=NUM_BINS)
  divisor = np.maximum(count, 1)
  mean_confidence = np.bincount(bins, confidence, minlength=NUM_BINS) / divisor
  accuracy = np.bincount(bins, is_right, minlength=NUM_BINS) / divisor
  return count, mean_confidence, accuracy


def reliability(confidence: np.ndarray, is_right: np.ndarray, title: str = "") -> Figure:
  """Draws accuracy against confidence by bin, and below it the share of examples in each bin.

  What is known to be as sure as it says lies on the dashed line; a bin below it is too sure. A dot
  stands at the mean confidence of its bin, so that its distance from the line is the bin's part in
  the expected calibration error.

  Args:
    confidence: [n] in [0, 1].
    is_right: [n], whether each answer was right.
    title: what was measured.

  Raises:
    ValueError: arrays of another rank, or not of one length.
  """
  confidence = check_rank("confidence", confidence, "n")
  is_right = check_rank("is_right", is_right, "n")
  check_same_length(confidence=confidence, is_right=is_right)
  count, mean_confidence, accuracy = by_confidence(confidence, is_right)
  share = count / max(len(confidence), 1)
  used = count > 0
  left = np.arange(NUM_BINS)[used] / NUM_BINS
  blue, orange = palette(2)

  figure = new_figure(4.0, 4.6)
  above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
  look = {"width": 1 / NUM_BINS, "align": "edge", "edgecolor": "white", "linewidth": 0.6}
  above.plot([0, 1], [0, 1], ls="--", lw=1, color=GREY, zorder=3)
  above.bar(left, accuracy[used], color=(*blue, 0.55), **look)
  dots = {"ls": "", "marker": "o", "ms": 4, "color": blue, "zorder": 4, "clip_on": False}
  above.plot(mean_confidence[used], accuracy[used], **dots)
  below.bar(left, share[used], color=(*orange, 0.8), **look)
  above.set_title(title or "Reliability", fontsize=TITLE_SIZE)
  above.set_ylabel("accuracy", fontsize=LABEL_SIZE)
  below.set_ylabel("share of\nexamples", fontsize=LABEL_SIZE)
  below.set_xlabel("confidence", fontsize=LABEL_SIZE)
  above.set_xlim(0, 1)
  above.set_ylim(0, 1.02)
  below.set_ylim(0, 1.02)
  below.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
  for axes in (above, below):
    axes.tick_params(labelsize=SMALL_SIZE)
    axes.grid(alpha=0.25, lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
  return figure
