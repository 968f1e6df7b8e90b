"""Arrays of the figures of a generative model of capsules: samples of its prior and its objects.

Smith et al. 2020, arXiv 2004.03553. Objects are the topmost layer.
"""

import jax
import jax.numpy as jnp

from scae_jax.math import geometry
from scae_jax.math.routing.selection import CERTAIN, Capsules
from scae_jax.models.probabilistic.generative_model import GenerativeCapsules
from scae_jax.typing import Array, Float, Int

NUM_SAMPLES = 50
# Poses of a drawn object: degrees, counter-clockwise; scale; shifts right and down, where 1 is half
# the canvas.
MOVES = (
  (0, 1.0, 0.0, 0.0),
  (30, 1.0, 0.0, 0.0),
  (-30, 1.0, 0.0, 0.0),
  (0, 0.75, 0.0, 0.0),
  (0, 1.25, 0.0, 0.0),
  (0, 1.0, 0.3, 0.0),
  (0, 1.0, 0.0, 0.3),
)


def prior_samples(generative: GenerativeCapsules, canvas: int) -> dict[str, Array]:
  """Arguments of the figure of this name: samples [n, h, w, c] of the prior, with presences of 0 or
  1. The key is constant."""

  def sample(key: Array) -> Capsules:
    top_key, below_key = jax.random.split(key)
    return generative.sample(below_key, generative.sample_top(top_key))[0][0]

  parts = jax.vmap(sample)(jax.random.split(jax.random.key(0), NUM_SAMPLES))
  return {"samples": generative.draw(parts, canvas)}


def object_samples(generative: GenerativeCapsules, canvas: int) -> dict[str, Array]:
  """Arguments of the figure of this name: each top object alone at the poses [p, 2, 3].

  `samples` [k, p, h, w, c] are the objects' expected drawings.
  """
  poses = jnp.stack([move_pose(*move) for move in MOVES])

  def draw_object(number: Array) -> Array:
    return draw_objects(generative, jnp.full(len(MOVES), number), poses, canvas)

  numbers = jnp.arange(generative.capsules[-1])
  return {"samples": jax.lax.map(draw_object, numbers), "poses": poses}


def draw_objects(
  generative: GenerativeCapsules,
  objects: Int[Array, " n"],
  poses: Float[Array, "n 2 3"],
  canvas: int,
  key: Array | None = None,
) -> Float[Array, "n h w c"]:
  """Images of canvas x canvas pixels, each of one top object at its pose.

  `objects` are numbers in the top layer, not checked. With a key images are independent samples,
  without one expected drawings.
  """
  num_objects = generative.capsules[-1]

  def top(number: Array, pose: Array) -> Capsules:
    logits = jnp.where(jnp.arange(num_objects) == number, CERTAIN, -CERTAIN)
    return Capsules(logits, jnp.broadcast_to(pose, (num_objects, 2, 3)))

  tops = jax.vmap(top)(objects, poses)
  if key is None:
    parts = jax.vmap(lambda top: generative.expect_children(top)[0])(tops)
  else:
    keys = jax.random.split(key, len(poses))
    parts = jax.vmap(lambda key, top: generative.sample(key, top)[0][0])(keys, tops)
  return generative.draw(parts, canvas)


def move_pose(degrees: float, scale: float, right: float, down: float) -> Float[Array, "2 3"]:
  """The pose that scales and rotates about the middle, then shifts."""
  rotation = geometry.rotation(jnp.float32(degrees))
  return jnp.float32(scale) * rotation + jnp.array([[0.0, 0.0, right], [0.0, 0.0, down]])
