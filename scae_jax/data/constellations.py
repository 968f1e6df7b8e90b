"""Constellations: scenes of points that form squares, triangles and other patterns.

Kosiorek et al. 2019, section 3.1. A scene is a pure function of a key. Whole patterns are present
or absent, and each has its own rotation, scale and shift. Points are shuffled, so that only
geometry tells which belong together. Training draws new scenes at every step; evaluation has fixed
ones.
"""

import dataclasses
import functools
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np

from scae_jax.bounds import Bound, between, each, one_of
from scae_jax.data.feed import Feed
from scae_jax.models.system import PointSpec
from scae_jax.typing import Array, PRNGKeyArray, typed


def _centred(points: list[tuple[float, float]]) -> np.ndarray:
  array = np.asarray(points, np.float64)
  return (array - array.mean(axis=0)).astype(np.float32)


def _regular(corners: int) -> np.ndarray:
  """A regular polygon of side 2, its first corner on the y axis."""
  angles = 2 * np.pi * np.arange(corners) / corners
  radius = 1 / np.sin(np.pi / corners)
  return _centred([(radius * np.sin(angle), radius * np.cos(angle)) for angle in angles])


# Points [p, 2] of each pattern, side 2, around their mean; corners of polygons in order.
PATTERNS: dict[str, np.ndarray] = {
  "square": _centred([(-1, -1), (-1, 1), (1, 1), (1, -1)]),
  "triangle": _regular(3),
  "pentagon": _regular(5),
  "l": _centred([(0, 2), (0, 1), (0, 0), (1, 0), (2, 0)]),
}

NAME = "constellations"
NUM_TEST = 10_000
NUM_VALIDATION = 1_024
# Seeds of scenes that are the same for every run, up to a device's rounding. Training scenes are
# drawn from keys of the run's seed.
TEST_SEED, VALIDATION_SEED = 1_000_003, 1_000_033
# Scenes are generated without end: the size of an epoch matters only for bookkeeping.
EPOCH = 10_000
# Below it, rounding errors dominate the probability that any pattern is present.
MIN_PRESENCE = 1e-3
MAX_LENGTH = 1e4  # of anything in a scene
MAX_POINTS = 10_000
ROOM_FOR_PATTERNS = Bound(
  "0 or at least as many as {section}.patterns have, {patterns}",
  lambda value, fields: (
    value == 0 or value >= sum(len(PATTERNS[name]) for name in fields["patterns"])
  ),
)


@dataclasses.dataclass(frozen=True)
class Scenes:
  """A data set of generated scenes of points; the fields are the ranges of a scene.

  Lengths are in the units of `PATTERNS`, whose side is 2.
  """

  # Names of `PATTERNS`, repeated as often as a scene may hold one.
  patterns: Annotated[tuple[str, ...], each(one_of(*PATTERNS), least=1)]
  presence_prob: Annotated[float, between(MIN_PRESENCE, 1)]  # of each pattern; see `scene`
  max_rotation: Annotated[float, between(0, MAX_LENGTH)]  # degrees, either way
  # Scales are uniform between these two.
  min_scale: Annotated[float, between(1 / MAX_LENGTH, MAX_LENGTH)]
  max_scale: Annotated[float, between("min_scale", MAX_LENGTH)]
  field: Annotated[float, between(0, MAX_LENGTH)]  # side of the square of the patterns' middles
  jitter: Annotated[float, between(0, MAX_LENGTH)]  # standard deviation, added to each coordinate
  # Slots of a scene; 0 for the number of points of the patterns. Further slots are absent points.
  num_points: Annotated[int, between(0, MAX_POINTS), ROOM_FOR_PATTERNS]
  name: Annotated[str, one_of(NAME)] = NAME

  @property
  def slots(self) -> int:
    """Points of a scene, present or not."""
    return self.num_points or sum(len(PATTERNS[name]) for name in self.patterns)

  @property
  def spec(self) -> PointSpec:
    """The facts that a model is built from."""
    return PointSpec(
      num_points=self.slots,
      num_patterns=len(self.patterns),
      largest_pattern=max(len(PATTERNS[name]) for name in self.patterns),
    )

  @property
  def extent(self) -> float:
    """Largest coordinate of a point without jitter, in units; coordinates are divided by it."""
    radius = max(np.linalg.norm(PATTERNS[name], axis=1).max() for name in self.patterns)
    return self.field / 2 + self.max_scale * float(radius)

  def test_scenes(self, jitter: float, count: int = NUM_TEST) -> dict[str, np.ndarray]:
    """Fixed scenes to score on, with this jitter instead of the data set's."""
    options = dataclasses.replace(self, jitter=jitter)
    return jax.device_get(scenes(jax.random.key(TEST_SEED), options, count))

  def feed(self) -> Feed:
    """What training needs; the held-out scenes are not those of the test."""
    heldout = scenes(jax.random.key(VALIDATION_SEED), self, NUM_VALIDATION)
    return Feed(
      spec=self.spec,
      train={},
      num_train=EPOCH,
      held_out="validation",
      heldout=jax.device_get(heldout),
      num_heldout=NUM_VALIDATION,
      training_batch=lambda key, _, indices: scenes(key, self, len(indices)),
      evaluation_batch=lambda heldout, indices: {
        name: array[indices] for name, array in heldout.items()
      },
    )


@typed
def scene(key: PRNGKeyArray, options: Scenes) -> dict[str, Array]:
  """Draws one scene.

  Rotation, scale and shift of each pattern are uniform within the ranges of the options. Patterns
  are present independently with `presence_prob`, given that at least one is. Coordinates are
  divided by the constant `options.extent`, so that without jitter every point lies in [-1, 1].

  Returns `points` float32 [n, 2], zero where absent; `presence` float32 [n], 0 or 1; `pattern`
  int32 [n], the index in `options.patterns` of the pattern that a point belongs to, present or not,
  and 0 for slots beyond all patterns. Slots are in random order.
  """
  names = options.patterns
  presence_key, pose_key, jitter_key, order_key = jax.random.split(key, 4)
  present = _draw_presences(presence_key, len(names), options.presence_prob)
  low = jnp.array([-options.max_rotation, options.min_scale] + [-options.field / 2] * 2)
  high = jnp.array([options.max_rotation, options.max_scale] + [options.field / 2] * 2)
  uniform = jax.random.uniform(pose_key, (len(names), 4))
  degrees, scale, x, y = jnp.moveaxis(low[None] + uniform * (high - low)[None], 1, 0)

  corners = np.concatenate([PATTERNS[name] for name in names])
  sizes = [len(PATTERNS[name]) for name in names]
  pattern_of_point = np.repeat(np.arange(len(names), dtype=np.int32), sizes)
  num_spare = options.slots - len(corners)
  template = np.pad(corners, ((0, num_spare), (0, 0)))
  pattern = np.pad(pattern_of_point, (0, num_spare))
  belongs_to_pattern = np.arange(options.slots) < len(corners)

  radians = jnp.deg2rad(degrees)[pattern]
  cos, sin = scale[pattern] * jnp.cos(radians), scale[pattern] * jnp.sin(radians)
  right, down = template.T
  coordinates = (cos * right - sin * down + x[pattern], sin * right + cos * down + y[pattern])
  points = jnp.stack(coordinates, axis=1)
  points += options.jitter * jax.random.normal(jitter_key, points.shape)
  presence = jnp.where(belongs_to_pattern, present[pattern], False)
  points = jnp.where(presence[:, None], points / options.extent, 0.0)
  order = jax.random.permutation(order_key, options.slots)
  return {
    "points": points[order],
    "presence": presence[order].astype(jnp.float32),
    "pattern": jnp.asarray(pattern)[order],
  }


@functools.partial(jax.jit, static_argnames=("options", "count"))
def scenes(key: PRNGKeyArray, options: Scenes, count: int) -> dict[str, Array]:
  """`count` scenes, stacked; scene i depends only on the key and i."""
  keys = jax.vmap(functools.partial(jax.random.fold_in, key))(jnp.arange(count))
  return jax.vmap(functools.partial(scene, options=options))(keys)


def _draw_presences(key: PRNGKeyArray, count: int, prob: float) -> Array:
  """Independent presences, bool [count], given that at least one is True.

  They are drawn one after the other. While none is True, the next is with probability
  prob / (1 - (1 - prob)^left), where `left` is the number of those not drawn yet.
  """
  uniform = jax.random.uniform(key, (count,))
  present, any_present = [], jnp.zeros((), bool)
  for i in range(count):
    prob_if_none = prob / (1 - (1 - prob) ** (count - i))
    present.append(uniform[i] < jnp.where(any_present, prob, prob_if_none))
    any_present |= present[-1]
  return jnp.stack(present)
