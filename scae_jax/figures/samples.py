"""What a generative model draws by itself: samples of its prior, and its objects one by one."""

import math

import numpy as np
from matplotlib.figure import Figure

from scae_jax.figures.mosaic import middles, show_mosaic
from scae_jax.figures.style import GREY, LABEL_SIZE, SMALL_SIZE, check_rank, new_figure

MAX_SAMPLES = 100
MAX_OBJECTS = 32
LEAST_INK = 0.2
NUM_COLUMNS = 10


def prior_samples(samples: np.ndarray, title: str = "Drawn from the prior") -> Figure:
  """Draws images of the prior, ten a row.

  Args:
    samples: [n, h, w, c] in [0, 1]; the first 100 are drawn.
    title: of the figure.

  Raises:
    ValueError: an array of another rank.
  """
  samples = check_rank("samples", samples, "n h w c")[:MAX_SAMPLES]
  columns = min(len(samples), NUM_COLUMNS)
  rows = math.ceil(len(samples) / columns)
  blank = np.zeros((rows * columns - len(samples), *samples.shape[1:]), samples.dtype)
  table = np.concatenate([samples, blank]).reshape(rows, columns, *samples.shape[1:])
  # Of the title's width at least, about 13 letters an inch.
  width = max(0.6 * columns + 0.3, max(map(len, title.split("\n"))) / 13 + 0.3)
  figure = new_figure(width, 0.6 * rows + 0.5, title)
  show_mosaic(figure.subplots(), table)
  return figure


def object_samples(samples: np.ndarray, poses: np.ndarray) -> Figure:
  """Draws, a row an object, what it draws alone, a column a pose.

  Args:
    samples: [k, p, h, w, c] in [0, 1]; the first 32 objects are drawn of those that draw anything
      brighter than 0.2 at any of the poses, or of all if none does.
    poses: [p, 2, 3], of the object; a column's title says what the pose does.

  Raises:
    ValueError: arrays of another rank, or not one pose a column.
  """
  samples = check_rank("samples", samples, "k p h w c")
  poses = check_rank("poses", poses, "p i j")
  if samples.shape[1] != len(poses):
    raise ValueError(
      f"'samples' {samples.shape} must have one picture a pose on axis 1, got {len(poses)} poses."
    )
  numbers = np.flatnonzero(samples.max(axis=(1, 2, 3, 4)) > LEAST_INK)
  if not len(numbers):
    numbers = np.arange(len(samples))  # black pictures say so
  num_poses, height, width = samples.shape[1:4]
  shown = min(len(numbers), MAX_OBJECTS)
  title = "What each object draws"
  left_out = len(samples) - len(numbers)
  if left_out:
    title += f", without the {left_out} of {len(samples)} that draw nothing"
  if shown < len(numbers):
    title += f" (first {shown})"
  figure = new_figure(0.62 * num_poses + 0.7, 0.62 * shown + 0.9, title)
  axes = figure.subplots()
  show_mosaic(axes, samples[numbers[:shown]])
  axes.set_xticks(middles(num_poses, width), [describe(pose) for pose in poses])
  axes.set_yticks(middles(shown, height), [str(k) for k in numbers[:shown]])
  axes.tick_params(length=0, labelsize=SMALL_SIZE, labelcolor=GREY, pad=3)
  axes.xaxis.tick_top()
  axes.tick_params(axis="x", length=0)
  axes.set_ylabel("object", fontsize=LABEL_SIZE, color=GREY)
  return figure


def describe(pose: np.ndarray) -> str:
  """What a pose [2, 3] of rotation, scaling and shift does, in words; a shear is not told."""
  scale = math.sqrt(abs(pose[0, 0] * pose[1, 1] - pose[0, 1] * pose[1, 0]))
  degrees = round(math.degrees(math.atan2(pose[0, 1], pose[0, 0])))  # counter-clockwise
  pieces = []
  if degrees:
    pieces.append(f"{degrees:+d}\N{DEGREE SIGN}")
  if abs(scale - 1) > 0.005:
    pieces.append(f"\N{MULTIPLICATION SIGN} {scale:.2f}")
  for shift, forth, back in ((pose[0, 2], "right", "left"), (pose[1, 2], "down", "up")):
    if abs(shift) > 0.005:
      pieces.append(f"{forth if shift > 0 else back} {abs(shift):.1f}")
  return "\n".join(pieces) or "identity"
