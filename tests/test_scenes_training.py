"""Constellations through train.py and evaluate.py: trained, scored, refused."""

import dataclasses
import functools
import json
import re

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from configs import constellations
from scae_jax.data.constellations import NUM_VALIDATION
from scae_jax.data.digits import load_digits
from scae_jax.errors import RunError
from scae_jax.models.system import PointSpec
from scae_jax.training.hosts import make_mesh, split_examples
from scae_jax.training.loop import train
from scae_jax.training.reporting import report_run
from scae_jax.training.run import open_run
from tests.runs import evaluate_py, metrics
from tests.stand_ins import refused
from tests.toy_data import SCENES

OPTIONS = dataclasses.replace(SCENES, patterns=("square", "triangle"))


def small_config(**changes) -> ConfigDict:
  """configs/constellations.py with a tiny encoder, two patterns, 24 steps and two seeds."""
  config = constellations.get_config()
  config.data.patterns = ("square", "triangle")
  config.model.num_objects = 2
  config.model.object_encoder.update({"num_layers": 1, "features": 8, "output_features": 8})
  config.model.object_decoder.update({"hidden": 8, "capsule_features": 8})
  cadence = {"log_every": 8, "eval_every": 8, "checkpoint_every": 8, "steps_per_dispatch": 4}
  config.train.update({"num_steps": 24, "batch_size": 16, "seeds": 2, **cadence})
  config.evaluation.update({"batch_size": 16, "max_examples": 24})
  config.optimizer.schedule = "constant"
  config.update_from_flattened_dict(changes)
  return config.lock()


# To compile faster; that others see the same scenes has its own test.
pytestmark = pytest.mark.usefixtures("built_once", "one_device_always")


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, built_once, one_device_always):
  """A finished run, with its report."""
  folder = tmp_path_factory.mktemp("scenes")
  run = train(small_config(), folder)
  report_run(run, folder)
  return folder


def test_training_lowers_the_loss_on_scenes_that_it_never_saw(workdir):
  losses = [line["selection_loss"] for line in metrics(workdir) if line["split"] == "validation"]
  assert len(losses) == 3
  assert losses[-1] < losses[0]


def test_report_has_every_jitter_and_kind_for_each_seed(workdir):
  """What the figures are: test_evaluation_scenes.py."""
  for seed in (0, 1):
    folder = workdir / "evaluation" / f"seed-{seed}"
    report = json.loads((folder / "metrics.json").read_text())
    assert report["scored_on"] == {"dataset": "constellations", "split": "test", "examples": 24}
    for kinds in report["segmentation"].values():
      accuracy = {kind: scores["accuracy"] for kind, scores in kinds.items()}
      assert accuracy["predicted_presence"] <= accuracy["true_presence"] <= accuracy["ransac"]
    assert (folder / "constellations.png").stat().st_size > 0
    assert (folder / "training_curves.png").stat().st_size > 0


def test_another_generator_and_other_data_are_refused(workdir):
  with pytest.raises(RunError, match=r"data\.jitter.* 0\.0.* 0\.5"):
    train(small_config(**{"data.jitter": 0.5}), workdir)
  with pytest.raises(RunError, match="--dataset"):
    report_run(open_run(workdir), workdir, scored=load_digits())


@pytest.mark.usefixtures("not_drawn")
def test_evaluate_opens_the_run(workdir, capsys):
  evaluate_py(f"--workdir={workdir}", "--step=16", "--max_examples=10")
  report = json.loads(
    (workdir / "evaluation" / "constellations-test-step16-max10" / "metrics.json").read_text()
  )
  assert report["step"] == 16
  out = capsys.readouterr().out
  assert re.search(r"\b10\b.*constellations test\b.*\b16\b", out)
  assert "ransac" in out


@pytest.mark.parametrize(
  ("flag", "message"),
  [
    ("--dataset=digits", "--dataset"),
    ("--split=train", "--split"),
    ("--data_dir=/nowhere", "'--data_dir'"),
    ("--max_examples=-1", "max_examples"),
  ],
)
def test_flags_that_scenes_do_not_have_are_refused(workdir, capsys, flag, message):
  assert message in refused(capsys, evaluate_py, f"--workdir={workdir}", flag)


def test_training_scenes_are_new_and_fixed_ones_the_same():
  scenes = OPTIONS
  feed = scenes.feed()
  key, indices = jax.random.key(0), np.arange(8)
  first = feed.training_batch(key, {}, indices)
  other = feed.training_batch(jax.random.key(1), {}, indices)
  assert not np.array_equal(first["points"], other["points"])
  assert len({point.tobytes() for point in np.asarray(first["points"])}) == 8

  assert feed.spec == PointSpec(num_points=7, num_patterns=2, largest_pattern=4)
  assert feed.heldout["points"].shape == (NUM_VALIDATION, 7, 2)
  assert feed.num_heldout == NUM_VALIDATION
  batch = feed.evaluation_batch(feed.heldout, np.array([5, 2]))
  np.testing.assert_array_equal(batch["points"], feed.heldout["points"][[5, 2]])
  test = scenes.test_scenes(0.0, 8)
  assert not np.array_equal(test["points"], feed.heldout["points"][:8])


def test_training_scenes_do_not_depend_on_the_devices():
  training_batch = OPTIONS.feed().training_batch
  mesh = make_mesh(jax.devices()[:4])

  def batch(key, mesh=None):
    made = training_batch(key, {}, np.arange(8))
    return jax.tree.map(lambda array: split_examples(array, mesh), made) if mesh else made

  key = jax.random.key(3)
  expected, spread = jax.jit(batch)(key), jax.jit(lambda key: batch(key, mesh))(key)
  assert len(spread["points"].sharding.device_set) == 4
  jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), expected, spread)
