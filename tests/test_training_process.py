"""train.py as a process: interrupted, resumed by a sweep up to its report; refusals."""

import csv
import errno
import json
import os
import pathlib
import random
import re
import signal
import time

import orbax.checkpoint as ocp
import pytest
from absl import logging

import explore as explore_script
import sweep as sweep_script
import train as train_script
from scae_jax.config import load_config
from scae_jax.data import folder as folder_source
from scae_jax.errors import RunError
from scae_jax.library.loading import load
from scae_jax.training.loop import train
from scae_jax.training.run import open_run
from scae_jax.training.sweep import run_rows
from tests.processes import OURS, start, wait_for_lines
from tests.runs import (
  ROOT,
  evaluate_py,
  metrics,
  report_of,
  rows_of,
  save_images,
  steps_of,
  train_py,
)
from tests.stand_ins import refused

# Two runs on the user's images, of which the first has its report.
SWEEP = """
config = "toy.py:long"

[overrides]
train = {{ log_every = 16, eval_every = 32, checkpoint_every = 48, compilation_cache = "{0}/kept" }}
data = {{ name = "folder", dir = "{0}/images", cache_dir = "{0}/cache" }}
evaluation.max_examples = 60

[[rows]]
name = "early"

[[rows]]
name = "late"
overrides = {{ train.seed = 1 }}
"""

FORKED = """
import os
import numpy as np
import scae_jax
model, images = scae_jax.load("digits"), np.zeros((1, 8, 8))
encoding = model.encode(images)
for act in (
  lambda: model.encode(images),
  lambda: model.draw(encoding),
  lambda: model.predict(images),
  lambda: scae_jax.load("digits"),
):
  if child := os.fork():
    os.waitpid(child, 0)
    continue
  try:
    act()
  except scae_jax.RunError as error:
    print("RunError", "spawn" if "spawn" in str(error) else error, flush=True)
  os._exit(0)
"""


def stamps(folder: pathlib.Path) -> dict[pathlib.Path, int]:
  return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_interrupted_run_is_finished_by_a_sweep(home, monkeypatch, capsys):
  """SIGTERM comes at a random moment; all that a sweep knows is in its folders.

  That a resumed run is the uninterrupted one: test_training_loop.py, after SIGKILL
  test_reliability.py.
  """
  images = save_images(home / "images", 10, 100)
  (images / "class0" / "notes.txt").write_text("no image")
  rows, root = rows_of(home, SWEEP.format(home)), home / "runs" / "sweep"
  workdir, early = root / "late", root / "early" / "evaluation" / "metrics.json"
  early.parent.mkdir(parents=True)
  early.write_text(json.dumps(report_of(rows[0].config, seed=7)))
  finished = stamps(root / "early")

  # Without the flags of conftest.py: the program is compiled as for users.
  monkeypatch.setenv("XLA_FLAGS", os.environ["TEST_XLA_FLAGS"])
  monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
  monkeypatch.setenv("PYTHONPATH", str(ROOT))
  monkeypatch.setenv("PYTHONWARNINGS", "error")
  seed = int.from_bytes(os.urandom(4))
  print(f"interrupted at a time drawn by random.Random({seed})")  # shown if the test fails
  rng = random.Random(seed)
  process = start(str(ROOT / "train.py"), *rows[1].arguments, f"--workdir={workdir}")
  wait_for_lines(process, workdir, rng.randint(1, 12))
  time.sleep(rng.uniform(0, 0.03))  # inside a dispatch, an evaluation or a checkpoint
  process.send_signal(signal.SIGTERM)
  output, _ = process.communicate(timeout=600)
  assert process.returncode == 143, output
  # Warnings about the data are seen, and nothing else but what the run itself says.
  warning, *lines, last = output.splitlines()
  assert "notes.txt" in warning
  others = [line for line in lines if line and not re.match(OURS, line)]
  assert len(others) == 1, output
  assert "SIGTERM" in others[0]
  saved = re.search(rf"\b(\d+) of 480\b.*{workdir}", last)
  assert saved, output
  assert max(line["step"] for line in metrics(workdir)) <= int(saved[1])

  sweep_script.main(["sweep.toml"])
  assert "2/2 late" in capsys.readouterr().out
  log = (workdir / "train.log").read_text()
  assert re.search(rf"step {saved[1]}\b(?!/)", log)
  training, _, report = log.partition("| | seed 1 |")  # stdout follows at the end
  assert all(re.match(OURS, line) for line in training.splitlines()[1:]), log
  assert "LIN-MATCH" in report
  assert steps_of(workdir, "train")[-1] == 480
  lines = list(csv.DictReader((root / "table.csv").read_text().splitlines()))
  assert [line["seed"] for line in lines] == ["7", "mean", "sd", "1", "mean", "sd"]
  assert [(line["row"], line["step"]) for line in lines[3:]] == 3 * [("late", "480")]
  assert stamps(root / "early") == finished
  for name in ("dispatch", "heldout", "_measure_batch"):  # of training, held-out loss and report
    assert list((home / "kept").glob(f"jit_{name}-*")), name

  kept = stamps(workdir)
  run_rows(rows, rows, root, ["no such program"], lambda line: None)
  assert stamps(workdir) == kept


# The one line of error names the variable.
@pytest.mark.slow
@pytest.mark.usefixtures("as_users_have_it")
@pytest.mark.parametrize(
  ("variable", "value"),
  [("JAX_PLATFORMS", "cuda"), ("JAX_PLATFORMS", "none"), ("JAX_DISABLE_JIT", "1")],
)
def test_an_unusable_jax_environment_is_one_line(home, monkeypatch, variable, value):
  monkeypatch.setenv(variable, value)
  process = start(str(ROOT / "train.py"), "--config=toy.py", "--workdir=run")
  output, _ = process.communicate(timeout=600)
  assert process.returncode == 2
  assert re.fullmatch(rf"error: .*{variable}.*\n", output)
  assert not (home / "run").exists()


@pytest.mark.parametrize("name", ["closed", "closed/below", "n" * 300])
def test_a_workdir_that_cannot_be_read_is_one_line(home, monkeypatch, capsys, name):
  """Missing permissions are simulated, because root has all of them."""
  for function in ("stat", "listdir", "scandir"):  # Python 3.13 lists folders by the last
    monkeypatch.setattr(os, function, closed(home / "closed", getattr(os, function)))
  flag = f"--workdir={home / name}"
  (home / "sweep.toml").write_text('config = "toy.py"\n[[rows]]\nname = "a"')
  for command, *arguments in (
    (train_py, "--config=toy.py", flag),
    (train_py, "--config=toy.py", f"--config.train.start_from={home / name}"),
    (evaluate_py, flag),
    (explore_script.main, [flag]),
    (sweep_script.main, ["sweep.toml", flag]),
  ):
    lines = refused(capsys, command, *arguments).splitlines()
    assert len(lines) <= 1 + (command is sweep_script.main), lines
    assert re.match(rf"error: .*{name[:60]}", lines[0])
    assert "--workdir" in lines[0]
  for function in (load, open_run):
    with pytest.raises(RunError, match=name[:60]):
      function(home / name)


def closed(folder, function):
  """A function of `os` without permission in a folder."""

  def of_permitted(path=".", *arguments, **options):
    if str(path).startswith(str(folder)):
      raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return function(path, *arguments, **options)

  return of_permitted


def test_tilde_is_expanded_in_every_path(home, monkeypatch, capsys):
  monkeypatch.setenv("HOME", str(home / "me"))
  (home / "me").mkdir()
  (home / "toy.py").rename(home / "me" / "toy.py")
  train_py("--config=~/toy.py", "--workdir=~/run", "--config.train.compilation_cache=off")
  evaluate_py("--workdir=~/run", "--max_examples=20")
  assert (home / "me" / "run" / "evaluation" / "digits-test-max20").is_dir()
  assert open_run("~/run").step == load("~/run").step == 24
  config = load_config("~/toy.py")
  with config.unlocked():
    config.train.start_from = "~/run"
  assert train(config, "~/more").step == 24
  assert (home / "me" / "more" / "config.json").is_file()
  load("~/run").export("~/exported")
  assert (home / "me" / "exported" / "model.json").is_file()
  assert not [*home.glob("~*")]
  capsys.readouterr()
  (line,) = refused(
    capsys, train_py, "--config=~/toy.py", "--workdir=~nobody_at_all/x"
  ).splitlines()
  assert "~nobody_at_all" in line


@pytest.mark.slow
@pytest.mark.usefixtures("as_users_have_it")
def test_a_forked_child_raises_run_errors(monkeypatch):
  process = start("-W", "ignore", "-c", FORKED)
  output, _ = process.communicate(timeout=600)
  assert output == 4 * "RunError spawn\n"


def test_refused_command_line_is_one_message_and_exit_code_2(home, capsys):
  flags = ("--config=toy.py", "--workdir=none", "--config.train.steps=3")
  (line,) = refused(capsys, train_py, *flags).splitlines()
  assert re.match(r"error: .*'train\.steps'.*config\.train\b.*'num_steps'", line)
  assert not (home / "none").exists()


def test_train_py_shows_warnings_but_those_of_orbax(caplog):
  absl_logger = logging.get_absl_logger()
  absl_logger.addFilter(train_script.is_not_orbax)
  try:
    for file in (ocp.__file__, folder_source.__file__):
      # As if it stood in that file.
      exec(compile(f"logging.warning({file!r})", file, "exec"), {"logging": logging})
  finally:
    absl_logger.removeFilter(train_script.is_not_orbax)
  assert caplog.messages == [folder_source.__file__]
