"""Runs as processes of their own: killed, interrupted, refused, and from train.py to the report."""

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

import train as train_script
from reliability.kills import TRAIN_ONLY
from scae_jax.data import folder as folder_source
from scae_jax.training.build import open_run
from tests.runs import ROOT, metrics, save_images, train_py
from tests.toy_system import CONFIG_FILE

TWO_SIGNALS = """
import sys, time
from scae_jax.training.interrupt import StopRequest

with StopRequest() as stop:
  print("ready", flush=True)
  time.sleep(60)  # the main thread runs no Python, as in a compilation
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> pathlib.Path:
  """Folder with the config and a compilation cache that all processes share."""
  folder = tmp_path_factory.mktemp("home")
  (folder / "toy.py").write_text(CONFIG_FILE)
  return folder


def environment(home: pathlib.Path) -> dict[str, str]:
  """Without the flags of conftest.py: the program is compiled as for users."""
  return os.environ | {
    "XLA_FLAGS": os.environ["TEST_XLA_FLAGS"],
    "PYTHONPATH": str(ROOT),
    "PYTHONWARNINGS": "error",
    "JAX_COMPILATION_CACHE_DIR": str(home / "compiled"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
  }


def command(home: pathlib.Path, workdir: str) -> list[str]:
  flags = [f"--config={home / 'toy.py'}:long", f"--workdir={home / workdir}"]
  cadence = {"log_every": 16, "eval_every": 32, "checkpoint_every": 24}
  flags += [f"--config.train.{key}={value}" for key, value in cadence.items()]
  return [sys.executable, "-c", TRAIN_ONLY, *flags]


def start(home: pathlib.Path, arguments: list[str]) -> subprocess.Popen:
  return subprocess.Popen(
    arguments,
    cwd=home,
    env=environment(home),
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def finish(process: subprocess.Popen) -> str:
  output, _ = process.communicate(timeout=600)
  return output


def num_lines(workdir: pathlib.Path) -> int:
  path = workdir / "metrics.jsonl"
  return path.read_text().count("\n") if path.exists() else 0


def wait_for_lines(process: subprocess.Popen, workdir: pathlib.Path, count: int) -> None:
  deadline = time.monotonic() + 600
  while num_lines(workdir) < count and process.poll() is None:
    assert time.monotonic() < deadline
    time.sleep(0.002)


def test_interrupted_process_saves_and_says_so(home):
  """SIGTERM at random. That the run goes on as if nothing were is tested in test_training_loop.py,
  and after SIGKILL in test_reliability.py."""
  seed = int.from_bytes(os.urandom(4))
  print(f"interrupted at a time drawn by random.Random({seed})")  # shown if the test fails
  rng = random.Random(seed)
  workdir = home / "interrupted"
  process = start(home, command(home, "interrupted"))
  wait_for_lines(process, workdir, rng.randint(1, 12))
  time.sleep(rng.uniform(0, 0.03))  # inside a dispatch, an evaluation or a checkpoint
  process.send_signal(signal.SIGTERM)
  output = finish(process)
  assert process.returncode == 143, output
  assert "SIGTERM: saving" in output
  step = open_run(workdir).step
  assert f"step {step} of 480 is saved in {workdir}; the same command resumes from there" in output
  assert "Traceback" not in output
  assert all(line["step"] <= step for line in metrics(workdir))


def test_second_signal_ends_a_busy_process_at_once(home):
  process = start(home, [sys.executable, "-c", TWO_SIGNALS])
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
  output = finish(process)
  assert process.returncode == 130
  assert "stopped at once" in output


def test_refused_command_line_is_one_message_and_exit_code_2(home, capsys):
  with pytest.raises(SystemExit) as ended:
    train_py(f"--config={home / 'toy.py'}", f"--workdir={home / 'none'}", "--config.train.steps=3")
  assert ended.value.code == 2
  (said,) = capsys.readouterr().err.splitlines()
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


@pytest.mark.slow
def test_train_py_trains_and_reports(home):
  images = save_images(home / "images", 10, 100)
  (images / "class0" / "notes.txt").write_text("no image")
  flags = {
    "--config": home / "toy.py",
    "--config.data.name": "folder",
    "--config.data.dir": images,
    "--config.data.cache_dir": home / "cache",
    "--config.evaluation.max_examples": 60,
    "--config.train.compilation_cache": home / "kept",
  }
  done = subprocess.run(
    [sys.executable, str(ROOT / "train.py"), *(f"{key}={flags[key]}" for key in flags)],
    cwd=home,
    env=environment(home),
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  # Warnings about the data are seen, and nothing else but what the run itself says.
  warning, *said = done.stderr.splitlines()
  assert "1 entries of" in warning
  assert "are passed over" in warning
  assert "notes.txt" in warning
  ours = r"tests.toy_system: \S+ parameters|compiled in \S+ s|step \d+/24  (train|test) "
  assert said, done.stderr
  assert all(re.match(ours, line) for line in said), done.stderr
  output = done.stdout
  workdir = home / "runs" / "toy"
  assert metrics(workdir)[-1]["step"] == 24
  report = json.loads((workdir / "evaluation" / "metrics.json").read_text())
  assert report["step"] == 24
  assert "LIN-MATCH" in output
  for name in ("dispatch", "heldout", "read"):  # of training, held-out loss and report
    assert list((home / "kept").glob(f"jit_{name}-*")), name
