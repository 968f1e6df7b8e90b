"""Sizes of feature maps, and the receptive field of a stack of convolutions."""

import dataclasses
from collections.abc import Mapping, Sequence

# Least share of an image's side in the receptive field. Matrix capsules with the published kernels
# and strides ignore the last three of 28 rows and columns.
MIN_SHARE = 0.85


@dataclasses.dataclass(frozen=True)
class Window:
  """The window of a convolution or pooling, the same on both axes."""

  kernel: int  # side, pixels
  stride: int  # between windows
  margin: int = 0  # padding on each side of the map


def map_side(side: int, windows: Sequence[Window]) -> int:
  """Side of the last map of a square image; `ValueError` if nothing would be left."""
  return _map_sides(side, windows)[-1]


def _map_sides(side: int, windows: Sequence[Window]) -> list[int]:
  """Sides of the image and of the map after each layer; `ValueError` if one would be 0."""
  sides = [side]
  for window in windows:
    room = sides[-1] + 2 * window.margin - window.kernel
    sides.append(room // window.stride + 1 if room >= 0 else 0)
    if sides[-1] == 0:
      raise ValueError(
        f"the feature map shrinks to nothing ({' -> '.join(map(str, sides))}); enlarge"
        " config.data.canvas, or lower kernels and strides"
      )
  return sides


def covered_side(side: int, windows: Sequence[Window]) -> int:
  """Number of pixels from the first of a side to the last that the last map can depend on."""
  sides = _map_sides(side, windows)
  last = sides[-1] - 1  # position on a map, from the last map back to the image
  for window, side_below in zip(reversed(windows), reversed(sides[:-1]), strict=True):
    last = min(side_below - 1, last * window.stride - window.margin + window.kernel - 1)
  return last + 1


def require_receptive_field(
  canvas: int, windows: Sequence[Window], keys: Mapping[str, object]
) -> None:
  """Raises `ValueError` unless features can depend on nearly all of a square image.

  The receptive field must cover `MIN_SHARE` of its side, without pixels that no window sees. A
  model that sees less would train without an error. `keys` are the config keys that determine the
  layers, such as `{"model.part_encoder.strides": (2, 2, 1, 1)}`.
  """
  settings = ", ".join(f"config.{key} {value!r}" for key, value in keys.items())
  try:
    covered = covered_side(canvas, windows)
  except ValueError as error:
    raise ValueError(f"with {settings} and config.data.canvas {canvas} {error}.") from None
  if covered < MIN_SHARE * canvas or any(window.stride > window.kernel for window in windows):
    raise ValueError(
      f"with {settings} and config.data.canvas {canvas} features depend on {covered} of {canvas}"
      " rows and columns at most, and a stride above its kernel skips pixels. Lower the former."
    )
