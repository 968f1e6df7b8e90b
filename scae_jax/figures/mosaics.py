"""Mosaics of small pictures: perturbed capsules, samples of a model, parts in rotated images."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scae_jax.figures.reconstructions import colour_parts
from scae_jax.figures.style import GREY, new_figure, panels, show_picture
from scae_jax.typing import Num, typed

GAP = 1  # pixels between pictures
GAP_BRIGHTNESS = 0.35
MAX_CAPSULES = 6
MAX_DIMENSIONS = 16
MAX_COLUMNS = 3
MAX_SAMPLES = 100
SAMPLES_A_ROW = 10
MAX_OBJECTS = 32
LEAST_INK = 0.2
MAX_TURNED = 8


@typed
def capsule_dimensions(
  perturbed: Num[np.ndarray, "n d s h w c"], offsets: Num[np.ndarray, " s"]
) -> Figure:
  """Draws a block for each example: its capsule with an offset (column) to a dimension (row).

  The first 6 examples and 16 dimensions are drawn. Sabour et al. 2017, figure 4.
  """
  perturbed = perturbed[:MAX_CAPSULES, :MAX_DIMENSIONS]
  num_capsules, num_dimensions, num_offsets, height, width, _ = perturbed.shape
  rows = math.ceil(num_capsules / MAX_COLUMNS)
  columns = math.ceil(num_capsules / rows)
  figure = new_figure(
    0.27 * num_offsets * columns + 0.9,
    0.27 * height / width * num_dimensions * rows + 0.55 * rows + 0.5,
    "Capsules with one dimension changed",
  )
  labelled = {0, (num_offsets - 1) // 2, num_offsets - 1}  # both ends and the middle
  names = [f"{offset:+.2f}" if s in labelled else "" for s, offset in enumerate(offsets)]
  for i, axes in enumerate(panels(figure, num_capsules, columns)):
    show_mosaic(axes, perturbed[i], range(num_dimensions), names)
    if i % columns == 0:
      axes.set_ylabel("dimension", color=GREY)
    if i + columns >= num_capsules:  # nothing below
      axes.set_xlabel("offset", color=GREY)
  return figure


@typed
def prior_samples(
  samples: Num[np.ndarray, "n h w c"], title: str = "Drawn from the prior"
) -> Figure:
  """Draws the first 100 samples of the prior, ten a row."""
  samples = samples[:MAX_SAMPLES]
  columns = min(len(samples), SAMPLES_A_ROW)
  rows = math.ceil(len(samples) / columns)
  blank = np.zeros((rows * columns - len(samples), *samples.shape[1:]), samples.dtype)
  table = np.concatenate([samples, blank]).reshape(rows, columns, *samples.shape[1:])
  # At least as wide as the title, at about 13 letters an inch.
  width = max(0.6 * columns + 0.3, max(map(len, title.split("\n"))) / 13 + 0.3)
  figure = new_figure(width, 0.6 * rows + 0.5, title)
  show_mosaic(figure.subplots(), table)
  return figure


@typed
def object_samples(
  samples: Num[np.ndarray, "k p h w c"], poses: Num[np.ndarray, "p 2 3"]
) -> Figure:
  """Draws what each object (row) draws alone at each pose (column), with a description of the pose.

  Shows the first 32 of the objects that draw anything brighter than 0.2 at any of the poses, or of
  all if none does.
  """
  numbers = np.flatnonzero(samples.max(axis=(1, 2, 3, 4)) > LEAST_INK)
  if not len(numbers):
    numbers = np.arange(len(samples))  # the pictures then are black
  num_shown = min(len(numbers), MAX_OBJECTS)
  title = "What each object draws"
  if left_out := len(samples) - len(numbers):
    title += f", without the {left_out} of {len(samples)} that draw nothing"
  if num_shown < len(numbers):
    title += f" (first {num_shown})"
  figure = new_figure(0.62 * len(poses) + 0.7, 0.62 * num_shown + 0.9, title)
  axes = figure.subplots()
  show_mosaic(axes, samples[numbers[:num_shown]], numbers[:num_shown], map(describe, poses))
  axes.xaxis.tick_top()
  axes.set_ylabel("object", color=GREY)
  return figure


@typed
def part_identity(
  image: Num[np.ndarray, "n r h w c"],
  part_mixing: Num[np.ndarray, "n r m h w"],
  degrees: Num[np.ndarray, " r"],
) -> Figure:
  """Draws an image rotated by each angle, and below it its parts, each part in its own colour.

  Smith et al. 2020, arXiv 2004.03553, figure 5. The first 8 images are drawn. `part_mixing` is the
  share of each part in each pixel times the brightness drawn there; `degrees` are
  counter-clockwise.
  """
  num_shown = min(len(image), MAX_TURNED)
  num_angles, num_parts = part_mixing.shape[1:3]
  width_in_inches = max(0.8 * num_angles + 0.8, 3.6)  # the title's at least
  title = f"The {num_parts} parts, each in its own colour"
  figure = new_figure(width_in_inches, 1.65 * num_shown + 0.8, title)
  parts = np.tile(np.arange(num_parts), (num_angles, 1))
  for i, axes in enumerate(figure.subplots(num_shown, 1, squeeze=False)[:, 0]):
    pictures = np.stack([in_colour(image[i]), colour_parts(part_mixing[i], parts, num_parts)])
    angles = [f"{angle:g}\N{DEGREE SIGN}" for angle in degrees]
    show_mosaic(axes, pictures, ("image", "parts"), angles if i == 0 else ())
    axes.xaxis.tick_top()
  return figure


def show_mosaic(
  axes: Axes, pictures: np.ndarray, rows: Iterable[Any] = (), columns: Iterable[Any] = ()
) -> None:
  """Draws a table of pictures [rows, columns, h, w, c] in [0, 1] and names beside it."""
  show_picture(axes, mosaic(pictures))
  axes.images[0].set_interpolation("auto")  # pictures are not a whole number of dots a pixel
  axes.tick_params(length=0, labelcolor=GREY, pad=3)
  height, width = pictures.shape[2:4]
  for set_ticks, names, side in (
    (axes.set_yticks, rows, height),
    (axes.set_xticks, columns, width),
  ):
    texts = [str(name) for name in names]
    set_ticks(middles(len(texts), side), texts)


def middles(count: int, side: int) -> np.ndarray:
  """Positions of the middles of `count` pictures in a mosaic, pixels, for ticks."""
  return np.arange(count) * (side + GAP) + GAP + (side - 1) / 2


def mosaic(pictures: np.ndarray) -> np.ndarray:
  """Joins pictures [rows, columns, h, w, c] into one, with grey lines around each."""
  framed = np.pad(
    np.clip(pictures, 0.0, 1.0),
    ((0, 0), (0, 0), (GAP, 0), (GAP, 0), (0, 0)),
    constant_values=GAP_BRIGHTNESS,
  )
  rows, columns, height, width, channels = framed.shape
  table = framed.transpose(0, 2, 1, 3, 4).reshape(rows * height, columns * width, channels)
  return np.pad(table, ((0, GAP), (0, GAP), (0, 0)), constant_values=GAP_BRIGHTNESS)


def describe(pose: np.ndarray) -> str:
  """Describes the rotation, scaling and shift of a pose [2, 3] in words; shear is left out."""
  scale = math.sqrt(abs(np.linalg.det(pose[:, :2])))
  degrees = round(math.degrees(math.atan2(pose[0, 1], pose[0, 0])))  # counter-clockwise
  phrases = []
  if degrees:
    phrases.append(f"{degrees:+d}\N{DEGREE SIGN}")
  if abs(scale - 1) > 0.005:
    phrases.append(f"\N{MULTIPLICATION SIGN} {scale:.2f}")
  for shift, positive, negative in ((pose[0, 2], "right", "left"), (pose[1, 2], "down", "up")):
    if abs(shift) > 0.005:
      phrases.append(f"{positive if shift > 0 else negative} {abs(shift):.1f}")
  return "\n".join(phrases) or "identity"


def in_colour(pictures: np.ndarray) -> np.ndarray:
  """Pictures [n, h, w, c] with three channels; any other number of channels is averaged to grey."""
  if pictures.shape[-1] == 3:
    return pictures
  return np.repeat(pictures.mean(axis=-1, keepdims=True), 3, axis=-1)
