"""Images beside what a model believes of them before and after free-form inference."""

import numpy as np
from matplotlib.figure import Figure

from scae_jax.figures.style import (
  GREY,
  LABEL_SIZE,
  check_rank,
  check_same_length,
  new_figure,
  row_label,
  show_picture,
)

MAX_EXAMPLES = 10


def free_form(
  image: np.ndarray,
  before: np.ndarray,
  after: np.ndarray,
  bound_before: np.ndarray,
  bound_after: np.ndarray,
  title: str = "",
) -> Figure:
  """Draws, a column an example, the image, the picture before and after, and their bounds.

  Args:
    image: [n, h, w, c] in [0, 1]; the first 10 are drawn.
    before: [n, h, w, c], drawn from the posterior at the start.
    after: [n, h, w, c], after the last step.
    bound_before: [n], nats, written below the picture.
    bound_after: [n].
    title: of the figure.

  Raises:
    ValueError: arrays of another rank, or not of one length.
  """
  pictures = {"image": image, "before": before, "after": after}
  pictures = {name: check_rank(name, values, "n h w c") for name, values in pictures.items()}
  bounds = {"before": bound_before, "after": bound_after}
  bounds = {name: check_rank(f"bound_{name}", values, "n") for name, values in bounds.items()}
  check_same_length(**pictures, **{f"bound_{name}": values for name, values in bounds.items()})
  shown = min(len(image), MAX_EXAMPLES)
  figure = new_figure(max(0.95 * shown + 1.0, 3.2), 4.1, title)
  grid = figure.subplots(len(pictures), shown, squeeze=False)
  for row, (name, values) in zip(grid, pictures.items(), strict=True):
    row_label(row[0], name)
    for i, axes in enumerate(row):
      show_picture(axes, values[i])
      if name in bounds:
        nats = f"{bounds[name][i]:.0f}" + (" nats" if i == 0 else "")
        axes.set_xlabel(nats, fontsize=LABEL_SIZE, labelpad=3, color=GREY)
  return figure
