"""How much of an image a stack of convolutions sees.

Strides and pools leave out pixels at the far ends, and between windows where a stride is larger
than its kernel. A model whose features depend on a corner of the image trains without an error.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

# Of the pixels. Matrix capsules with the published kernels and strides see 82 % of 32x32, 80 % of
# 28x28: three rows and columns at the far ends are left out.
MIN_SHARE = 0.75


@dataclasses.dataclass(frozen=True)
class Window:
  """A convolution or a pooling, along either axis."""

  kernel: int  # side, pixels
  stride: int  # between windows
  margin: int = 0  # zeros on each side of the map


def sides(side: int, windows: Sequence[Window]) -> list[int]:
  """Sides of the image and of the map after each layer, to the first that is 0."""
  found = [side]
  for window in windows:
    room = found[-1] + 2 * window.margin - window.kernel
    found.append(room // window.stride + 1 if room >= 0 else 0)
    if found[-1] == 0:
      break
  return found


def map_side(side: int, windows: Sequence[Window]) -> int:
  """Side of the last map; `ValueError` if nothing would be left."""
  found = sides(side, windows)
  if found[-1] == 0:
    walk = " -> ".join(map(str, found))
    raise ValueError(
      f"the feature map shrinks to nothing ({walk}); enlarge config.data.canvas, or lower kernels"
      " and strides"
    )
  return found[-1]


def seen_share(side: int, windows: Sequence[Window]) -> float:
  """Share of the pixels of a square image from which there is a way to the last map."""
  found = sides(side, windows)
  seen = np.ones(found[-1], bool)
  for below, window in zip(found[-2::-1], windows[::-1], strict=True) if found[-1] else ():
    positions = np.flatnonzero(seen)[:, None] * window.stride + np.arange(window.kernel)[None]
    padded = np.zeros(below + 2 * window.margin, bool)
    padded[positions] = True
    seen = padded[window.margin : window.margin + below]
  return float(seen.sum() / side) ** 2


def require_sight(canvas: int, windows: Sequence[Window], keys: Mapping[str, object]) -> None:
  """Raises `ValueError` unless `MIN_SHARE` of the pixels of a square image can reach the last map.

  `keys` are what made the layers, `{"model.part_encoder.strides": (2, 2, 1, 1)}`.
  """
  share = seen_share(canvas, windows)
  if share >= MIN_SHARE:
    return
  made = ", ".join(f"config.{key} {value!r}" for key, value in keys.items())
  try:
    map_side(canvas, windows)
  except ValueError as error:
    raise ValueError(f"with {made} and config.data.canvas {canvas} {error}.") from None
  larger = range(canvas + 1, 2 * canvas)
  enough = next((side for side in larger if seen_share(side, windows) >= MIN_SHARE), None)
  advice = f", or set config.data.canvas to {enough}" if enough else ""
  raise ValueError(
    f"with {made} and config.data.canvas {canvas} features see {share:.1%} of the pixels; expected"
    f" at least {MIN_SHARE:.0%}. Lower the former{advice}."
  )
