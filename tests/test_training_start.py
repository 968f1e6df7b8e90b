"""Runs that start from another run's parameters: what they take, what is new, what is refused."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

from scae_jax.training import loop
from scae_jax.training.build import open_run
from scae_jax.training.config import parse_command_line
from scae_jax.training.errors import Interrupted, RunError
from scae_jax.training.loop import train
from scae_jax.training.mesh import make_mesh
from scae_jax.training.optimizers import make_optimizer
from scae_jax.training.program import Program
from scae_jax.training.state import by_seed
from tests.test_training_loop import assert_same_run, compilation_cache, stop_after
from tests.toy_system import toy_config

__all__ = ["compilation_cache"]  # a fixture: runs of one config compile once

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> pathlib.Path:
  workdir = tmp_path_factory.mktemp("source")
  train(toy_config(train__num_steps=16), workdir)
  return workdir


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> pathlib.Path:
  """Two seeds at once."""
  workdir = tmp_path_factory.mktemp("sources")
  train(toy_config(train__num_steps=8, train__seeds=2), workdir)
  return workdir


class NotTrainedError(Exception):
  """Ends a run where its first step would be compiled."""


def first_state(config, workdir, monkeypatch):
  """The state that training would begin with, on the host; nothing is trained."""
  states = []

  def compile_nothing(self, state):
    states.append(state)
    raise NotTrainedError

  with monkeypatch.context() as patch:
    patch.setattr(Program, "compile", compile_nothing)
    with pytest.raises(NotTrainedError):
      train(config, workdir)
  return states[0]


def assert_equal(tree, expected):
  same = jax.tree.map(np.array_equal, jax.device_get(tree), jax.device_get(expected))
  assert all(jax.tree.leaves(same)), same


def params_of(workdir):
  return {seed: variables["params"] for seed, variables in open_run(workdir).variables.items()}


def test_parameters_are_taken_and_nothing_else(source, tmp_path, monkeypatch, capfd):
  config = toy_config(train__start_from=str(source), train__seed=3, optimizer__name="adam")
  state = first_state(config, tmp_path / "run", monkeypatch)
  assert_equal(state.params, params_of(source)[0])
  assert len(jax.tree.leaves(state.params)[0].sharding.device_set) == 4
  # The other run's optimiser is not even of this kind.
  optimizer = make_optimizer(loop.read_settings(config).optimizer)
  assert_equal(state.opt_state, optimizer.init(state.params))
  assert int(state.step) == 0
  said = capfd.readouterr().err
  # 324 x 8 + 8 to the code, 8 x 324 + 324 from it, 8 x 10 + 10 of the probe.
  assert f"starting from step 16 of {source}: 5,606 parameters taken, none is new\n" in said
  drawn = first_state(
    toy_config(train__seed=3, optimizer__name="adam"), tmp_path / "drawn", monkeypatch
  )
  assert not np.array_equal(state.params["encoder"]["kernel"], drawn.params["encoder"]["kernel"])
  assert_equal(jax.random.key_data(state.rng), jax.random.key_data(drawn.rng))
  assert "starting from" not in capfd.readouterr().err


def test_seeds_start_from_one_run_or_each_from_its_own(source, sources, tmp_path, monkeypatch):
  seeds = {"train__seed": 5, "train__seeds": 2}
  config = toy_config(train__start_from=str(source), **seeds)
  state = first_state(config, tmp_path / "shared", monkeypatch)
  for params in by_seed(state.params, (5, 6)).values():
    assert_equal(params, params_of(source)[0])
  keys = jax.random.key_data(state.rng)
  assert not np.array_equal(keys[0], keys[1])  # they go on each in its own way
  np.testing.assert_array_equal(state.step, [0, 0])
  config = toy_config(train__start_from=str(sources), **seeds)
  state = first_state(config, tmp_path / "own", monkeypatch)
  for params, expected in zip(
    by_seed(state.params, (5, 6)).values(), params_of(sources).values(), strict=True
  ):
    assert_equal(params, expected)


def test_resumed_run_does_not_start_again(source, tmp_path, monkeypatch):
  """Nor does it need what it started from."""
  elsewhere = shutil.copytree(source, tmp_path / "source")
  config = toy_config(train__start_from=str(elsewhere))
  train(config, tmp_path / "whole")
  with monkeypatch.context() as patch:
    stop_after(patch, 3)
    with pytest.raises(Interrupted, match="step 12 of 24"):
      train(config, tmp_path / "run")
  shutil.rmtree(elsewhere)
  train(config, tmp_path / "run")
  assert_same_run(tmp_path / "run", tmp_path / "whole")
  with pytest.raises(RunError, match=rf"train.start_from: '{elsewhere}' there, '' given"):
    train(toy_config(), tmp_path / "run")


def test_another_number_of_devices_starts_from_the_same(source, tmp_path, monkeypatch):
  monkeypatch.setattr(loop, "make_mesh", lambda: make_mesh(jax.devices()[:1]))
  state = first_state(toy_config(train__start_from=str(source)), tmp_path, monkeypatch)
  assert_equal(state.params, params_of(source)[0])


def test_damaged_checkpoint_is_passed_over(source, tmp_path, monkeypatch, capfd):
  damaged = shutil.copytree(source, tmp_path / "source")
  for file in (damaged / "checkpoints" / "16" / "state").rglob("*"):
    if file.is_file():
      file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
  config = toy_config(train__start_from=str(damaged))
  state = first_state(config, tmp_path / "run", monkeypatch)
  assert "starting from step 8 of" in capfd.readouterr().err
  assert_equal(state.params, open_run(source, 8).variables[0]["params"])


def test_what_cannot_be_started_from_is_refused(source, sources, tmp_path):
  (tmp_path / "untrained").mkdir()
  shutil.copy(source / "config.json", tmp_path / "untrained")
  shutil.copytree(tmp_path / "untrained", tmp_path / "stopped")
  (tmp_path / "stopped" / "checkpoints").mkdir()
  run = tmp_path / "run"
  refused = {
    (run, ()): "holds no run: there is no .*config.json",  # itself
    (tmp_path / "none", ()): "holds no run: there is no .*config.json",
    (tmp_path / "untrained", ()): "has no checkpoints. Train it first",
    (tmp_path / "stopped", ()): "there is no checkpoint in .*stopped",
    (sources, ()): "has 2 seeds and this run 1. Start .* or set config.train.seeds to 2",
    (sources, (("train__seeds", 3),)): "has 2 seeds and this run 3",
    (source, (("model__num_features", 9),)): (
      r"has parameters of other shapes: .*encoder/kernel \(324, 8\) there, \(324, 9\) here"
    ),
    (source, (("train__seeds", 2), ("model__num_features", 9))): r"\(8,\) there, \(9,\) here",
  }
  for (start, changes), message in refused.items():
    config = toy_config(train__start_from=str(start), **dict(changes))
    with pytest.raises(RunError, match=rf"config.train.start_from: .*{message}"):
      train(config, run)
    assert not run.exists()


TINY = {
  "model.capsules": "(3, 2)",
  "model.part_inference.widths": "(4,)",
  "model.part_inference.strides": "(2,)",
  "model.generative.template_size": 5,
  "model.object_inference.num_layers": 1,
  "model.object_inference.features": 4,
  "model.object_inference.num_inducing": 2,
  "model.object_inference.output_features": 4,
  "model.object_inference.hidden": 4,
  "train.batch_size": 4,
  "train.log_every": 2,
  "train.eval_every": 0,
  "train.checkpoint_every": 0,
  "evaluation.max_examples": 60,
}
# Of a part 4 channels x 6 and 6 + 1 for attention's; of an object (4 + 1) x 4 + (4 + 1) x 6.
NEW = 3 * (4 + 1) * (6 + 1) + 2 * ((4 + 1) * 4 + (4 + 1) * 6)


def probabilistic_flags(preset, workdir, **train):
  changes = TINY | {f"train.{key}": value for key, value in train.items()}
  return [
    f"--config={ROOT / 'configs' / 'probabilistic.py'}:{preset}",
    f"--workdir={workdir}",
    *(f"--config.{key}={value}" for key, value in changes.items()),
  ]


def test_full_posterior_starts_from_the_likeliest_poses(tmp_path, monkeypatch, capfd):
  monkeypatch.setattr(loop, "make_mesh", lambda: make_mesh(jax.devices()[:1]))
  delta, gaussian = tmp_path / "delta", tmp_path / "gaussian"
  command = parse_command_line(probabilistic_flags("digits", delta, num_steps=2), default_config="")
  train(command.config, command.workdir)
  flags = probabilistic_flags("digits_variational", gaussian, num_steps=2, start_from=delta)
  config = parse_command_line(flags, default_config="").config
  state = first_state(config, gaussian, monkeypatch)
  said = capfd.readouterr().err
  assert f"{NEW} are new (object_inference_0/scales, part_inference/scales)\n" in said
  taken, expected = by_name(state.params), by_name(params_of(delta)[0])
  assert_equal({name: taken[name] for name in expected}, expected)
  drawn = parse_command_line([*flags, "--config.train.start_from="], default_config="").config
  fresh = by_name(first_state(drawn, tmp_path / "drawn", monkeypatch).params)
  new = set(taken) - set(expected)
  assert new
  assert_equal({name: taken[name] for name in new}, {name: fresh[name] for name in new})
  # The other way round there is no place for the deviations.
  train(config, gaussian)
  back = probabilistic_flags("digits", tmp_path / "back", num_steps=2, start_from=gaussian)
  message = "has parameters that this model lacks: object_inference_0/scales/.* and 1 more"
  with pytest.raises(RunError, match=message):
    train(parse_command_line(back, default_config="").config, tmp_path / "back")


def by_name(params):
  return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(params)}


@pytest.mark.slow
def test_train_py_trains_and_reports_one_from_the_other(tmp_path):
  environment = os.environ | {"PYTHONPATH": str(ROOT)}
  for preset, changes in (
    ("digits", {}),
    ("digits_variational", {"start_from": "digits"}),  # relative to where it is started
  ):
    flags = probabilistic_flags(preset, preset, num_steps=2, compilation_cache="kept", **changes)
    done = subprocess.run(
      [sys.executable, str(ROOT / "train.py"), *flags],
      cwd=tmp_path,
      env=environment,
      capture_output=True,
      text=True,
      timeout=300,
      check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ("starting from step 2 of digits: " in done.stderr) == bool(changes)
    report = json.loads((tmp_path / preset / "evaluation" / "metrics.json").read_text())
    assert report["step"] == 2
    config = report["provenance"]["config"]
    assert config["train"]["start_from"] == ("digits" if changes else "")
