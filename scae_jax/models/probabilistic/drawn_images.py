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
# How a chosen object is moved: degrees, counter-clockwise; scale; shift right and down, where 1 is
# half the canvas.
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
  """Arguments of the figure of this name: the same images [n, h, w, c], drawn from the prior, every
  time; presences are 0 or 1."""

  def sample(key: Array) -> Capsules:
    top_key, below_key = jax.random.split(key)
    return generative.sample(below_key, generative.sample_top(top_key))[0][0]

  parts = jax.vmap(sample)(jax.random.split(jax.random.key(0), NUM_SAMPLES))
  return {"samples": generative.draw(parts, canvas)}


def object_samples(generative: GenerativeCapsules, canvas: int) -> dict[str, Array]:
  """Arguments of the figure of this name: every top object alone at chosen poses [p, 2, 3].

  Samples [k, p, h, w, c] are the objects' expected drawings.
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
  """Pictures of canvas x canvas pixels of top objects at given poses, one object each.

  `objects` are numbers in the top layer, not checked. Pictures are samples, all different, or,
  without a key, expected drawings.
  """
  num_objects = generative.capsules[-1]

  def top(number: Array, pose: Array) -> Capsules:
    logits = jnp.where(jnp.arange(num_objects) == number, CERTAIN, -CERTAIN)
    return Capsules(logits, jnp.broadcast_to(pose, (num_objects, 2, 3)))

  tops = jax.vmap(top)(objects, poses)
  if key is None:
    parts = jax.vmap(lambda one: generative.expect_children(one)[0])(tops)
  else:
    keys = jax.random.split(key, len(poses))
    parts = jax.vmap(lambda own, one: generative.sample(own, one)[0][0])(keys, tops)
  return generative.draw(parts, canvas)


def move_pose(degrees: float, scale: float, right: float, down: float) -> Float[Array, "2 3"]:
  """The pose that scales and rotates about the middle, then shifts."""
  rotation = geometry.rotation(jnp.float32(degrees))
  return jnp.float32(scale) * rotation + jnp.array([[0.0, 0.0, right], [0.0, 0.0, down]])
