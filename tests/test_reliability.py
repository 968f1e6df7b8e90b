"""A few fixed cases of `reliability`: random configs, damaged folders and kills."""

import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
from absl import logging

from reliability import configs, kills, workdirs
from scae_jax.errors import RunError
from tests.runs import ONE_DEVICE


@pytest.fixture
def only_warnings():
  """Orbax would log 1,000 lines about a damaged checkpoint."""
  before = logging.get_verbosity()
  logging.set_verbosity(logging.WARNING)
  yield
  logging.set_verbosity(before)


@pytest.mark.slow
@pytest.mark.usefixtures("only_warnings")
def test_damaged_folders_are_read_as_before_or_reported():
  result = workdirs.search(range(12), 0, ("cnn",))
  assert result["failures"] == []
  assert result["counts"]["same"]
  assert result["counts"]["refused"]


@pytest.mark.slow
@pytest.mark.usefixtures("built_once")
def test_killed_run_is_the_uninterrupted_one(monkeypatch):
  """A run of two seeds, killed while it writes a checkpoint and while it trains."""
  monkeypatch.setattr(kills, "NUM_STEPS", 32)
  monkeypatch.setenv("XLA_FLAGS", ONE_DEVICE)
  result = kills.search(2, 1, ("two-seeds",))
  assert result["failures"] == []
  assert sum(result["kills"].values()) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("only_warnings")
def test_random_configs_train_or_are_refused_by_a_key_that_was_changed():
  counts = configs.search(20, 0)
  assert counts[configs.TRACED] >= 2
  assert counts[configs.REFUSED] >= 7
  changes = {"train.batch_size": 8, "optimizer.learning_rate": 1e-8}
  assert configs.try_config("cnn", changes, trains=True) == configs.TRAINED


def test_a_run_that_fails_before_it_is_killed_is_a_failure(tmp_path):
  process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
  process.wait()
  (tmp_path / "run.log").write_text("out of luck")
  with pytest.raises(RuntimeError, match=r"\b3\b.*out of luck"):
    kills.kill_once(process, tmp_path / "run", np.random.default_rng(0))


@pytest.mark.parametrize(
  "error",
  [ValueError("config.train"), RunError("no key"), RunError("config.train.batch_size\nmore")],
)
def test_a_config_that_ends_in_another_way_is_a_failure(monkeypatch, error):
  monkeypatch.setattr(configs, "build", mock.Mock(side_effect=error))
  with pytest.raises((AssertionError, ValueError)):
    configs.try_config("cnn", {"train.batch_size": 8}, trains=False)
