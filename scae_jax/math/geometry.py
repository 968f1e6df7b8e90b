"""Poses: affine and similarity transforms of the plane.

A pose is a 2x3 matrix `[A | t]` that maps a column `(x, y, 1)` in the coordinates of a part (or an
object) to the coordinates of the image (or the object). Image and template coordinates are in
[-1, 1], x to the right and y down. As six numbers a pose is its matrix row by row. Networks output
six *raw* numbers, which `affine_matrix` and `similarity_matrix` map to a pose.

Functions take one pose; callers vmap.
"""

import jax
import jax.numpy as jnp

from scae_jax.typing import Array, Float, typed

MIN_SCALE = 0.01
MIN_DETERMINANT = 1e-12
MIN_FRAME = 0.05  # the smallest scale of a frame
FAR = 1e4


@typed
def affine_matrix(raw: Float[Array, "6"], *, min_scale: float = MIN_SCALE) -> Float[Array, "2 3"]:
  """Affine pose from six unconstrained numbers.

  In this order: scale x and scale y, in (min_scale, 1.01); rotation in turns (1 is 2 pi); shear,
  shift x and shift y, in (-1, 1). The determinant is the product of the scales. Kosiorek et al.
  2019, appendix A.
  """
  scale_x, scale_y = min_scale + (1 + MIN_SCALE - min_scale) * jax.nn.sigmoid(raw[:2])
  cos, sin = jnp.cos(_radians(raw[2])), jnp.sin(_radians(raw[2]))
  shear, shift_x, shift_y = jnp.tanh(5 * raw[3]), jnp.tanh(5 * raw[4]), jnp.tanh(5 * raw[5])
  x = (scale_x * cos + shear * scale_y * sin, -scale_x * sin + shear * scale_y * cos, shift_x)
  return jnp.stack([jnp.stack(x), jnp.stack([scale_y * sin, scale_y * cos, shift_y])])


@typed
def similarity_matrix(raw: Float[Array, "6"]) -> Float[Array, "2 3"]:
  """Similarity pose from the same six numbers; the second scale and the shear are ignored."""
  scale = jax.nn.sigmoid(raw[0]) + MIN_SCALE
  cos, sin = jnp.cos(_radians(raw[2])), jnp.sin(_radians(raw[2]))
  shift_x, shift_y = jnp.tanh(5 * raw[4]), jnp.tanh(5 * raw[5])
  x, y = (scale * cos, -scale * sin, shift_x), (scale * sin, scale * cos, shift_y)
  return jnp.stack([jnp.stack(x), jnp.stack(y)])


@typed
def pose_matrix(raw: Float[Array, "6"], *, similarity: bool) -> Float[Array, "2 3"]:
  """`similarity_matrix` or `affine_matrix` of the raw numbers."""
  return similarity_matrix(raw) if similarity else affine_matrix(raw)


@typed
def rotation(degrees: Float[Array, ""]) -> Float[Array, "2 3"]:
  """The pose that rotates by an angle in degrees, counter-clockwise in the displayed image.

  The sign is that of `scae_jax.data.affine.rotation`, and opposite to that in `affine_matrix`.
  """
  cos, sin = jnp.cos(jnp.deg2rad(degrees)), jnp.sin(jnp.deg2rad(degrees))
  zero = jnp.zeros(())
  return jnp.stack([jnp.stack([cos, sin, zero]), jnp.stack([-sin, cos, zero])])


def identity() -> Float[Array, "2 3"]:
  """The identity pose."""
  return jnp.eye(2, 3)


@typed
def compose(outer: Float[Array, "2 3"], inner: Float[Array, "2 3"]) -> Float[Array, "2 3"]:
  """The pose that applies `inner` first: `outer @ inner` of the 3x3 matrices."""
  linear = _product(outer[:, :2], inner[:, :2])
  shift = _product(outer[:, :2], inner[:, 2]) + outer[:, 2]
  return jnp.concatenate([linear, shift[:, None]], axis=1)


@typed
def determinant(pose: Float[Array, "2 3"]) -> Float[Array, ""]:
  """The determinant of A: the signed factor by which the pose scales areas."""
  return pose[0, 0] * pose[1, 1] - pose[0, 1] * pose[1, 0]


@typed
def invert(pose: Float[Array, "2 3"]) -> Float[Array, "2 3"]:
  """The inverse pose: `[A^-1 | -A^-1 t]`.

  Poses from `affine_matrix` have a determinant of at least 1e-4, compositions of two at least 1e-8.
  A pose with a determinant below 1e-12, as an average of votes can have, is collapsed and has no
  inverse. The result then maps every point to (1e4, 1e4), far outside any template, without a
  gradient.
  """
  det = determinant(pose)
  collapsed = jnp.abs(det) < MIN_DETERMINANT
  a, b, c, d = pose[0, 0], pose[0, 1], pose[1, 0], pose[1, 1]
  linear = jnp.stack([jnp.stack([d, -b]), jnp.stack([-c, a])]) / jnp.where(collapsed, 1.0, det)
  inverse = jnp.concatenate([linear, -_product(linear, pose[:, 2])[:, None]], axis=1)
  far = jnp.zeros((2, 3)).at[:, 2].set(FAR)
  return jnp.where(collapsed, far, inverse)


@typed
def frame_of(
  places: Float[Array, "m 2"],
  presence: Float[Array, " m"],
  linear: Float[Array, "m 2 2"] | None = None,
) -> Float[Array, "2 3"]:
  """The frame of points or parts, [s I | c], which maps coordinates relative to them to the image.

  c is the mean of their places, s twice the root mean squared distance from c, at least 0.05. Means
  are weighted by the presences. With the matrices A of poses, `linear`, the distance is that of all
  points of the parts' squares: then parts are hardly larger than the frame unless few are present,
  and votes, whose scales are at most 1, can reach them. A translation of all points or parts
  translates the frame; a scaling scales it, down to 0.05.
  """
  weights = presence / jnp.maximum(jnp.sum(presence), 1e-6)
  centre = jnp.sum(weights[:, None] * places, axis=0)
  variance = jnp.sum(weights[:, None] * jnp.square(places - centre[None]))
  if linear is not None:  # points of a square have variance 1/3 along each side
    variance = variance + jnp.sum(weights[:, None, None] * jnp.square(linear)) / 3
  scale = 2 * jnp.sqrt(jnp.maximum(variance, jnp.square(MIN_FRAME / 2)))
  return jnp.concatenate([scale * jnp.eye(2), centre[:, None]], axis=1)


def _radians(turns: Float[Array, ""]) -> Float[Array, ""]:
  """The angle of a number of turns; from 2^23 turns on, whole turns are removed."""
  # From 2^23 on every float32 is a whole number; the largest times 2 pi would be infinite.
  whole = jnp.where(jnp.abs(turns) < 2**23, 0.0, turns)
  return 2 * jnp.pi * (turns - jax.lax.stop_gradient(whole))


def _product(left: Array, right: Array) -> Array:
  """Matrix product in full precision on every device."""
  # The lower default precision of an accelerator would move a template by a tenth of a pixel.
  return jnp.matmul(left, right, precision="highest")
