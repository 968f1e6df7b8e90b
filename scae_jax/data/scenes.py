"""Constellations as a data set: for training drawn anew at every step, for evaluation fixed."""

import dataclasses
from typing import Any

import jax
import numpy as np

from scae_jax.data.constellations import SceneOptions, scenes
from scae_jax.data.feed import Feed
from scae_jax.models.system import PointSpec

NAME = "constellations"
NUM_TEST = 10_000
NUM_VALIDATION = 1_024
# Scenes that are the same for every run, up to a device's rounding; those that a run trains on are
# drawn from keys that its seed makes.
TEST_SEED, VALIDATION_SEED = 1_000_003, 1_000_033
# The generator has no end: the number of scenes in an epoch changes nothing but the bookkeeping.
EPOCH = 10_000


@dataclasses.dataclass(frozen=True)
class Scenes:
  """Generated scenes of points."""

  options: SceneOptions

  name = NAME

  @property
  def spec(self) -> PointSpec:
    """The facts that a model is built from."""
    return PointSpec(
      num_points=self.options.slots,
      num_patterns=len(self.options.patterns),
      largest_pattern=self.options.largest,
    )

  def test_scenes(self, jitter: float, count: int = NUM_TEST) -> dict[str, np.ndarray]:
    """Scenes to score on, with this jitter instead of the options'; always the same."""
    options = dataclasses.replace(self.options, jitter=jitter)
    return jax.device_get(scenes(jax.random.key(TEST_SEED), options, count))

  def feed(self) -> Feed:
    """What training needs; losses are judged on scenes that are not those of the test."""
    heldout = scenes(jax.random.key(VALIDATION_SEED), self.options, NUM_VALIDATION)
    return Feed(
      spec=self.spec,
      train={},
      num_train=EPOCH,
      held_out="validation",
      heldout=jax.device_get(heldout),
      num_heldout=NUM_VALIDATION,
      training_batch=lambda key, _, indices: scenes(key, self.options, len(indices)),
      evaluation_batch=lambda heldout, indices: {n: one[indices] for n, one in heldout.items()},
    )

  def describe(self) -> dict[str, Any]:
    """What tells one generator from another; ready for JSON."""
    options = dataclasses.asdict(self.options)
    return {"name": NAME, **options, "patterns": list(self.options.patterns)}
