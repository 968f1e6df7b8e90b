"""train.py as a process: interrupted, resumed by a sweep, and from there to its report."""

import csv
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import orbax.checkpoint as ocp
import pytest
from absl import logging

import sweep as sweep_script
import train as train_script
from scae_jax.data import folder as folder_source
from scae_jax.training.sweep import run_rows
from tests.runs import ROOT, metrics, report_of, rows_of, save_images, steps_of, train_py
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
# What train.py says while it trains.
OURS = (
  r"tests.toy_system: \S+ parameters|compiled in \S+ s|resuming at step \d+|"
  r"step \d+/480  (train|test)|[a-z].* \.\.\.$"  # the last of what takes long
)
TWO_SIGNALS = """
import time
from scae_jax.training.interrupt import StopRequest

with StopRequest() as stop:
  print("ready", flush=True)
  time.sleep(60)  # the main thread runs no Python, as in a compilation
"""


def start(*arguments: str) -> subprocess.Popen:
  return subprocess.Popen(
    [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
  )


def wait_for_lines(process: subprocess.Popen, workdir: pathlib.Path, count: int) -> None:
  path, deadline = workdir / "metrics.jsonl", time.monotonic() + 600
  while process.poll() is None and not (path.exists() and path.read_text().count("\n") >= count):
    assert time.monotonic() < deadline
    time.sleep(0.002)


def stamps(folder: pathlib.Path) -> dict[pathlib.Path, int]:
  return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_interrupted_run_is_finished_by_a_sweep(home, monkeypatch, capsys):
  """SIGTERM at random. That the run goes on as if nothing were is tested in test_training_loop.py,
  and after SIGKILL in test_reliability.py. All that a sweep knows is in its folders."""
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
  warning, *said = output.splitlines()
  assert re.search("1 entries of .* are passed over, .*notes.txt among", warning)
  others = [line for line in said if line and not re.match(OURS, line)]
  assert len(others) == 2, output
  assert others[0].startswith("SIGTERM: saving")
  where = re.escape(str(workdir))
  saved = rf"stopped: step (\d+) of 480 is saved in {where}; the same command resumes"
  found = re.match(saved, others[1])
  assert found, output
  assert max(line["step"] for line in metrics(workdir)) <= int(found[1])

  sweep_script.main(["sweep.toml"])
  assert "2/2 late: finished in" in capsys.readouterr().out
  log = (workdir / "train.log").read_text()
  assert f"resuming at step {found[1]}\n" in log
  training, _, report = log.partition("| | seed 1 |")  # stdout follows at the end
  assert all(re.match(OURS, line) for line in training.splitlines()[1:]), log
  assert "LIN-MATCH" in report
  assert steps_of(workdir, "train")[-1] == 480
  lines = list(csv.DictReader((root / "table.csv").read_text().splitlines()))
  assert [line["seed"] for line in lines] == ["7", "mean", "sd", "1", "mean", "sd"]
  assert [(line["row"], line["step"]) for line in lines[3:]] == 3 * [("late", "480")]
  assert stamps(root / "early") == finished
  for name in ("dispatch", "heldout", "read"):  # of training, held-out loss and report
    assert list((home / "kept").glob(f"jit_{name}-*")), name

  kept, said = stamps(workdir), []
  run_rows(rows, rows, root, ["no such program"], said.append)
  assert said[:2] == ["1/2 early: finished before", "2/2 late: finished before"]
  assert stamps(workdir) == kept


def test_second_signal_ends_a_busy_process_at_once(monkeypatch):
  monkeypatch.setenv("PYTHONPATH", str(ROOT))
  process = start("-c", TWO_SIGNALS)
  assert process.stdout is not None
  assert process.stdout.readline() == "ready\n"
  process.send_signal(signal.SIGINT)
  time.sleep(0.03)
  process.send_signal(signal.SIGINT)  # as `timeout` does, to the process and to its group
  assert process.stdout.readline() == "\n"
  assert process.stdout.readline().startswith("SIGINT: saving at the end")
  time.sleep(0.5)
  assert process.poll() is None
  process.send_signal(signal.SIGINT)
  output, _ = process.communicate(timeout=600)
  assert process.returncode == 130
  assert "stopped at once" in output


def test_refused_command_line_is_one_message_and_exit_code_2(home, capsys):
  given = ("--config=toy.py", "--workdir=none", "--config.train.steps=3")
  (said,) = refused(capsys, train_py, *given).splitlines()
  assert said.startswith("error: unknown config key 'train.steps': the keys of config.train are [")
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
