"""Numbers of the model section that no model can be built from: each is refused by its key."""

import re

import pytest

from scae_jax.models.scae import make_system
from scae_jax.models.system import ImageSpec
from scae_jax.training import build as training_build
from scae_jax.training.errors import RunError
from scae_jax.training.loop import train
from tests.test_models_build import CANVAS, CLASSES, LOSS, MODEL, build
from tests.toy_system import toy_config

SECTIONS = ("part_encoder", "part_decoder", "object_encoder", "object_decoder")
NUMBERS = {
  f"{section}.{key}": value
  for section in SECTIONS
  for key, value in MODEL[section].items()
  if not isinstance(value, str | bool)
}


def system_with(changes):
  """Like `tiny_system`, but a value keeps its type, as in a config file that declares it so."""
  model = {name: dict(value) if name in SECTIONS else value for name, value in MODEL.items()}
  for key, value in changes.items():
    section, name = key.split(".")
    model[section][name] = value
  return make_system(model, LOSS, ImageSpec(CANVAS, 1, CLASSES))


def assert_refused(key, value):
  received = re.escape(f"config.model.{key} is {value!r}; expected ")
  with pytest.raises(ValueError, match=f"^{received}"):
    build(system_with({key: value}))


@pytest.mark.parametrize("key", NUMBERS)
def test_every_number_refuses_a_negative_one(key):
  """Whatever its type: the keys are those of the config, so that a new one cannot be forgotten."""
  kind = type(NUMBERS[key])
  assert_refused(key, (-1,) if kind is tuple else kind(-1))


@pytest.mark.parametrize(
  ("key", "value"),
  [
    ("part_encoder.strides", (0,)),
    ("part_encoder.strides", (True,)),
    ("part_encoder.widths", (0,)),
    ("part_encoder.widths", (24.5,)),
    ("part_encoder.widths", 24),
    ("part_encoder.num_features", True),
    ("part_encoder.presence_noise", float("nan")),
    ("part_encoder.presence_noise", True),
    # One pixel has no side: every pixel of the image would look at the same place.
    ("part_decoder.template_size", 1),
    ("part_decoder.template_size", 0),
    ("part_decoder.template_size", 5.0),
    ("part_decoder.pixel_scale", float("inf")),
    ("part_decoder.pixel_scale", float("nan")),
    ("part_decoder.pixel_scale", "1"),
    ("object_encoder.num_heads", 0),
    ("object_encoder.features", 0),
    ("object_encoder.output_features", 0),
    ("object_encoder.num_layers", 1.0),
    ("object_encoder.num_inducing", False),
    ("object_decoder.hidden", 0),
    ("object_decoder.capsule_features", 0),
    ("object_decoder.presence_noise", float("inf")),
  ],
)
def test_values_that_nothing_can_be_built_from(key, value):
  assert_refused(key, value)


@pytest.mark.parametrize(
  "changes",
  [
    {
      "part_encoder.presence_noise": 0,
      "part_encoder.num_features": 0,
      "part_decoder.colour": False,
      "part_decoder.pixel_scale": 1,
      "part_decoder.template_size": 2,
      "object_encoder.num_layers": 0,
      "object_decoder.presence_noise": 0.0,
    },
    {
      "part_encoder.widths": (1,),
      "part_encoder.strides": (1,),
      "object_encoder.num_inducing": 1,
      "object_encoder.output_features": 1,
      "object_encoder.features": 1,
      "object_decoder.hidden": 1,
      "object_decoder.capsule_features": 1,
    },
  ],
)
def test_smallest_values_are_taken(changes):
  build(system_with(changes))


def test_training_says_so_before_it_writes(tmp_path, monkeypatch):
  """As one message, which train.py ends on with exit code 2."""
  config = toy_config()
  with config.unlocked():
    config.system = "scae"
  system = system_with({"part_encoder.strides": (0,)})
  monkeypatch.setattr(training_build, "make_system", lambda settings, data: system)
  with pytest.raises(RunError, match=r"config\.model\.part_encoder\.strides is \(0,\)") as error:
    train(config, tmp_path / "run")
  assert error.value.exit_code == 2
  assert not (tmp_path / "run").exists()
