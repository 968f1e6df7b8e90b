"""A run that version 0.1 saved opens, evaluates and resumes, whatever keys have come since.

tests/data/run-0.1 was made at commit ca82e9c with `CONFIG`, 40 steps, and is never written again.
There, resuming it to step 60 gave the losses that are expected here.
"""

import dataclasses
import functools
import json
import pathlib
import shutil

import jax
import pytest
from ml_collections import ConfigDict

from configs import digits
from scae_jax.config import differences, read_settings, with_changes, with_defaults
from scae_jax.errors import RunError
from scae_jax.models import scae
from scae_jax.models.system import ImageSpec
from scae_jax.training.build import make_system
from scae_jax.training.loop import train
from scae_jax.training.reporting import report_run
from scae_jax.training.run import open_run
from scae_jax.training.state import init_params
from scae_jax.training.step import losses
from scae_jax.training.workdir import check_same_run, saved_config
from tests import toy_system
from tests.runs import metrics
from tests.toy_system import Toy, toy_config

SAVED = pathlib.Path(__file__).parent / "data" / "run-0.1"
CHANGES = {
  "model.num_parts": 6,
  "model.num_objects": 5,
  "model.part_encoder.widths": (8, 8),
  "model.part_encoder.strides": (2, 1),
  "model.part_decoder.template_size": 5,
  "model.object_encoder.output_features": 8,
  "model.object_encoder.num_layers": 1,
  "model.object_encoder.features": 8,
  "model.object_decoder.hidden": 8,
  "model.object_decoder.capsule_features": 8,
  "train.num_steps": 40,
  "train.batch_size": 16,
  "train.log_every": 20,
  "train.eval_every": 20,
  "train.checkpoint_every": 20,
  "train.keep_checkpoints": 1,
  "optimizer.schedule": "constant",
  "evaluation.max_examples": 200,
}


@pytest.fixture
def workdir(tmp_path):
  return shutil.copytree(SAVED, tmp_path / "run")


def config_today(**changes):
  config = digits.get_config()
  config.update_from_flattened_dict({**CHANGES, **changes})
  return config


def test_saved_run_of_version_0_1_evaluates(workdir):
  run = open_run(workdir)
  assert run.step == 40
  before = json.loads((workdir / "evaluation" / "metrics.json").read_text())
  report_run(run, workdir)
  after = json.loads((workdir / "evaluation" / "metrics.json").read_text())
  for name, scores in before["features"].items():
    # Clusters of 200 examples by a model of 40 steps: some examples lie between two of them.
    for score in ("lin_match", "lin_pred"):
      assert after["features"][name][score] == pytest.approx(scores[score], abs=0.05)


def test_saved_run_of_version_0_1_resumes(workdir):
  train(config_today(**{"train.num_steps": 60}), workdir)
  held_out = [line for line in metrics(workdir) if line["split"] == "test"]
  assert [line["step"] for line in held_out] == [20, 40, 60]
  assert held_out[-1]["metrics"]["squared_error"] == pytest.approx(65.51067, rel=1e-3)
  expected = {"image": 385.31207, "parts": 16.91171, "posterior_within": 1.60853}
  for name, value in expected.items():
    assert held_out[-1]["terms"][name] == pytest.approx(value, rel=1e-3)
  assert json.loads((workdir / "data.json").read_text())["train"]["shape"] == [16, 16, 1]


class ToyOfTomorrow(Toy):
  """The toy after a key was added."""

  shift: float = 0.0


def test_added_key_has_its_default_in_saved_runs(tmp_path, monkeypatch):
  before = toy_config()
  monkeypatch.setattr(toy_system, "SECTIONS", {"model": (ToyOfTomorrow,)}, raising=False)
  (tmp_path / "config.json").write_text(json.dumps(before.to_dict()))
  assert saved_config(tmp_path).model.shift == 0.0
  config = with_defaults(before)
  check_same_run(tmp_path, config)
  config.model.shift = 1.0
  assert differences(before, config) == {"model.shift": (0.0, 1.0)}
  with pytest.raises(RunError, match=r"model\.shift"):
    check_same_run(tmp_path, config)
  # A config file that lacks the key takes it from the command line.
  assert with_changes(with_defaults(before), {"model.shift": 2.0}).model["shift"] == 2.0


def test_loss_term_without_weight_is_off():
  config = config_today().to_dict()
  del config["loss"]["weights"]["dynamic"], config["loss"]["schedule"]["dynamic"]
  config = ConfigDict(config)
  same = ConfigDict(config.to_dict())
  same.loss.weights.dynamic = 0.0
  same.loss.schedule.dynamic = ()
  assert differences(config, same) == {}
  same.loss.weights.dynamic = 2.0
  assert differences(config, same) == {"loss.weights.dynamic": (0.0, 2.0)}
  spec = ImageSpec(20, 1, 10)
  system = make_system(read_settings(config), spec)
  key = jax.random.key(0)

  def terms():
    params = init_params(system, spec, key, key)
    return losses(system, params, spec.blank_batch(2), step=0, noise_key=key)[1][0]

  assert set(jax.eval_shape(terms)) == set(system.loss_weights) >= {"image", "parts"}


def test_every_key_of_the_scae_is_a_field_of_its_sections():
  """So that a key of today that gets a default tomorrow is completed, too."""
  config = digits.get_config()
  for path, classes in scae.SECTIONS.items():
    section = functools.reduce(lambda node, name: node[name], path.split("."), config)
    fields = {field.name for cls in classes for field in dataclasses.fields(cls)}
    assert set(section) <= fields, path
