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
from tests.test_library import DIGITS, untrained

READER = """
import pathlib, sys
import jax.export, numpy as np

folder = pathlib.Path(sys.argv[1])
functions = {
  path.stem: jax.export.deserialize(bytearray(path.read_bytes()))
  for path in folder.glob("*.jax_export")
}
assert all(one.platforms == ("cpu", "cuda", "tpu") for one in functions.values())
given = np.load(folder / "given.npz")
answers = {}
for count in (2, 5):
  found = functions["encode"].call(given["image"][:count])
  answers |= {f"{count} {name}": value for name, value in found.items()}
  for name in sorted(functions.keys() - {"encode"}):
    answers[f"{count} {name}"] = functions[name].call(found, np.int32(-1))
  answers[f"{count} one"] = functions["draw_objects"].call(found, np.int32(3))
assert not {"flax", "scae_jax"} & set(sys.modules)
np.savez(folder / "answers.npz", **answers)
"""


def read_back(folder, images):
  """What the exported functions give of the first 2 and the first 5 images."""
  np.savez(folder / "given.npz", image=images)
  command = [sys.executable, "-c", READER, str(folder)]
  environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
  done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
  assert done.returncode == 0, done.stderr
  return np.load(folder / "answers.npz")


@pytest.fixture(scope="module")
def images() -> np.ndarray:
  return np.random.RandomState(0).rand(5, 20, 20, 1).astype(np.float32)


def test_functions_without_the_package(tmp_path, images):
  model = scae_jax.load("digits", batch_size=5)
  model.export(tmp_path)
  answers = read_back(tmp_path, images)
  with by_definition():
    found = jax.jit(model.system.look)(
      model.variables, model.inputs.place({"image": images}, resize=False)
    )
  found = jax.device_get(found)
  drawn = {"draw_objects": model.draw(found), "draw_parts": model.draw(found, "parts")}
  expected = {**export.flat(found), **drawn, "one": model.draw(found, only=3)}
  assert {name.split(" ")[1] for name in answers} == set(expected)
  for count in (2, 5):
    for name, values in expected.items():
      np.testing.assert_allclose(answers[f"{count} {name}"], values[:count], atol=1e-6, rtol=1e-6)
  again = model.encode(images)
  np.testing.assert_allclose(again.object_poses, found.object_poses, atol=1e-5)

  described = json.loads((tmp_path / "model.json").read_text())
  assert described["functions"]["encode"]["arguments"] == ["float32[b, 20, 20, 1]"]
  assert described["class_names"] == list(model.class_names)
  assert set(described["clusters"]) == {"prior", "posterior"}


@pytest.mark.parametrize("source", ["configs/capsnet.py:digits", "configs/probabilistic.py:digits"])
def test_other_systems(tmp_path, images, source):
  model = untrained(source, DIGITS)
  model.export(tmp_path)
  answers = read_back(tmp_path, images)
  found = model.encode(images)
  for count in (2, 5):
    np.testing.assert_allclose(
      answers[f"{count} object_presence"], found.object_presence[:count], atol=1e-5
    )
    np.testing.assert_allclose(
      answers[f"{count} draw_objects"], model.draw(found[:count]), atol=1e-4
    )
