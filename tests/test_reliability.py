"""A few fixed cases of `reliability`: random configs, damaged folders and kills."""

import subprocess
import sys

import numpy as np
import pytest
from absl import logging

from reliability import configs, kills, workdirs
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
  results = configs.try_configs(0, range(150, 170))
  result = configs.summary(0, results)
  assert result["failures"] == []
  assert result["counts"][configs.TRAINED] >= 1
  assert result["counts"][configs.TRACED] >= 2
  assert result["counts"][configs.REFUSED] >= 7


def test_kept_results_are_reused_for_their_seed_and_numbers(monkeypatch, tmp_path):
  tried = []

  def traced(seed, numbers):
    tried.append((seed, list(numbers)))
    return [{"seed": seed, "number": number, "outcome": configs.TRACED} for number in numbers]

  monkeypatch.setattr(configs, "_in_a_process", traced)
  for seed, numbers in ((0, range(3)), (0, range(5)), (1, range(2))):
    results = configs.try_all(seed, numbers, tmp_path / "kept.json")
    assert [result["number"] for result in results] == list(numbers)
  assert tried == [(0, [0, 1, 2]), (0, [3, 4]), (1, [0, 1])]


def test_a_run_that_fails_before_it_is_killed_is_a_failure(tmp_path):
  process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
  process.wait()
  (tmp_path / "run.log").write_text("out of luck")
  with pytest.raises(RuntimeError, match=r"\b3\b.*out of luck"):
    kills.kill_once(process, tmp_path / "run", np.random.default_rng(0))


def test_drawn_configs_depend_on_seed_and_number_alone():
  assert repr(configs.draw(3, 7)) == repr(configs.draw(3, 7))
  assert repr(configs.draw(3, 7)) != repr(configs.draw(3, 8))
