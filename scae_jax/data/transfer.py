"""Data sets to score on: test images moved by known maps, affNIST, or any data set as it is.

affnist                  the official test files, where their folder is given; else `affine_mnist`
affine_<name>            each test image of <name> under its own map, drawn as in affNIST
rotated_<name>:35        all rotated by 35 degrees, counter-clockwise as the picture is seen
rotated_<name>:-20..20   each by its own angle, uniform in this range
translated_<name>:3      all shifted by 3 pixels to the right and 3 down
translated_<name>:3,-2   all by 3 to the right and 2 up
translated_<name>:-6..6  each by its own whole numbers of pixels in this range; also :-6..6,0
"""

import dataclasses
import re
import zlib
from typing import NamedTuple

import numpy as np

from scae_jax.data import affine, affnist
from scae_jax.data.dataset import (
  Dataset,
  EvalDataset,
  Preview,
  Split,
  crop_middle,
  in_common_form,
  normalized,
)
from scae_jax.data.options import DataOptions
from scae_jax.data.sources import load_dataset, preview
from scae_jax.waiting import waiting

SEED = 0  # of all choices; not the run's, so that all runs are scored on the same images
# Seeds of `rotated`, see `_seed_of`.
_SEEDS = {"test": SEED, "train": SEED + 1, "validation": SEED + 2, "familiar": SEED + 3}
_EXPECTED = {
  "rotated": "degrees, as in rotated_mnist:35, or a range, as in rotated_mnist:-20..20",
  "translated": "whole pixels, as in translated_mnist:3 or, to the right and down, "
  "translated_mnist:3,-2, or a range, as in translated_mnist:-6..6",
}
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)"
_RANGE = re.compile(rf"({_NUMBER})(?:\.\.({_NUMBER}))?")


class _Request(NamedTuple):
  """A parsed name of a moved data set."""

  kind: str  # `affine`, `rotated` or `translated`
  source: str  # the data set whose test images are moved
  moves: str  # the text after the colon; "" for affine
  ranges: list[tuple[float, float]]  # least and largest of each number that is drawn

  @property
  def name(self) -> str:
    return f"{self.kind}_{self.source}" + (f":{self.moves}" if self.moves else "")


def load_scored(name: str, options: DataOptions, data_dir: str = "") -> EvalDataset:
  """Loads a data set to score a model on that was trained with these options.

  The name is one of the above, or any that `load_dataset` takes, looked for in `data_dir` or, if
  that is empty, in the folder of the options. Moved sets are made from the test split of the named
  set, and are always the same.

  Images are first brought to the form of the options, from `resize` to `middle`. Their middle
  `crop` x `crop` pixels are cut out; affNIST's files keep their size. Moved images are drawn on a
  square of `options.canvas` pixels a side, `affine_mnist` on affNIST's 40 if the canvas is larger.
  Normalisation uses the whole, unmoved image.

  Raises ValueError as `load_dataset` or `load_affnist` does, and for an invalid range, a canvas too
  small for affNIST or its ink, or images smaller than the crop.
  """
  canvas, normalize = options.canvas, options.normalize
  if name == "affnist" and options.affnist_dir:
    _check_canvas_of_affnist(canvas)
    with waiting("reading affNIST's files"):
      official = affnist.load_affnist(options.affnist_dir)
    official = in_common_form(official, dataclasses.replace(options.form, side=0, middle=()))
    return normalized(official) if normalize else official
  request = _parse("affine_mnist" if name == "affnist" else name)
  source = name if request is None else request.source
  dataset = load_dataset(source, data_dir or options.dir, options.cache_dir, options.form)
  _check_crop(dataset, options.crop)
  dataset = crop_middle(normalized(dataset) if normalize else dataset, options.crop)
  if request is None:
    return dataset
  request = request._replace(source=dataset.name)
  is_affnist = request.name == "affine_mnist"
  side = min(canvas, affnist.SIDE) if is_affnist else canvas
  with waiting("moving the images"):
    test, notes = _move_images(request, dataset.splits["test"], side, SEED)
  notes = tuple(f"{request.name}: {note}" for note in notes)
  return EvalDataset(request.name, dataset.class_names, {"test": test}, notes, path=dataset.path)


def preview_scored(name: str, options: DataOptions, data_dir: str = "") -> Preview | None:
  """The facts of a data set known before `load_scored` loads it; see `sources.preview`.

  The size of images that will be moved or cropped is left unknown. Raises the errors of
  `load_scored` that can be known by then.
  """
  if name == "affnist" and options.affnist_dir:
    _check_canvas_of_affnist(options.canvas)
    return Preview(
      name, affnist.CLASS_NAMES, ("test",), options.form.channels or 1, (affnist.SIDE, affnist.SIDE)
    )
  request = _parse("affine_mnist" if name == "affnist" else name)
  source = name if request is None else request.source
  with waiting(f"looking at {source}"):
    source_preview = preview(source, data_dir or options.dir, options.cache_dir, options.form)
  if source_preview and source_preview.image_side:
    _check_crop(source_preview, options.crop)
  if request is not None:
    facts = source_preview or Preview(source, (), ())
    return dataclasses.replace(facts, name=request.name, splits=("test",), image_shape=(0, 0))
  if source_preview and options.crop:
    return dataclasses.replace(source_preview, image_shape=(0, 0))
  return source_preview


def rotated(dataset: Dataset, degrees: float, canvas: int) -> Dataset:
  """A data set with every image rotated by its own angle, for fitting and scoring.

  Angles are uniform up to `degrees` in either direction, 0 to 180 or ValueError, and the same at
  every call. The name and the test split are those of `rotated_<name>:-degrees..degrees`.
  """
  if not 0 <= degrees <= 180:
    raise ValueError(f"expected to rotate by 0 to 180 degrees, got {degrees:g}")
  moves = f"{-degrees:g}..{degrees:g}" if degrees else "0"
  request = _Request("rotated", dataset.name, moves, [(-degrees, degrees)])
  splits, notes = {}, list(dataset.notes)
  for name, split in dataset.splits.items():
    splits[name], split_notes = _move_images(request, split, canvas, _seed_of(name))
    notes += [f"{request.name}, {name}: {note}" for note in split_notes]
  return Dataset(request.name, dataset.class_names, splits, tuple(notes), path=dataset.path)


def _seed_of(split: str) -> int:
  """A seed of its own for each split, so that splits do not share their angles."""
  return _SEEDS.get(split, zlib.crc32(split.encode()))


def _check_canvas_of_affnist(canvas: int) -> None:
  if canvas < affnist.SIDE:
    raise ValueError(
      f"affNIST's images are {affnist.SIDE} pixels a side, and the model's canvas is {canvas}; "
      f"train with --config.data.canvas={affnist.SIDE} or more, or score on affine_mnist, which is "
      "drawn at the size of the canvas"
    )


def _check_crop(dataset: EvalDataset | Preview, crop: int) -> None:
  height, width = dataset.image_shape[:2]
  if crop > min(height, width):
    raise ValueError(
      f"the model takes the middle {crop} x {crop} pixels of an image, and those of"
      f" {dataset.name!r} have {height} x {width}; choose a set of larger images"
    )


def _move_images(request: _Request, split: Split, side: int, seed: int) -> tuple[Split, list[str]]:
  """Moves every image by its own map and draws it on a square; returns notes, too."""
  images = split.images
  if request.kind == "affine":
    maps, num_redrawn = affine.draw_affine(images, side, seed)
    notes = [
      f"affNIST's distribution of maps, drawn for {len(images):,} test images with seed {seed} on "
      f"{side}x{side} pixels (affNIST: {affnist.SIDE}x{affnist.SIDE}); not its official files."
    ]
    if num_redrawn:
      notes.append(
        f"{num_redrawn:,} maps were drawn again because the ink would not have fitted, so large "
        "ones are rarer than in affNIST."
      )
  else:
    maps = _draw_maps(request, images, side, np.random.RandomState(seed))
    notes = []
    if num_cut := np.sum(~affine.keeps_ink(images, maps, side)):
      lost = 100 * affine.lost_ink(images, maps, side)
      notes.append(
        f"ink of {num_cut:,} of {len(images):,} images reaches off the canvas of {side} pixels: "
        f"{lost.mean():.3g} % of an image's ink is lost in the mean, {lost.max():.3g} % at most."
      )
  return dataclasses.replace(split, images=affine.resample(images, maps, side)), notes


def _draw_maps(
  request: _Request, images: np.ndarray, side: int, generator: np.random.RandomState
) -> np.ndarray:
  """Draws a rotation or a shift [n, 2, 3] for every image."""
  linear = np.broadcast_to(np.eye(2), (len(images), 2, 2))
  shifts = np.zeros((len(images), 2))
  if request.kind == "rotated":
    linear = affine.rotation(generator.uniform(*request.ranges[0], len(images)))
  else:
    ends = np.array(request.ranges, int)
    furthest = np.abs(ends).max()
    if furthest >= side:
      raise ValueError(
        f"expected shifts below the {side} pixels of the canvas, got {furthest}; nothing would be"
        " left of the images"
      )
    shifts = generator.randint(ends[:, 0], ends[:, 1] + 1, (len(images), 2))
  return affine.place(linear, shifts, images.shape[1:], side)


def _parse(name: str) -> _Request | None:
  """Parses a name: None if it is not of a moved data set, ValueError if it is invalid."""
  match = re.fullmatch(r"(affine|rotated|translated)_(.+)", name)
  if match is None:
    return None
  kind, source = match.groups()
  if kind == "affine":
    return _Request(kind, source, "", [])
  source, colon, moves = source.rpartition(":")
  if not colon:
    raise ValueError(f"data set {name!r} does not say how far; expected {_EXPECTED[kind]}")
  matches = [_RANGE.fullmatch(text) for text in moves.split(",")]
  ranges = [(float(m[1]), float(m[2] or m[1])) for m in matches if m]
  is_valid = len(ranges) == len(matches) and all(low <= high for low, high in ranges)
  if kind == "rotated":
    is_valid &= len(matches) == 1
  else:
    is_valid &= len(matches) <= 2 and all(end.is_integer() for ends in ranges for end in ends)
    ranges = (ranges * 2)[:2]  # to the right and down
  if not is_valid:
    raise ValueError(f"data set {name!r}: cannot read {moves!r}; expected {_EXPECTED[kind]}")
  return _Request(kind, source, moves, ranges)
