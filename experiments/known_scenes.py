"""A generative model with known parameters, and the scenes that it draws.

Three objects of two parts each; each is at most once in a scene, and one may cover another.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from scae_jax.models.generative_capsules import GenerativeCapsules
from scae_jax.routing.selection import Capsules
from scae_jax.typing import Array

CANVAS = 20
NUM_SCENES = {"train": 4_000, "test": 1_000}
# One part a glyph, 5x5 pixels in a template of 7x7. None is an affine image of another: a part that
# has learnt one could draw both.
GLYPHS = (
  ("#####", "#...#", "#...#", "#...#", "#####"),
  ("..#..", "..#..", "#####", "..#..", "..#.."),
  ("#....", "#....", "#....", "#....", "#####"),
  ("#####", "..#..", "..#..", "..#..", "..#.."),
  ("#...#", "#...#", "#...#", "#...#", "#...#"),
  (".....", ".###.", ".###.", ".###.", "....."),
)
# Where the parts of each object stand in it, x and y, in units of half the object's side.
PLACES = (
  ((-0.5, -0.5), (0.5, -0.5)),
  ((-0.5, 0.1), (0.5, 0.1)),
  ((0.0, -0.1), (0.0, 0.6)),
)
PART_SIZE = 0.34  # of half the object's side
CERTAIN = 6.0  # a logit


def true_model() -> GenerativeCapsules:
  """The model that the images are drawn from."""
  return GenerativeCapsules(
    capsules=(len(GLYPHS), len(PLACES)),
    channels=1,
    template_size=7,
    nonlinearity="sigmoid",
    pixel_scale=0.05,
    temperature=0.5,
    top_presence=0.5,
    top_scale=0.12,
    dummy_affinity=0.05,
    broad_scale=0.5,
    min_scale=0.02,
    initial_scale=0.03,
    shared_scales=True,
  )


def true_parameters() -> dict[str, Any]:
  """Each object has two parts of its own, which are nearly always there with it, and not else."""
  count, objects = len(GLYPHS), len(PLACES)
  ink = np.array([[[cell == "#" for cell in row] for row in glyph] for glyph in GLYPHS])
  ink = np.pad(ink, ((0, 0), (1, 1), (1, 1)))[..., None]
  logits = np.where(ink, CERTAIN, -CERTAIN).astype(np.float32)
  owner = np.arange(count) // (count // objects)
  own = owner[None] == np.arange(objects)[:, None]
  offsets = np.zeros((objects, count, 2, 3), np.float32)
  offsets[:, :, [0, 1], [0, 1]] = PART_SIZE - 1
  offsets[:, :, :, 2] = np.concatenate(PLACES)[None]
  presence = np.concatenate([np.where(own, 3.0, -3.0), np.full((1, count), -4.0)])
  scale = np.log(np.expm1(0.01)) * np.ones((1, count, 6))
  return {
    "templates": jnp.full(logits.shape, CERTAIN),
    "alphas": jnp.asarray(logits),
    "affinity_1": jnp.asarray(np.where(own, 0.0, -CERTAIN), jnp.float32),
    "presence_1": jnp.asarray(presence, jnp.float32),
    "offset_1": jnp.asarray(offsets),
    "scale_1": jnp.asarray(scale, jnp.float32),
  }


def draw_scenes(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
  """Images uint8 [n, h, w, 1] and which objects are there, bool [n, k]."""
  picture, there = _draw(jax.random.split(jax.random.key(seed), count))
  noise = np.random.default_rng(seed).normal(0, true_model().pixel_scale, picture.shape)
  image = np.clip(np.asarray(picture) + noise, 0, 1)
  return np.round(255 * image).astype(np.uint8), np.asarray(there)


@jax.jit
def _draw(keys: Array) -> tuple[Array, Array]:
  """What the true model draws with each key, without noise, and which objects are there."""

  def scenes(module: GenerativeCapsules) -> tuple[Array, Array]:
    def layers(key: Array) -> tuple[Capsules, Capsules]:
      top_key, below_key = jax.random.split(key)
      (parts, objects), _ = module.sample(below_key, module.sample_top(top_key))
      return parts, objects

    parts, objects = jax.vmap(layers)(keys)
    return module.draw(parts, CANVAS), objects.presence > 0.5

  return nn.apply(scenes, true_model())({"params": true_parameters()})
