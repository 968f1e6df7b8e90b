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


def reliability(
  count: np.ndarray, confidence: np.ndarray, accuracy: np.ndarray, title: str = ""
) -> Figure:
  """Draws accuracy against confidence by bin, and below it the share of examples in each bin.

  What is known to be as sure as it says lies on the dashed line; a bin below it is too sure. A dot
  stands at the mean confidence of its bin, so that its distance from the line is the bin's part in
  the expected calibration error.

  Args:
    count: [bins], answers in each of as many equal bins of confidence.
    confidence: [bins] in [0, 1], their mean confidence; of an empty bin any number.
    accuracy: [bins] in [0, 1], the share of them that is right; of an empty bin any number.
    title: what was measured.

  Raises:
    ValueError: arrays of another rank, or not of one length.
  """
  count = check_rank("count", count, "bins")
  confidence = check_rank("confidence", confidence, "bins")
  accuracy = check_rank("accuracy", accuracy, "bins")
  check_same_length(count=count, confidence=confidence, accuracy=accuracy)
  share = count / max(count.sum(), 1)
  used = count > 0
  left = np.flatnonzero(used) / len(count)
  blue, orange = palette(2)

  figure = new_figure(4.0, 4.6)
  above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
  look = {"width": 1 / len(count), "align": "edge", "edgecolor": "white", "linewidth": 0.6}
  above.plot([0, 1], [0, 1], ls="--", lw=1, color=GREY, zorder=3)
  above.bar(left, accuracy[used], color=(*blue, 0.55), **look)
  dots = {"ls": "", "marker": "o", "ms": 4, "color": blue, "zorder": 4, "clip_on": False}
  above.plot(confidence[used], accuracy[used], **dots)
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
