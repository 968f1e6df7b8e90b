"""Constellations as published, without jitter."""

import jax

from scae_jax.data.constellations import Scenes, scenes

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


def batch_of_scenes(seed, options, count):
  """A batch of scenes; that they are what they should be: test_data_constellations.py."""
  return jax.device_get(scenes(jax.random.key(seed), options, count))
