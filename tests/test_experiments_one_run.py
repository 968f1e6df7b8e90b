"""What commands that measure one run share: which run is opened, and how files are called."""

import argparse
import dataclasses
import pathlib

import pytest

from experiments import one_run
from scae_jax.data.constellations import SceneOptions
from scae_jax.data.digits import load_digits
from scae_jax.data.scenes import Scenes
from scae_jax.training.build import Run
from scae_jax.training.config import read_settings
from scae_jax.training.errors import RunError
from tests.toy_system import make_system, toy_config, toy_data


@pytest.mark.parametrize(
  ("flags", "which", "folder"),
  [
    ((), "latest", ""),
    (("--step=30",), 30, ""),
    (("--step=best", "--data_dir=elsewhere"), "best", "elsewhere"),
  ],
)
def test_the_run_is_opened_as_the_command_line_says(monkeypatch, flags, which, folder):
  kept, opened, changed = [], [], []
  monkeypatch.setattr(one_run, "keep_compiled", kept.append)
  monkeypatch.setattr(one_run, "load_settings", lambda _, changes: changed.append(changes))
  monkeypatch.setattr(one_run, "open_run", lambda *arguments: opened.append(arguments))
  options = one_run.run_parser("What it does.").parse_args(["runs/toy", *flags])
  one_run.open_named(options)
  ((workdir, found, _),) = opened
  assert (workdir, found) == (pathlib.Path("runs/toy"), which)
  assert changed == [{"data.dir": folder} if folder else {}]
  assert kept == [""]


def test_files_and_records_are_called_after_the_run_and_its_seed(monkeypatch, tmp_path):
  config = toy_config()
  system = make_system(dict(config.model), dict(config.loss), toy_data())

  def run(*seeds):
    return Run(read_settings(config), system, None, {seed: {} for seed in seeds}, 7, is_latest=True)

  monkeypatch.setattr("sys.argv", ["free_form", "runs/toy", "out"])
  monkeypatch.chdir(tmp_path)
  options = argparse.Namespace(workdir=tmp_path / "runs" / "toy")
  ((stem, _, _),) = one_run.each_seed("curve", run(3), options)
  assert stem == "curve-toy"
  found = list(one_run.each_seed("free-form", run(3, 4), options))
  assert [stem for stem, _, _ in found] == ["free-form-toy-seed-3", "free-form-toy-seed-4"]
  assert found[1][2] == {
    "workdir": "runs/toy",
    "step": 7,
    "seed": 4,
    "command": "python -m experiments.free_form runs/toy out",
  }


def test_what_cannot_be_measured_is_refused_in_one_message(monkeypatch, tmp_path, capsys):
  """By all commands that measure a run on images."""
  config = toy_config(data__canvas=18)
  system = make_system(dict(config.model), dict(config.loss), toy_data())
  run = Run(read_settings(config), system, load_digits(), {0: {}}, 7, is_latest=True)
  scenes = Scenes(SceneOptions(("square",), 0.5, 0.0, 1.0, 1.0, 2.0, 0.0, 0))
  monkeypatch.setattr(one_run, "load_settings", lambda workdir, changes: config)
  monkeypatch.setattr(one_run, "keep_compiled", lambda folder: None)

  def missing(*arguments):
    raise RunError("there is no checkpoint of step 3")

  for opened, flag, message in (
    (lambda *arguments: run, "--split=x", "no split 'x'"),
    (lambda *arguments: run, "--max_examples=-1", "max_examples must be 0"),
    (lambda *arguments: dataclasses.replace(run, dataset=scenes), "--step=3", "has no parts; name"),
    (missing, "--step=3", "no checkpoint of step 3"),
  ):
    monkeypatch.setattr(one_run, "open_run", opened)
    monkeypatch.setattr("sys.argv", ["routing", str(tmp_path / "run"), str(tmp_path / "out"), flag])
    with pytest.raises(SystemExit) as stopped:
      one_run.measure_images("routing", "What.", "no parts", pytest.fail, max_examples=9)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
  assert not (tmp_path / "out").exists()
