"""Whole runs in this process: resuming, the best checkpoint, nonfinite numbers, refusals."""

import json
import pathlib
import re
import resource
import shutil
import signal
import time
import types

import jax
import numpy as np
import pytest

from scae_jax.errors import Interrupted, NonFiniteError, RunError, WriteError
from scae_jax.evaluation.provenance import measured_with
from scae_jax.training import loop
from scae_jax.training.checkpoint import Checkpoints
from scae_jax.training.loop import train
from scae_jax.training.run import open_run
from scae_jax.training.step import Program
from scae_jax.training.workdir import load_settings
from tests.runs import assert_same_run, metrics, steps_of, stop_after, terminate, truncate
from tests.toy_system import toy_config

pytestmark = pytest.mark.usefixtures("compiled_once")

# Checkpoints fall between two lines of training metrics, so that a window must survive them.
CADENCE = {
  "train__steps_per_dispatch": 4,
  "train__log_every": 16,
  "train__eval_every": 32,
  "train__checkpoint_every": 24,
}
CONFIG = toy_config(train__num_steps=90, **CADENCE)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> pathlib.Path:
  """A finished run. The lines of a step are written before its checkpoint.

  The best checkpoint is that of the lowest loss without the probe.
  """
  workdir = tmp_path_factory.mktemp("uninterrupted")
  original, saved = Checkpoints.save, {}

  def save(self, state, progress):
    saved[progress.step] = {split: steps_of(workdir, split)[-1] for split in ("train", "test")}
    line = metrics(workdir)[-1]
    assert progress.selection_loss == line["selection_loss"]
    rest = line["total"] - line["terms"]["code_probe"]
    assert line["selection_loss"] == pytest.approx(rest, rel=1e-6)
    original(self, state, progress)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(Checkpoints, "save", save)
    train(CONFIG, workdir)
  assert saved == {
    step: {"train": line, "test": step} for step, line in {24: 16, 48: 48, 72: 64, 90: 90}.items()
  }
  return workdir


@pytest.fixture(scope="module")
def each_step(tmp_path_factory) -> list[dict]:
  """Lines of training metrics of sixteen steps, one a step."""
  workdir = tmp_path_factory.mktemp("each_step")
  train(toy_config(train__num_steps=16, **(CADENCE | {"train__log_every": 1})), workdir)
  return [line for line in metrics(workdir) if line["split"] == "train"]


def test_lines_follow_the_cadence_and_are_means_over_their_steps(uninterrupted, each_step):
  assert steps_of(uninterrupted, "train") == [16, 32, 48, 64, 80, 90]
  # On its own cadence, at every checkpoint, and at the end.
  assert steps_of(uninterrupted, "test") == [24, 32, 48, 64, 72, 90]
  steps = sorted(int(path.name) for path in (uninterrupted / "checkpoints").iterdir())
  assert steps[-2:] == [72, 90]
  assert load_settings(uninterrupted).config.to_dict() == CONFIG.to_dict()
  assert [line["step"] for line in each_step] == list(range(1, 17))
  first = metrics(uninterrupted)[0]
  assert first["split"] == "train"
  # Steps of float32 that were compiled one at a time and many at a time may round apart.
  totals = [line["total"] for line in each_step]
  assert first["total"] == pytest.approx(np.mean(totals), rel=1e-6)
  for name, value in first["terms"].items():
    values = [line["terms"][name] for line in each_step]
    assert value == pytest.approx(np.mean(values), rel=1e-6)


def test_run_that_is_stopped_resumed_and_extended_is_the_uninterrupted_one(
  uninterrupted, tmp_path, monkeypatch, capfd
):
  """It is stopped between lines of metrics and checkpoints."""
  short = toy_config(train__num_steps=48, **CADENCE)

  handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
  stop_after(9, short, tmp_path, r"\b36\D+48\b")
  assert open_run(tmp_path).step == 36
  assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
  train(short, tmp_path)
  content = (tmp_path / "metrics.jsonl").read_text()
  with monkeypatch.context() as patch:
    patch.setattr(Program, "compile", None)  # nothing is compiled
    assert train(short, tmp_path).step == 48
  assert (tmp_path / "metrics.jsonl").read_text() == content
  stop_after(1, CONFIG, tmp_path, r"\b52\D+90\b")
  run = train(CONFIG, tmp_path)
  assert (run.step, run.is_latest) == (90, True)
  assert_same_run(tmp_path, uninterrupted)
  assert "metrics.jsonl" not in capfd.readouterr().err  # its lines are as they were written


def test_damaged_checkpoint_costs_only_the_steps_since_the_one_before(
  uninterrupted, tmp_path, capfd
):
  workdir = shutil.copytree(uninterrupted, tmp_path / "run")
  truncate(workdir / "checkpoints" / "90" / "state")
  # Where it is moved out of the way, the date of another is not asked for.
  (workdir / "checkpoints" / "72" / "_CHECKPOINT_METADATA").write_text("3")
  capfd.readouterr()
  train(CONFIG, workdir)
  assert re.search(r"step 90\b.*step 72\b", capfd.readouterr().err)
  assert [path.name for path in (workdir / "unreadable_checkpoints").iterdir()] == ["90"]
  # The lines of step 90 were dropped and written again.
  assert_same_run(workdir, uninterrupted)


# Bytes that a file may have: none for a line of metrics; lines, but no parameters.
@pytest.mark.parametrize("size", [0, 9_000])
def test_full_disk_stops_the_run_until_there_is_room(
  size, uninterrupted, tmp_path, monkeypatch, capsys
):
  """Lines since the checkpoint are written again, as after a kill."""
  original, limits = Program.run, resource.getrlimit(resource.RLIMIT_FSIZE)

  def run(self, state, step):
    if step == 36:
      while not (tmp_path / "checkpoints" / "24").exists():  # is written beside the next steps
        time.sleep(0.01)
      resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    return original(self, state, step)

  try:
    with monkeypatch.context() as patch:
      patch.setattr(Program, "run", run)
      with pytest.raises(WriteError, match=re.escape(str(tmp_path))):
        train(CONFIG, tmp_path)
    with pytest.raises(RunError, match=re.escape(str(tmp_path))):
      train(CONFIG, tmp_path)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  assert open_run(tmp_path).step == 24
  if size:
    train(CONFIG, tmp_path)
    assert_same_run(tmp_path, uninterrupted)


def test_edited_lines_of_metrics_are_kept_and_reported_once(uninterrupted, tmp_path, capfd):
  workdir = shutil.copytree(uninterrupted, tmp_path / "run")
  path, longer = workdir / "metrics.jsonl", toy_config(train__num_steps=100, **CADENCE)
  changed = path.read_text().replace('"step": 16,', '"step": 17,')
  path.write_text(changed)
  train(longer, workdir)
  assert re.search(rf"{path}.*step 90\b", capfd.readouterr().err)
  assert path.read_text().startswith(changed)
  # The extension keeps to the cadence, though it began at an odd step.
  assert steps_of(workdir, "train")[-3:] == [90, 96, 100]
  assert steps_of(workdir, "test")[-3:] == [90, 96, 100]
  train(longer, workdir)
  assert "metrics.jsonl" not in capfd.readouterr().err


def test_number_that_is_not_finite_stops_the_run_and_keeps_the_checkpoints(each_step, tmp_path):
  errors = [line["terms"]["image"] for line in each_step]  # of steps 1, 2, ...
  # A step whose error is the lowest so far becomes the one at which the toy breaks.
  step = next(step for step in range(11, 17) if errors[step - 1] < min(errors[: step - 1]))
  bad = toy_config(model__nan_below=(min(errors[: step - 1]) + errors[step - 1]) / 2)
  message = rf"step {step}\b.*fragile = nan, total = nan\b.*step 8\b"
  for _ in ("from the start", "resumed at step 8"):
    with pytest.raises(NonFiniteError, match=message):
      train(bad, tmp_path / "bad")
  run = open_run(tmp_path / "bad", 8)
  assert (run.step, run.is_latest) == (8, True)  # of the only checkpoint
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run.variables))
  assert steps_of(tmp_path / "bad", "train") == [8]


def test_heldout_loss_that_is_not_finite_stops_before_the_checkpoint(tmp_path, monkeypatch):
  original = Program.evaluate

  def evaluate(self, params):
    results = original(self, params)
    results["terms"]["image"] = float("nan")
    return results

  monkeypatch.setattr(Program, "evaluate", evaluate)
  message = r"step 8\b.*image = nan\b"
  with pytest.raises(NonFiniteError, match=message):
    train(toy_config(), tmp_path)
  with pytest.raises(RunError, match=re.escape(str(tmp_path))):
    open_run(tmp_path)


def test_refused_runs_write_nothing(tmp_path, uninterrupted):
  refused = [
    toy_config(data__canvas=15),
    toy_config(train__batch_size=10),
    toy_config(train__batch_size=12, data__two_views=True),
    toy_config(optimizer__schedule="cosine", optimizer__decay_steps=20, optimizer__end_factor=0.0),
    toy_config(data__num_validation=1437),
  ]
  for config in refused:
    with pytest.raises(RunError):
      train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
  files = {path: path.stat().st_mtime_ns for path in uninterrupted.rglob("*")}
  with pytest.raises(RunError, match=r"train\.seed\b.* 0\b.* 1\b"):
    train(toy_config(train__num_steps=90, train__seed=1, **CADENCE), uninterrupted)
  assert files == {path: path.stat().st_mtime_ns for path in uninterrupted.rglob("*")}


def test_run_stopped_before_its_first_step_does_not_claim_to_be_saved(tmp_path, monkeypatch):
  original = Program.compile

  def compile_and_stop(self, state):
    original(self, state)
    terminate()

  with monkeypatch.context() as patch:
    patch.setattr(Program, "compile", compile_and_stop)
    with pytest.raises(Interrupted, match=r"^(?!.*step 0\b).*\b24\b"):
      train(toy_config(), tmp_path)
  with pytest.raises(RunError, match=re.escape(str(tmp_path))):
    open_run(tmp_path)


def test_wall_clock_counts_all_but_compilation_and_each_session_anew(tmp_path, monkeypatch):
  """The clock is moved by the calls below alone; `run` has four steps."""
  clock = types.SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
  monkeypatch.setattr(loop, "time", clock)

  def takes(seconds, owner, name):
    original = getattr(owner, name)

    def wrapped(*arguments):
      clock.now += seconds
      return original(*arguments)

    monkeypatch.setattr(owner, name, wrapped)

  takes(1000.0, Program, "compile")
  takes(1.0, Program, "run")
  takes(10.0, Program, "evaluate")
  takes(100.0, Checkpoints, "save")
  for num_steps in (16, 24):
    train(toy_config(train__num_steps=num_steps), tmp_path)
  lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  steps = {"steps_per_second": 4.0, "seconds": 2.0}
  assert [line["timing"] for line in lines if line["split"] == "train"] == [
    steps | {"wall_seconds": 2.0},
    steps | {"wall_seconds": 2.0 + 110.0 + 2.0},
    steps | {"wall_seconds": 2.0},
  ]
  assert [line["timing"] for line in lines if line["split"] == "test"] == [{"seconds": 10.0}] * 3


def test_a_run_does_not_resume_under_other_random_numbers(uninterrupted, tmp_path):
  workdir = shutil.copytree(uninterrupted, tmp_path / "run")
  settings = json.loads((workdir / "jax.json").read_text())
  assert settings["JAX_DEFAULT_PRNG_IMPL"] == "threefry2x32"
  assert measured_with()["settings"].items() <= settings.items()  # as reports say
  assert "JAX_THREEFRY_PARTITIONABLE" in settings
  with (
    jax.default_prng_impl("rbg"),
    pytest.raises(RunError, match="JAX_DEFAULT_PRNG_IMPL=threefry"),
  ):
    train(CONFIG, workdir)
  with (
    jax.threefry_partitionable(not settings["JAX_THREEFRY_PARTITIONABLE"]),
    pytest.raises(RunError, match="JAX_THREEFRY_PARTITIONABLE"),
  ):
    train(CONFIG, workdir)
  (workdir / "jax.json").unlink()  # as of runs that were saved before it was written
  assert train(CONFIG, workdir).step == 90
  assert json.loads((workdir / "jax.json").read_text()) == settings
