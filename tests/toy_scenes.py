"""Constellations drawn by NumPy, one after the other."""

import numpy as np

from scae_jax.data.constellations import PATTERNS, Scenes

OPTIONS = Scenes(
  patterns=("square", "triangle", "square"),
  presence_prob=0.5,
  max_rotation=90.0,
  min_scale=1.0,
  max_scale=4.0,
  field=24.0,
  jitter=0.0,
  num_points=0,
)


def numpy_batch(seed, options, count):
  """The distribution of `scae_jax.data.constellations.scenes`, as a batch."""
  rng, shuffle = np.random.RandomState(seed), np.random.RandomState(seed + 1)
  shape = (count, options.slots)
  batch = {
    "points": np.zeros((*shape, 2), np.float32),
    "presence": np.zeros(shape, np.float32),
    "pattern": np.zeros(shape, np.int32),
  }
  for row in range(count):
    present = np.zeros(len(options.patterns), bool)
    while not present.any():
      present = rng.uniform(size=len(options.patterns)) < options.presence_prob
    drawn = []
    for i in np.flatnonzero(present):
      angle = np.deg2rad(rng.uniform(-options.max_rotation, options.max_rotation))
      size = rng.uniform(options.min_scale, options.max_scale)
      middle = rng.uniform(-options.field / 2, options.field / 2, 2)
      turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
      points = size * PATTERNS[options.patterns[i]] @ turn.T + middle
      points = points + options.jitter * rng.normal(size=points.shape)
      drawn += [(point, i) for point in points]
    slots = shuffle.permutation(options.slots)[: len(drawn)]
    batch["points"][row, slots] = np.array([point for point, _ in drawn]) / options.extent
    batch["presence"][row, slots] = 1
    batch["pattern"][row, slots] = [i for _, i in drawn]
  return batch
