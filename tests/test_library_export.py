"""Exported functions, read back by a process that has JAX and NumPy alone."""

import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

import scae_jax
from scae_jax.layers.convnet import by_definition
from scae_jax.library import export
from tests.test_library_systems import DIGITS, SMALL_NETWORKS, untrained

READER = """
import pathlib, sys
import jax.export, numpy as np

folder = pathlib.Path(sys.argv[1])
functions = {
  path.stem: jax.export.deserialize(bytearray(path.read_bytes()))
  for path in folder.glob("*.jax_export")
}
assert all(one.platforms == ("cpu", "cuda", "tpu") for one in functions.values())
given = dict(np.load(folder / "given.npz"))
image = given.pop("image")
answers = {}
for count in (2, 5):
  found = functions["encode"].call(image[:count])
  answers |= {f"{count} {name}": value for name, value in found.items()}
  for name in sorted(functions.keys() - {"encode"}):
    some = {name: array[:count] for name, array in given.items()}
    answers[f"{count} {name}"] = functions[name].call(some, np.int32(-1))
  answers[f"{count} one"] = functions["draw_objects"].call(some, np.int32(3))
assert not {"flax", "scae_jax"} & set(sys.modules)
np.savez(folder / "answers.npz", **answers)
"""


def read_back(folder, images, found):
  """What the exported functions give of the first 2 and 5 images, and of what was found."""
  np.savez(folder / "given.npz", image=images, **export.flat(found))
  command = [sys.executable, "-c", READER, str(folder)]
  environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
  done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
  assert done.returncode == 0, done.stderr
  with np.load(folder / "answers.npz") as answers:
    return dict(answers)


@pytest.fixture(scope="module")
def images() -> np.ndarray:
  return np.random.RandomState(0).rand(5, 20, 20, 1).astype(np.float32)


def test_functions_without_the_package(tmp_path, images):
  model = scae_jax.load("digits", batch_size=5)
  model.export(tmp_path)
  batch = model.inputs.place({"image": images}, resize=False)
  with by_definition():
    found = jax.device_get(jax.jit(model.system.look)(model.variables, batch))
  answers = read_back(tmp_path, images, found)
  drawn = {"draw_objects": model.draw(found), "draw_parts": model.draw(found, "parts")}
  expected = {**export.flat(found), **drawn, "one": model.draw(found, only=3)}
  assert {name.split(" ")[1] for name in answers} == set(expected)
  for count in (2, 5):
    for name, values in expected.items():
      # Compiled in two ways: here without optimisation, see conftest.
      np.testing.assert_allclose(answers[f"{count} {name}"], values[:count], atol=5e-6, rtol=1e-5)
  again = model.encode(images)
  np.testing.assert_allclose(again.object_poses, found.object_poses, atol=1e-5)

  described = json.loads((tmp_path / "model.json").read_text())
  assert described["functions"]["encode"]["arguments"] == ["float32[b, 20, 20, 1]"]
  assert described["class_names"] == list(model.class_names)
  assert set(described["clusters"]) == {"prior", "posterior"}


@pytest.mark.slow
@pytest.mark.parametrize(
  ("source", "changes"),
  [
    ("configs/capsnet.py:digits", {"model.conv_width": 4, "model.decoder_widths": (8,)}),
    ("configs/probabilistic.py:digits", {"model.capsules": (4, 3), **SMALL_NETWORKS}),
  ],
)
def test_other_systems(tmp_path, images, source, changes):
  model = untrained(source, DIGITS, **changes)
  model.export(tmp_path)
  found = model.encode(images)
  answers = read_back(tmp_path, images, found)
  for count in (2, 5):
    np.testing.assert_allclose(
      answers[f"{count} object_presence"], found.object_presence[:count], atol=1e-5
    )
    np.testing.assert_allclose(
      answers[f"{count} draw_objects"], model.draw(found[:count]), atol=1e-6
    )
