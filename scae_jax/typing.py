"""The axis legend, the array types, and the run-time check of both.

Axis letters in annotations (never in variable names):

  b   examples of a batch          m  part capsules          c  image channels
  h   image height, pixels         k  object capsules        d  features
  w   image width, pixels          t  template side, pixels  n  anything counted: points, rows
  h2  height after a convolution   r  kernel height, pixels  e  features of another width than d
  w2  width after a convolution    r2 kernel width, pixels   f  and of a third
  v   votes of an object capsule   q  queries of attention   s  samples, or steps of a change
  p   positions of a grid          i  iterations of routing

Checks happen while a function is traced, so a compiled step does not pay for them.
`JAXTYPING_DISABLE=1` in the environment turns them off.
"""

from collections.abc import Mapping

import jax
from beartype import beartype
from jaxtyping import Bool, Float, Int, Num, PRNGKeyArray, UInt8, jaxtyped

__all__ = ["Array", "Batch", "Bool", "Float", "Int", "Num", "PRNGKeyArray", "UInt8", "typed"]

Array = jax.Array
# `image` float32 in [0, 1] [b, h, w, c] and `label` int32 [b]; of two images overlaid also
# `other_label` int32 [b] and `sources` [b, 2, h, w, c]; of normalised images, whose pixels have any
# values, `mean` and `std` [b] of what they were in [0, 1]. What there is of points:
# `PointSpec`.
Batch = Mapping[str, jax.Array]

typed = jaxtyped(typechecker=beartype)
