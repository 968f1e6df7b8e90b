"""Data sets of one's own: in memory, and by the dotted path of a function."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from configs import constellations
from scae_jax.data.dataset import Dataset
from scae_jax.data.digits import load_digits
from scae_jax.training.build import build, open_run
from scae_jax.training.config import read_settings
from scae_jax.training.errors import RunError
from scae_jax.training.loop import train
from tests.stand_ins import refused, source_of
from tests.test_evaluation_script import quick, run
from tests.toy_system import toy_config

__all__ = ["quick"]  # a fixture: reports without figures


def mine() -> Dataset:
  """A few digits under another name."""
  splits = {name: split.take(np.arange(60)) for name, split in load_digits().splits.items()}
  return Dataset("mine", load_digits().class_names, splits)


def config_of(name: str, num_steps: int = 2):
  cadence = ("steps_per_dispatch", "log_every", "eval_every", "checkpoint_every")
  changes = {f"train__{key}": 2 for key in cadence}
  return toy_config(data__name=name, train__num_steps=num_steps, **changes)


@pytest.fixture(scope="module")
def workdirs(tmp_path_factory):
  """A run on data in memory, and the same by the path of the function."""
  folder = tmp_path_factory.mktemp("own")
  train(config_of("mine"), folder / "memory", dataset=mine())
  train(config_of(f"{__name__}.mine"), folder / "path")
  return folder


def test_data_in_memory_and_by_a_path_train_alike(workdirs):
  in_memory = open_run(workdirs / "memory", dataset=mine())
  by_path = open_run(workdirs / "path", dataset=mine())
  jax.tree.map(np.testing.assert_array_equal, in_memory.variables, by_path.variables)
  described = [
    json.loads((workdirs / name / "data.json").read_text()) for name in ("memory", "path")
  ]
  assert described[0] == described[1]
  assert described[0]["name"] == "mine"
  # And goes on.
  assert train(config_of("mine", 4), workdirs / "memory", dataset=mine()).step == 4


def test_what_is_not_the_runs_own_data_is_refused(workdirs):
  with pytest.raises(RunError, match=r"config.data.name is 'mine': unknown data set 'mine'"):
    open_run(workdirs / "memory")
  test = mine().splits["test"]
  other = dataclasses.replace(mine(), splits={"train": test, "test": test})
  files = {path: path.stat().st_mtime_ns for path in workdirs.rglob("*")}
  with pytest.raises(RunError, match=r"holds a run on another data set:\n  train: "):
    open_run(workdirs / "memory", dataset=other)
  with pytest.raises(RunError, match=r"another data set:(?s:.*)put back what was changed"):
    train(config_of("mine", 6), workdirs / "memory", dataset=other)
  assert files == {path: path.stat().st_mtime_ns for path in workdirs.rglob("*")}
  with pytest.raises(RunError, match=r"'digits', and the data set given in memory is named 'mine'"):
    build(read_settings(config_of("digits")), mine())
  with pytest.raises(RunError, match=r"'mine', and the data set given in memory is named 'digits'"):
    open_run(workdirs / "memory", dataset=load_digits())
  with pytest.raises(RunError, match=r"'constellations', whose scenes are generated.*'mine'"):
    build(read_settings(constellations.get_config()), mine())


def test_a_function_is_not_called_because_a_folder_says_so(workdirs, capsys):
  path = f"{__name__}.mine"
  said = refused(capsys, run, workdirs / "path")
  assert f"names the data set '{path}', which is a function to call" in said
  for name in ("path", "memory"):
    run(workdirs / name, f"--source={path}")
    written = json.loads((workdirs / name / "evaluation" / "metrics.json").read_text())
    assert source_of(written["scored_on"]) == {"dataset": "mine", "split": "test", "examples": 60}
  other = "--source=scae_jax.data.digits.load_digits"
  assert "holds a run on another data set" in refused(capsys, run, workdirs / "memory", other)
