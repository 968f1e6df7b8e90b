"""Sizes of feature maps, and how much of an image a stack of convolutions can depend on."""

import dataclasses
from collections.abc import Mapping, Sequence

# Of the side of an image. Matrix capsules with the published kernels and strides leave out three of
# 28 rows and columns at the far ends.
MIN_SHARE = 0.85


@dataclasses.dataclass(frozen=True)
class Window:
  """A convolution or a pooling, along either axis."""

  kernel: int  # side, pixels
  stride: int  # between windows
  margin: int = 0  # zeros on each side of the map


def map_side(side: int, windows: Sequence[Window]) -> int:
  """Side of the last map of a square image; `ValueError` if nothing would be left."""
  sides = [side]
  for window in windows:
    room = sides[-1] + 2 * window.margin - window.kernel
    sides.append(room // window.stride + 1 if room >= 0 else 0)
    if sides[-1] == 0:
      raise ValueError(
        f"the feature map shrinks to nothing ({' -> '.join(map(str, sides))}); enlarge"
        " config.data.canvas, or lower kernels and strides"
      )
  return sides[-1]


def covered_side(side: int, windows: Sequence[Window]) -> int:
  """Pixels of a side, from the first, up to the last that the last map can depend on."""
  jump, field, start = 1, 1, 0  # in pixels: between neighbours on the map, seen by one, its first
  for window in windows:
    field += (window.kernel - 1) * jump
    start -= window.margin * jump
    jump *= window.stride
  return min(side, start + (map_side(side, windows) - 1) * jump + field)


def require_receptive_field(
  canvas: int, windows: Sequence[Window], keys: Mapping[str, object]
) -> None:
  """Raises `ValueError` unless features can depend on nearly all of a square image.

  That is `MIN_SHARE` of its side, and no pixels between windows: a model that sees less trains
  without an error. `keys` are what made the layers, `{"model.part_encoder.strides": (2, 2, 1, 1)}`.
  """
  made = ", ".join(f"config.{key} {value!r}" for key, value in keys.items())
  try:
    covered = covered_side(canvas, windows)
  except ValueError as error:
    raise ValueError(f"with {made} and config.data.canvas {canvas} {error}.") from None
  if covered < MIN_SHARE * canvas or any(window.stride > window.kernel for window in windows):
    raise ValueError(
      f"with {made} and config.data.canvas {canvas} features depend on {covered} of {canvas} rows"
      " and columns at most, and a stride above its kernel skips pixels. Lower the former."
    )
