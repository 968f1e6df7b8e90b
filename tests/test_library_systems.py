"""Models of every system, untrained: what they find, draw and predict."""

import jax
import numpy as np
import pytest

import scae_jax
from scae_jax.data.constellations import SceneOptions, scenes
from scae_jax.library.inputs import ImageInput, PointInput
from scae_jax.library.model import Model
from scae_jax.models.system import ImageSpec, PointSpec
from scae_jax.training.config import load_config, read_settings
from scae_jax.training.systems import make_system
from tests.test_library import assert_same, images, on_canvas

__all__ = ["images"]  # a fixture


def untrained(source: str, spec, **changes) -> scae_jax.Model:
  """A model of a shipped config at its first parameters."""
  config = load_config(source)
  config.update_from_flattened_dict(changes)
  settings = read_settings(config)
  system = make_system(settings, spec)
  keys = {"params": jax.random.key(0), "noise": jax.random.key(1)}
  variables = jax.jit(lambda: system.module.init(keys, spec.blank_batch(2), train=True))()
  points = isinstance(spec, PointSpec)
  inputs = (
    PointInput(spec.num_points) if points else ImageInput(settings.data, spec.channels, (16, 16))
  )
  return Model(
    settings=settings,
    spec=spec,
    class_names=(),
    clusters={},
    step=0,
    seed=0,
    batch_size=3,
    system=system,
    variables=variables,
    inputs=inputs,
  )


DIGITS = ImageSpec(canvas=20, channels=1, num_classes=10)
# Probabilistic capsules whose networks compile in moments.
SMALL_NETWORKS = {
  "model.part_inference.widths": (4,),
  "model.part_inference.strides": (2,),
  "model.object_inference.num_layers": 0,
}


def test_capsnet_draws_its_longest_capsule(images):
  model = untrained("configs/capsnet.py:digits", DIGITS)
  found = model.encode(images)
  assert found.object_presence is not None
  assert found.scores.shape == (10, 10)
  assert found.object_poses.ndim == 3
  labels = model.predict(images)
  np.testing.assert_array_equal(labels, found.scores.argmax(axis=1))
  drawn = model.draw(found)
  for i, label in enumerate(labels[:3]):
    assert_same(model.draw(found[i], only=int(label))[0], drawn[i], 1e-6)
  longer = found.replace(object_poses=1.5 * found.object_poses)
  assert np.abs(model.draw(longer) - drawn).max() > 1e-4


def test_other_systems_say_what_they_can(images):
  cnn = untrained("configs/cnn.py:digits", DIGITS)
  found = cnn.encode(images)
  np.testing.assert_allclose(found.scores.sum(axis=1), 1, atol=1e-5)
  assert found.object_poses is None
  matrix = untrained("configs/matrix_capsules.py:digits_narrow", DIGITS)
  found = matrix.encode(images)
  assert found.object_poses.shape == (10, 10, 4, 4)
  assert matrix.predict(images).shape == (10,)


def test_points_have_groups():
  options = SceneOptions(**_scene_options())
  spec = PointSpec(options.slots, len(options.patterns), options.largest)
  model = untrained("configs/constellations.py", spec)
  some = jax.device_get(scenes(jax.random.key(0), options, 5))
  found = model.encode(some["points"], presence=some["presence"])
  assert found.groups.shape == (5, options.slots)
  assert (found.groups[some["presence"] == 0] == -1).all()
  assert_same(model.predict(some["points"], presence=some["presence"]), found.groups)
  few = model.encode(some["points"][:, :4])
  assert few.groups.shape == (5, 4)
  for points, presence, message in (
    (np.zeros((2, options.slots + 1, 2)), None, "p at most"),
    (np.zeros((2, 3, 2)), np.ones((2, 4)), r"presence must have shape \[2, 3\]"),
    (np.full((2, 3, 2), np.nan), None, "must be finite"),
  ):
    with pytest.raises(ValueError, match=message):
      model.encode(points, presence=presence)


def _scene_options():
  section = load_config("configs/constellations.py").data.to_dict()
  return {key: value for key, value in section.items() if key != "name"}


def test_posteriors_are_drawn_and_refined(images):
  """By parts the picture of the posterior; by objects that of parts where their parents predict."""
  layers = {"model.capsules": (6, 5), **SMALL_NETWORKS}
  model = untrained("configs/probabilistic.py:digits", DIGITS, **layers)
  found = model.encode(images)
  free_form, batch = model.system.free_form, on_canvas(images[..., None])
  posterior = jax.jit(free_form.encode)(model.variables, batch)
  picture = jax.jit(free_form.draw)(model.variables, posterior, batch)
  np.testing.assert_allclose(model.draw(found, "parts"), picture, atol=1e-5)

  offsets = np.eye(2, 3) + np.asarray(model.variables["params"]["generative"]["offset_1"])
  owner, rows, m = found.details["owner_0"], np.arange(10)[:, None], np.arange(6)
  winner = np.minimum(owner, 4)
  outer, inner = found.object_poses[rows, winner], offsets[winner, m]
  predicted = outer[..., :2] @ inner
  predicted[..., 2] += outer[..., 2]
  shown = found.part_presence * (owner < 5)
  parts = found.replace(part_poses=predicted, part_presence=shown)
  np.testing.assert_allclose(model.draw(found), model.draw(parts, "parts"), atol=1e-5)

  refined = model.encode(images[:2], refine_steps=2)
  assert 0 < np.abs(refined.part_poses - found.part_poses[:2]).max() < 0.2


def test_objects_of_a_third_layer_hold_those_below(images):
  layers = {"model.capsules": (4, 3, 2), **SMALL_NETWORKS}
  model = untrained("configs/probabilistic.py:digits", DIGITS, **layers)
  found = model.encode(images)
  assert found.object_poses.shape == (10, 2, 2, 3)
  drawn = model.draw(found)
  assert np.isfinite(drawn).all()
  off = found.replace(object_presence=np.zeros_like(found.object_presence))
  assert model.draw(off).max() == 0  # pixels are products with a presence of 0
