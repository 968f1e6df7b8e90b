"""The smallest models that can be built, and how training says that a model cannot."""

import pytest

from scae_jax.models.scae import make_system
from scae_jax.models.system import ImageSpec
from scae_jax.training import build as training_build
from scae_jax.training.errors import RunError
from scae_jax.training.loop import train
from tests.test_models_build import CANVAS, CLASSES, LOSS, MODEL, build
from tests.toy_system import toy_config

SECTIONS = ("part_encoder", "part_decoder", "object_encoder", "object_decoder")


def system_with(changes):
  """Like `tiny_system`, but a value keeps its type, as in a config file that declares it so."""
  model = {name: dict(value) if name in SECTIONS else value for name, value in MODEL.items()}
  for key, value in changes.items():
    section, name = key.split(".")
    model[section][name] = value
  return make_system(model, LOSS, ImageSpec(CANVAS, 1, CLASSES))


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

  def make(settings, data):
    return system_with({"part_encoder.strides": (0,)})

  monkeypatch.setattr(training_build, "make_system", make)
  with pytest.raises(RunError, match=r"strides must be .* from 1 to 32; it is \(0,\)") as error:
    train(config, tmp_path / "run")
  assert error.value.exit_code == 2
  assert not (tmp_path / "run").exists()
