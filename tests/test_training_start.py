"""Runs that start from another run's parameters: taken ones, new ones, refusals."""

import dataclasses
import pathlib
import re
import shutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.interpolate
from flax import linen as nn

from experiments.export import write_parameters
from scae_jax.config import read_settings
from scae_jax.errors import RunError
from scae_jax.files import write_json
from scae_jax.training import loop, start
from scae_jax.training.checkpoint import Checkpoints, Progress
from scae_jax.training.log import Window
from scae_jax.training.loop import train
from scae_jax.training.optimizer import make_optimizer
from scae_jax.training.run import open_run
from scae_jax.training.state import variables_by_seed
from scae_jax.training.step import Program
from scae_jax.typing import Batch
from tests import toy_system
from tests.runs import assert_same_run, metrics, stop_after, truncate
from tests.toy_system import Toy, ToyOutput, toy_config

pytestmark = pytest.mark.usefixtures("compiled_once")


class Larger(Toy):
  """The toy with one more parameter, which may be resized."""

  @nn.compact
  def __call__(self, batch: Batch, *, train: bool) -> ToyOutput:
    self.param("position_bias", nn.initializers.normal(), (1, 3, 5))
    return super().__call__(batch, train=train)


def make_system(model, loss, data):
  """The toy system with the larger model; a config names it by `system = LARGER`."""
  system = toy_system.make_system(model, loss, data)
  return dataclasses.replace(system, module=Larger(**model, num_classes=data.num_classes))


LARGER = "tests.test_training_start"


def larger_config(**changes):
  config = toy_config(**changes).unlock()
  config.system = LARGER
  return config.lock()


def first_state(config, workdir):
  """The state that training would begin with, on the host; nothing is trained."""
  states = []

  def run_nothing(options, program, state, *_):
    states.append(state)
    raise SystemExit

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(Program, "compile", lambda self, state: None)
    patch.setattr(loop, "_train_steps", run_nothing)
    with pytest.raises(SystemExit):
      train(config, workdir)
  return states[0]


def save_run(config, workdir, steps=(8,)) -> pathlib.Path:
  """A run with checkpoints of these steps, whose parameters differ from those of any seed."""
  state = first_state(config, workdir)
  with Checkpoints(workdir / "checkpoints", keep=9, writable=True) as checkpoints:
    for step in steps:
      params = jax.tree.map(lambda leaf, step=step: leaf + step, state.params)
      trained = dataclasses.replace(state, step=state.step + step, params=params)
      checkpoints.save(trained, Progress(step, Window().to_json(), None))
  return workdir


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> pathlib.Path:
  config = toy_config(train__num_steps=16)
  return save_run(config, tmp_path_factory.mktemp("source"), steps=(8, 16))


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> pathlib.Path:
  return save_run(toy_config(train__seeds=2), tmp_path_factory.mktemp("sources"))


def params_of(workdir):
  return {seed: variables["params"] for seed, variables in open_run(workdir).variables.items()}


def test_parameters_are_taken_and_nothing_else(source, tmp_path, capfd):
  config = toy_config(train__start_from=str(source), train__seed=3, optimizer__name="adam")
  state = first_state(config, tmp_path / "run")
  chex.assert_trees_all_equal(state.params, params_of(source)[0])
  assert len(jax.tree.leaves(state.params)[0].sharding.device_set) == 4
  # The other run's optimiser is not even of this kind.
  optimizer = make_optimizer(read_settings(config).optimizer)
  chex.assert_trees_all_equal(state.opt_state, optimizer.init(state.params))
  assert int(state.step) == 0
  # 324 x 8 + 8 to the code, 8 x 324 + 324 from it, 8 x 10 + 10 of the probe.
  assert re.search(rf"step 16\b.*{source}.*\b5,606\b", capfd.readouterr().err)
  drawn = first_state(toy_config(train__seed=3, optimizer__name="adam"), tmp_path / "drawn")
  assert not np.array_equal(state.params["encoder"]["kernel"], drawn.params["encoder"]["kernel"])
  key = jax.random.split(jax.random.key(3), 3)[0]
  for key_in_state in (state.rng, drawn.rng):
    np.testing.assert_array_equal(jax.random.key_data(key_in_state), jax.random.key_data(key))
  assert str(source) not in capfd.readouterr().err


def test_missing_and_unnamed_modules_are_newly_initialised(source, tmp_path, capfd):
  drawn = first_state(larger_config(), tmp_path / "drawn").params
  assert np.any(drawn["position_bias"])
  source_params = params_of(source)[0]
  for modules, counts in (
    ((), rf"{source}.*\b5,606\b.*\b15\b.*position_bias"),
    (("encoder",), rf"{source}.*\b2,600\b.*\b3,021\b"),
  ):
    config = larger_config(train__start_from=str(source), train__start_modules=modules)
    params = first_state(config, tmp_path / f"run{len(modules)}").params
    assert re.search(counts, capfd.readouterr().err)
    for name, values in params.items():
      is_taken = name in (modules or source_params)
      chex.assert_trees_all_equal(values, source_params[name] if is_taken else drawn[name])


def test_seeds_start_from_one_run_or_each_from_its_own(source, sources, tmp_path, capfd):
  seeds = {"train__seed": 5, "train__seeds": 2}
  config = toy_config(train__start_from=str(source), **seeds)
  state = first_state(config, tmp_path / "shared")
  for variables in variables_by_seed(state, (5, 6)).values():
    chex.assert_trees_all_equal(variables["params"], params_of(source)[0])
  keys = jax.random.key_data(state.rng)
  assert not np.array_equal(keys[0], keys[1])  # they go on each in its own way
  np.testing.assert_array_equal(state.step, [0, 0])
  config = toy_config(train__start_from=str(sources), **seeds)
  state = first_state(config, tmp_path / "own")
  started = [variables["params"] for variables in variables_by_seed(state, (5, 6)).values()]
  chex.assert_trees_all_equal(started, [*params_of(sources).values()])
  assert re.search(rf"step 8\b.*{sources}.*\b24\b", capfd.readouterr().err)


def test_bias_of_places_is_resized_to_another_canvas(tmp_path):
  """Of two seeds at once; by scipy along one side after the other."""
  bias, kernel = np.random.default_rng(0).normal(size=(2, 2, 3, 3, 4)).astype("float32")
  shapes = {"code/position_bias": (5, 7, 4), "code/kernel": (3, 3, 4)}
  source_shapes = {"code/position_bias": (3, 3, 4), "code/kernel": (3, 3, 4)}
  start._check_fit(tmp_path, shapes, source_shapes)
  params = {"code": {"position_bias": bias, "kernel": kernel}}
  resized = start._resized(params, shapes)["code"]
  np.testing.assert_array_equal(resized["kernel"], kernel)
  expected = bias
  for axis, size in ((1, 5), (2, 7)):
    # Middles of places, as shares of the side; beyond the outermost, its own value.
    places, wanted = (np.arange(n) + 0.5 for n in (3, size))
    wanted = np.clip(3 / size * wanted, places[0], places[-1])
    expected = scipy.interpolate.interp1d(places, expected, axis=axis)(wanted)
  np.testing.assert_allclose(resized["position_bias"], expected, rtol=1e-4, atol=1e-6)
  assert start._resized(params, source_shapes)["code"]["position_bias"] is bias
  for name in ("code/position_bias", "code/kernel"):
    with pytest.raises(RunError, match=rf"{name} \(3, 3, 4\).*\(3, 3, 5\)"):
      start._check_fit(tmp_path, {**shapes, name: (3, 3, 5)}, source_shapes)
  with pytest.raises(RunError, match="code/kernel"):
    start._check_fit(tmp_path, {**shapes, "code/kernel": (5, 5, 4)}, source_shapes)


def test_pretrained_parameters_start_a_run_and_its_bias_is_resized(tmp_path, capfd):
  """The saved bias has two rows; their mean is the single row of this run, which has two seeds."""
  params = jax.tree.map(lambda leaf: leaf + 1, first_state(larger_config(), tmp_path / "o").params)
  params["position_bias"] = np.random.default_rng(0).normal(size=(2, 3, 5)).astype("float32")
  saved = write_parameters(tmp_path / "saved", params, "float16")
  write_json(tmp_path / "saved" / "source.json", {"step": 7, "seed": 0})
  config = larger_config(train__start_from=str(tmp_path / "saved"), train__seeds=2)
  started = first_state(config, tmp_path / "run").params
  assert re.search(r"\b5,636\b.*position_bias", capfd.readouterr().err)
  saved["position_bias"] = saved["position_bias"].mean(axis=0, keepdims=True)
  expected = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), saved)
  chex.assert_trees_all_close(started, expected, rtol=1e-5)  # a mean of two
  assert {leaf.dtype for leaf in jax.tree.leaves(started)} == {np.dtype(np.float32)}


def test_resumed_run_does_not_start_again(source, tmp_path):
  """It does not need the run that it started from."""
  elsewhere = shutil.copytree(source, tmp_path / "source")
  config = toy_config(train__start_from=str(elsewhere))
  train(config, tmp_path / "whole")
  stop_after(3, config, tmp_path / "run", r"\b12\D+24\b")
  shutil.rmtree(elsewhere)
  train(config, tmp_path / "run")
  assert_same_run(tmp_path / "run", tmp_path / "whole")
  with pytest.raises(RunError, match=rf"train\.start_from.*'{elsewhere}'.*''"):
    train(toy_config(), tmp_path / "run")


@pytest.mark.usefixtures("one_device")
def test_damaged_checkpoint_is_passed_over(source, tmp_path, capfd):
  """Also on another number of devices."""
  damaged = shutil.copytree(source, tmp_path / "source")
  truncate(damaged / "checkpoints" / "16" / "state")
  config = toy_config(train__start_from=str(damaged))
  state = first_state(config, tmp_path / "run")
  assert re.search(rf"step 8\b.*{damaged}", capfd.readouterr().err)
  chex.assert_trees_all_equal(state.params, open_run(source, 8).variables[0]["params"])


def test_unusable_sources_are_refused(source, sources, tmp_path):
  (tmp_path / "untrained").mkdir()
  shutil.copy(source / "config.json", tmp_path / "untrained")
  shutil.copytree(tmp_path / "untrained", tmp_path / "stopped")
  (tmp_path / "stopped" / "checkpoints").mkdir()
  larger = save_run(larger_config(), tmp_path / "larger")
  run = tmp_path / "run"
  refused = {
    (run, ()): r"config\.json",  # itself
    (tmp_path / "untrained", ()): "untrained",
    (tmp_path / "stopped", ()): "stopped",
    (sources, ()): r"\b2 seeds.* 1\b.*config\.train\.seeds",
    (sources, (("train__seeds", 3),)): r"\b2 seeds.* 3\b",
    (source, (("model__num_features", 9),)): r"encoder/kernel \(324, 8\).*\(324, 9\)",
    (source, (("train__start_modules", ("encoder", "head")),)): (
      r"\bhead\b.*config\.train\.start_modules.*encoder"
    ),
    (larger, ()): "position_bias",
    (source, (("train__seeds", 2), ("model__num_features", 9))): r"\(8,\).*\(9,\)",
  }
  for (other, changes), message in refused.items():
    config = toy_config(train__start_from=str(other), **dict(changes))
    with pytest.raises(RunError, match=rf"config\.train\.start_from.*{message}"):
      train(config, run)
    assert not run.exists()


def test_modules_that_are_new_are_named_as_a_whole():
  source_shapes = {"a/b/kernel": (2,)}
  shapes = {**source_shapes, "a/c/kernel": (3, 2), "a/c/bias": (3,), "a/b/scale": ()}
  assert re.search(r"\b2\b.*\b10\b.*\(a/c, a/b/scale\)", start._summary(shapes, source_shapes))


def test_a_run_goes_on_from_parameters_alone(tmp_path):
  """With an optimiser without memory, it equals the uninterrupted run."""
  rule = {"optimizer__decay": 0.0, "optimizer__momentum": 0.0, "optimizer__decay_rate": 0.01}
  whole = train(toy_config(**rule), tmp_path / "whole")
  stop_after(3, toy_config(**rule), tmp_path / "begun", r"\b12\D+24\b")
  goes_on = {"train__start_from": str(tmp_path / "begun"), "train__start_step": 12}
  run = train(toy_config(**rule, **goes_on), tmp_path / "rest")
  assert run.step == 24
  chex.assert_trees_all_close(run.variables, whole.variables, rtol=1e-5, atol=1e-7)
  assert {line["step"] for line in metrics(tmp_path / "rest")} == {16, 24}
  with pytest.raises(RunError, match=r"config\.train\.start_step"):
    read_settings(toy_config(train__start_step=12))
