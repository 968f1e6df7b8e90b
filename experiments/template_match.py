"""Nearest affine match between templates: could one part draw the template of another?

If a template is another one rotated, scaled, sheared or mirrored, two parts with different poses
draw the same stroke: parts are not identifiable (Smith et al. 2020, arXiv 2004.03553, section 5).
The error of template j as an image of template i is, at the best affine pose,
|warp(T_j, pose) - T_i|^2 / |T_i|^2, over the pixels of T_i. Templates are multiplied by their
alphas, if any. The error is 0 for a perfect match, and at most 1, because a pose may move T_j out
of sight. It is not symmetric: a piece of T_j, enlarged, may be all of T_i.

The pose is found by gradient descent from 16 starts. Each start maps centre and second moments of
one template to those of the other; they differ by rotations in steps of 45 degrees and mirroring.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from scae_jax.math import geometry, warping
from scae_jax.typing import Array, Float, typed

MATCH = 0.1  # relative error below which templates match
BLANK = 0.01  # root mean square below which a template has no ink
NUM_STEPS = 200
LEARNING_RATE = 0.03
ROTATIONS = tuple(range(0, 360, 45))


def match_templates(templates: np.ndarray, alphas: np.ndarray | None = None) -> dict[str, Any]:
  """The nearest other template of each template, and its error.

  `templates` [m, t, t, c] in [0, 1] are multiplied by `alphas` [m, t, t, 1], if there are any.
  Fewer than two with ink raise ValueError.

  Returns:
    `templates`, their number; `blank`, indices of those without ink, which are left out;
    `mean_error`, the mean of the others' least errors; `matched`, the share of these errors below
    `match_below`; `nearest`, for each of the others its index `template`, that of its nearest,
    `by`, and the `error`; and `notes`.
  """
  ink = np.asarray(templates, np.float32)
  if alphas is not None:
    ink = ink * np.asarray(alphas, np.float32)
  has_ink = np.sqrt(np.mean(np.square(ink), axis=(1, 2, 3))) >= BLANK
  kept, blank = np.flatnonzero(has_ink), np.flatnonzero(~has_ink)
  if len(kept) < 2:
    raise ValueError(
      f"{len(kept)} of {len(ink)} templates have ink (a root mean square of {BLANK} or more);"
      " expected two or more, to match one with another."
    )
  errors = np.array(match_errors(jnp.asarray(ink[kept])))
  np.fill_diagonal(errors, np.inf)
  least = errors.min(axis=1)
  notes = []
  if len(blank):
    numbers = ", ".join(map(str, blank))
    notes.append(f"{len(blank)} of {len(ink)} templates have no ink and are left out: {numbers}.")
  return {
    "templates": len(ink),
    "blank": blank.tolist(),
    "mean_error": float(least.mean()),
    "matched": float(np.mean(least < MATCH)),
    "match_below": MATCH,
    "nearest": [
      {"template": int(kept[i]), "by": int(kept[j]), "error": float(least[i])}
      for i, j in enumerate(errors.argmin(axis=1))
    ],
    "notes": notes,
  }


@functools.partial(jax.jit, static_argnames="num_steps")
def match_errors(ink: Float[Array, "m t t c"], num_steps: int = NUM_STEPS) -> Float[Array, "m m"]:
  """Least relative error of each template (row) as drawn by each template (column).

  All templates have ink. Adam runs for all pairs and starts in one scan, with a learning rate that
  falls to 0; the least error of all steps counts.
  """
  side = ink.shape[1]
  centres, spreads = jax.vmap(moments)(ink)
  mirrors = jnp.array([1.0, -1.0])
  optimizer = optax.adam(optax.cosine_decay_schedule(LEARNING_RATE, num_steps))

  def start(degrees: Array, mirror: Array, target: tuple[Array, Array], source: Array) -> Array:
    """The pose that takes centre and moments of the source to the target's."""
    linear = geometry.rotation(degrees)[:, :2] * jnp.stack([mirror, jnp.ones(())])[None]
    linear = target[1] @ linear @ jnp.linalg.inv(spreads[source])
    shift = target[0] - linear @ centres[source]
    return jnp.concatenate([linear, shift[:, None]], axis=1)

  def error(pose: Array, source: Array, target: Array) -> Array:
    drawn = warping.warp_template(ink[source], pose, side, side)
    return jnp.sum(jnp.square(drawn - target)) / jnp.sum(jnp.square(target))

  def descend(pose: Array, source: Array, target: Array) -> Array:
    """The least error of all steps from one start."""

    def step(carry: tuple[Array, Any, Array], _: None) -> tuple[tuple[Array, Any, Array], None]:
      pose, state, least = carry
      value, gradient = jax.value_and_grad(error)(pose, source, target)
      updates, state = optimizer.update(gradient, state)
      pose = pose + jnp.asarray(updates)
      return (pose, state, jnp.minimum(least, value)), None

    first = (pose, optimizer.init(pose), jnp.float32(jnp.inf))
    (pose, _, least), _ = jax.lax.scan(step, first, None, length=num_steps)
    return jnp.minimum(least, error(pose, source, target))

  def pair(source: Array, i: Array) -> Array:
    starts = jax.vmap(jax.vmap(start, (0, None, None, None)), (None, 0, None, None))
    poses = starts(jnp.array(ROTATIONS, jnp.float32), mirrors, (centres[i], spreads[i]), source)
    least = jax.vmap(descend, (0, None, None))(poses.reshape(-1, 2, 3), source, ink[i])
    return jnp.minimum(
      jnp.min(least), 1.0
    )  # the error of a pose that moves the source out of sight

  numbers = jnp.arange(len(ink))
  # A target at a time, so that the pictures of all pairs are never in memory together.
  return jax.lax.map(lambda i: jax.vmap(pair, (0, None))(numbers, i), numbers)


@typed
def moments(ink: Float[Array, "t t c"]) -> tuple[Float[Array, "2"], Float[Array, "2 2"]]:
  """Centre of a template's brightness, and the root of its second moments, in [-1, 1] coordinates.

  A pixel counts as a square, so that a line one pixel wide has a width.
  """
  side = ink.shape[0]
  weight = jnp.sum(ink, axis=-1).reshape(-1) / jnp.sum(ink)
  line = jnp.linspace(-1.0, 1.0, side)
  y, x = jnp.meshgrid(line, line, indexing="ij")
  points = jnp.stack([x.reshape(-1), y.reshape(-1)], axis=1)
  centre = weight @ points
  centred = points - centre[None]
  pixel = (2.0 / (side - 1)) ** 2 / 12
  covariance = (centred * weight[:, None]).T @ centred + pixel * jnp.eye(2)
  # Symmetric root of a 2x2 matrix S: (S + sqrt(det S) I) / sqrt(trace S + 2 sqrt(det S)).
  root_det = jnp.sqrt(covariance[0, 0] * covariance[1, 1] - covariance[0, 1] ** 2)
  root = (covariance + root_det * jnp.eye(2)) / jnp.sqrt(jnp.trace(covariance) + 2 * root_det)
  return centre, root
