"""What a small network reads: of all fields, and no more than is in them."""

import json

import numpy as np
import pytest

from experiments import small_network
from experiments.small_network import accuracies, inputs
from scae_jax.models.system import Encoding
from tests.stand_ins import call, labelled

LABELS = np.arange(1500) % 3
NOISE = np.random.RandomState(0)


def encoding(count):
  """Poses of parts tell the class of examples in turn; all else is noise."""
  poses = NOISE.normal(size=(count, 4, 2, 3))
  poses[..., 0, 2] += 5 * LABELS[:count, None]
  return Encoding(
    part_poses=poses,
    part_presence=NOISE.uniform(size=(count, 4)),
    object_poses=NOISE.normal(size=(count, 2, 2, 3)),
    object_presence=NOISE.uniform(size=(count, 2)),
    posterior_mass=NOISE.uniform(size=(count, 2)),
  )


def test_inputs_are_flat_and_named():
  shapes = {name: array.shape for name, array in inputs(encoding(6)).items()}
  assert shapes == {
    "posterior mass": (6, 2),
    "presences of objects": (6, 2),
    "poses and presences of objects": (6, 14),
    "poses and presences of parts": (6, 28),
  }
  with pytest.raises(ValueError, match="poses and presences of parts"):
    inputs(encoding(6).replace(part_poses=None))


def test_only_what_tells_the_class_is_read():
  train, test = inputs(encoding(1500)), inputs(encoding(1500))
  shares = accuracies(train, LABELS, test, LABELS)
  assert shares["poses and presences of parts"] > 0.9
  # Chance is a third; its standard deviation over 1,500 is 0.012.
  assert all(value < 0.4 for name, value in shares.items() if "parts" not in name)


def test_the_command_writes_a_record(tmp_path, monkeypatch):
  data = labelled("stand-in", np.zeros((90, 4, 4, 1), np.uint8), LABELS[:90])
  model = type("Model", (), {"encode": lambda self, images: encoding(len(images))})()
  monkeypatch.setattr(small_network, "load_dataset", lambda name, folder: data)
  monkeypatch.setattr(small_network.scae_jax, "load", lambda name: model)
  call(monkeypatch, small_network, "mnist", tmp_path, "--max_examples=60")
  record = json.loads((tmp_path / "small-network.json").read_text())
  assert (record["fitted_examples"], record["examples"]) == (60, 90)
  assert set(record["accuracy"]) == set(inputs(encoding(6)))
