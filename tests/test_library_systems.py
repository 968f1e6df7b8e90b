"""Models of every system: what they find, draw and predict; exported, without the package."""

import functools
import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

import scae_jax
from scae_jax.config import load_config, read_settings
from scae_jax.data.constellations import Scenes, scenes
from scae_jax.layers.convnet import by_definition
from scae_jax.library import export
from scae_jax.library.inputs import ImageInput, PointInput
from scae_jax.library.model import Model
from scae_jax.models.probabilistic.autoencoder import topmost_owner
from scae_jax.models.system import ImageSpec, PointSpec
from scae_jax.training.build import make_system
from tests.test_library import digits, images, on_canvas
from tests.tiny import initial

__all__ = ["digits", "images"]  # fixtures


def untrained(source: str, spec, **changes) -> scae_jax.Model:
  """A model of a shipped config at its first parameters."""
  config = load_config(source)
  config.update_from_flattened_dict(changes)
  settings = read_settings(config)
  system = make_system(settings, spec)
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
    variables=initial(system, spec),
    inputs=inputs,
  )


# Whose networks compile in moments.
SMALL = {
  "capsnet": {"model.conv_width": 4, "model.decoder_widths": (8,)},
  "probabilistic": {
    "model.capsules": (6, 5),
    "model.part_inference.widths": (4,),
    "model.part_inference.strides": (2,),
    "model.object_inference.num_layers": 0,
  },
  "cnn": {"model.widths": (2, 3), "model.hidden": (7, 5)},
  "matrix_capsules": {"model.conv_width": 3, "model.routing_iterations": 2},
}


@functools.cache
def of_digits(name, preset="digits", **changes):
  spec = ImageSpec(canvas=20, channels=1, num_classes=10)
  return untrained(f"configs/{name}.py:{preset}", spec, **SMALL[name], **changes)


def test_capsnet_draws_its_longest_capsule(images):
  model = of_digits("capsnet")
  encoding = model.encode(images)
  assert encoding.object_presence.shape == encoding.scores.shape == (10, 10)
  assert encoding.object_poses.ndim == 3
  labels = model.predict(images)
  np.testing.assert_array_equal(labels, encoding.scores.argmax(axis=1))
  drawn = model.draw(encoding)
  for i, label in enumerate(labels[:3]):
    np.testing.assert_allclose(model.draw(encoding[i], only=int(label))[0], drawn[i], atol=1e-6)
  longer = encoding.replace(object_poses=1.5 * encoding.object_poses)
  assert np.abs(model.draw(longer) - drawn).max() > 1e-4


def test_other_systems_say_what_they_can(images):
  encoding = of_digits("cnn").encode(images)
  np.testing.assert_allclose(encoding.scores.sum(axis=1), 1, atol=1e-5)
  assert encoding.object_poses is None
  matrix = of_digits("matrix_capsules", "digits_narrow")
  encoding = matrix.encode(images)
  assert encoding.object_poses.shape == (10, 10, 4, 4)
  assert matrix.predict(images).shape == (10,)


def test_points_have_groups():
  section = load_config("configs/constellations.py").data.to_dict()
  del section["name"]
  options = Scenes(**section)
  one_layer = {"model.object_encoder.num_layers": 1}
  model = untrained("configs/constellations.py", options.spec, **one_layer)
  some = jax.device_get(scenes(jax.random.key(0), options, 5))
  encoding = model.encode(some["points"], presence=some["presence"])
  assert encoding.groups.shape == (5, options.slots)
  assert (encoding.groups[some["presence"] == 0] == -1).all()
  np.testing.assert_array_equal(
    model.predict(some["points"], presence=some["presence"]), encoding.groups
  )
  moved = model.inputs.check(some["points"] + 1, some["presence"], resize=False)["points"]
  np.testing.assert_array_equal(moved, (some["points"] + 1) * some["presence"][..., None])
  unknown = np.where(some["presence"][..., None], some["points"], np.nan)
  np.testing.assert_array_equal(
    model.encode(unknown, presence=some["presence"]).groups, encoding.groups
  )
  with pytest.raises(ValueError, match=r"by .*'prior'"):
    model.predict(some["points"], by="prior")
  some_points = model.encode(some["points"][:, :4])
  assert some_points.groups.shape == some_points.point_winner.shape == (5, 4)
  for points, presence, message in (
    (np.zeros((2, options.slots + 1, 2)), None, rf"\[n, p, 2\].*\b{options.slots}\b"),
    (np.zeros((2, 3, 2)), np.ones((2, 4)), r"presence .*\[2, 3\]"),
    (np.zeros((2, 3, 2)), np.full((2, 3), 0.5), "presence .*1 or 0"),
    (np.full((2, 3, 2), np.nan), None, "points"),
  ):
    with pytest.raises(ValueError, match=message):
      model.encode(points, presence=presence)


def test_posteriors_are_drawn_and_refined(images):
  """By parts the picture of the posterior; by objects that of parts where their parents predict."""
  model = of_digits("probabilistic")
  encoding = model.encode(images)
  batch = on_canvas(images[..., None])
  apply = jax.jit(functools.partial(model.system.module.apply, train=False))
  picture = apply(model.variables, batch).picture
  np.testing.assert_allclose(model.draw(encoding, "parts"), picture, atol=1e-5)
  whole, more = (
    encoding.replace(part_presence=x * np.ones_like(encoding.part_presence)) for x in (1, 2)
  )
  np.testing.assert_array_equal(model.draw(more, "parts"), model.draw(whole, "parts"))

  offsets = np.eye(2, 3) + np.asarray(model.variables["params"]["generative"]["offset_1"])
  owner, rows, m = encoding.details["owner_0"], np.arange(10)[:, None], np.arange(6)
  winner = np.minimum(owner, 4)
  outer, inner = encoding.object_poses[rows, winner], offsets[winner, m]
  predicted = outer[..., :2] @ inner
  predicted[..., 2] += outer[..., 2]
  owned_presence = encoding.part_presence * (owner < 5)
  parts = encoding.replace(part_poses=predicted, part_presence=owned_presence)
  np.testing.assert_allclose(model.draw(encoding), model.draw(parts, "parts"), atol=1e-5)

  refined = model.encode(images[:2], refine_steps=2)
  assert 0 < np.abs(refined.part_poses - encoding.part_poses[:2]).max() < 0.2


def test_objects_of_a_third_layer_hold_those_below():
  """Of made-up findings: all parts are the last middle capsule's, which is the last object's."""
  layers = SMALL["probabilistic"] | {"model.capsules": (4, 3, 2)}
  spec = ImageSpec(canvas=20, channels=1, num_classes=10)
  model = untrained("configs/probabilistic.py:digits", spec, **layers)
  encoding = jax.tree.map(
    lambda leaf: np.full(leaf.shape, 0.5 * (leaf.dtype == np.float32), leaf.dtype),
    model._encoding_shapes,
  )
  owners = {"owner_0": np.full((3, 4), 2), "owner_1": np.tile([0, 0, 1], (3, 1))}
  poses = np.tile(np.eye(2, 3, dtype=int), (3, 2, 1, 1))
  encoding = encoding.replace(object_poses=poses, details=encoding.details | owners)
  drawn = model.draw(encoding)
  assert 0 < drawn.max() < np.inf
  np.testing.assert_array_equal(model.draw(encoding, only=1), drawn)
  assert model.draw(encoding, only=0).max() == 0  # pixels are products with a presence of 0
  # Under a capsule that nobody owns, or under none, a part is nobody's.
  owners = {"owner_0": np.array([[0, 1, 2, 3]]), "owner_1": np.array([[2, 0, 1]])}
  assert topmost_owner(owners, (4, 3, 2)).tolist() == [[2, 0, 1, 2]]


READER = """
import pathlib, sys
import jax.export, numpy as np

folder, counts = pathlib.Path(sys.argv[1]), map(int, sys.argv[2:])
functions = {
  path.stem: jax.export.deserialize(bytearray(path.read_bytes()))
  for path in folder.glob("*.jax_export")
}
assert all(one.platforms == ("cpu", "cuda", "tpu") for one in functions.values())
given = dict(np.load(folder / "given.npz"))
image = given.pop("image")
answers = {}
for count in counts:
  found = functions["encode"].call(image[:count])
  answers |= {f"{count} {name}": value for name, value in found.items()}
  for name in sorted(functions.keys() - {"encode"}):
    some = {name: array[:count] for name, array in given.items()}
    answers[f"{count} {name}"] = functions[name].call(some, np.int32(-1))
  answers[f"{count} one"] = functions["draw_objects"].call(some, np.int32(3))
assert not {"flax", "scae_jax"} & set(sys.modules)
np.savez(folder / "answers.npz", **answers)
"""


def read_back(folder, images, encoding, *counts):
  """What exported functions give of so many images and findings; JAX and NumPy alone are there."""
  np.savez(folder / "given.npz", image=images, **export.flat(encoding))
  command = [sys.executable, "-c", READER, str(folder), *map(str, counts)]
  environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
  done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
  assert done.returncode == 0, done.stderr
  with np.load(folder / "answers.npz") as answers:
    return dict(answers)


def test_functions_without_the_package(tmp_path, digits):
  images = np.random.RandomState(0).rand(5, 20, 20, 1).astype(np.float32)
  digits.export(tmp_path)
  batch = digits.inputs.batch({"image": images}, np.arange(len(images)))
  with by_definition():
    encoding = jax.device_get(jax.jit(digits.system.encode)(digits.variables, batch))
  answers = read_back(tmp_path, images, encoding, 2, 5)
  drawn = {"draw_objects": digits.draw(encoding), "draw_parts": digits.draw(encoding, "parts")}
  expected = {**export.flat(encoding), **drawn, "one": digits.draw(encoding, only=3)}
  assert {name.split(" ")[1] for name in answers} == set(expected)
  for count in (2, 5):
    for name, values in expected.items():
      # Compiled in two ways: here without optimisation, see conftest.
      np.testing.assert_allclose(answers[f"{count} {name}"], values[:count], atol=5e-6, rtol=1e-5)
  again = digits.encode(images)
  np.testing.assert_allclose(again.object_poses, encoding.object_poses, atol=1e-5)

  described = json.loads((tmp_path / "model.json").read_text())
  assert described["functions"]["encode"]["arguments"] == ["float32[b, 20, 20, 1]"]
  assert described["class_names"] == list(digits.class_names)
  assert set(described["clusters"]) == {"prior", "posterior"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["capsnet", "probabilistic"])
def test_functions_of_other_systems(tmp_path, images, name):
  model = of_digits(name)
  model.export(tmp_path)
  encoding = model.encode(images)
  answers = read_back(tmp_path, on_canvas(images[..., None])["image"], encoding, 5)
  presence = encoding.object_presence[:5]
  np.testing.assert_allclose(answers["5 object_presence"], presence, atol=1e-5)
  np.testing.assert_allclose(answers["5 draw_objects"], model.draw(encoding[:5]), atol=1e-6)
