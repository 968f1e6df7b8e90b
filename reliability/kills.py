"""Kills short runs at random moments, resumes them, and compares them with uninterrupted ones.

    python -m reliability.kills --n=100 --seed=0

A run, of one seed or of two at once, is a process of its own. It is killed (SIGKILL) one to eight
times: while it starts, at any moment of its training, or as soon as it writes a checkpoint. Then
the same command runs to the end. Parameters, optimiser, random key and lines of metrics (without
their timing) must be those of an uninterrupted run, bit for bit; else the exit code is 1, and
`--only=i` repeats the i-th run, with the same random draws; the moments vary with the machine.
"""

import collections
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from reliability import runs

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAMES = ("cnn", "two-seeds")
NUM_STEPS, EVERY = 60, 4
MOMENTS = ("starting", "training", "checkpoint")
SECONDS = 300  # a process that takes longer counts as hanging
# train.py without the report that it ends with, which takes longer than all else.
TRAIN_ONLY = """
import sys
from scae_jax.errors import exit_with_message

with exit_with_message():
  from scae_jax.config import parse_command_line
  from scae_jax.training.loop import train

  command = parse_command_line(sys.argv[1:], default_config="")
  train(command.settings, command.workdir)
"""


class Processes:
  """Starts runs below a folder; they share its compiled programs."""

  def __init__(self, folder: pathlib.Path):
    self._folder = folder
    self._environment = os.environ | {
      "JAX_PLATFORMS": "cpu",
      "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
      "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
      "PYTHONPATH": str(ROOT),
    }

  def start(self, name: str, workdir: pathlib.Path) -> subprocess.Popen:
    """Starts the run `name` in this workdir; its output goes to `<workdir>.log`."""
    flags = [*runs.flags_of(name, NUM_STEPS, EVERY), f"--workdir={workdir}"]
    with workdir.with_suffix(".log").open("ab") as log:
      return subprocess.Popen(
        [sys.executable, "-c", TRAIN_ONLY, *flags],
        cwd=self._folder,
        env=self._environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
      )

  def finish(self, name: str, workdir: pathlib.Path) -> None:
    """Runs to the end; raises `RuntimeError` with the log if the run fails."""
    process = self.start(name, workdir)
    try:
      code = process.wait(SECONDS)
    finally:
      process.kill()  # one that hangs
    if code:
      raise RuntimeError(_failed(code, workdir))


def _failed(code: int, workdir: pathlib.Path) -> str:
  log = workdir.with_suffix(".log").read_text(errors="replace")
  return f"exit code {code}: {log[-3000:]}"


def kill_once(process: subprocess.Popen, workdir: pathlib.Path, rng: np.random.Generator) -> str:
  """Kills the process at a random one of `MOMENTS`, which is returned.

  Returns "" if the run had finished before. Raises `RuntimeError` with the log if it had failed.
  """
  moment = MOMENTS[rng.choice(len(MOMENTS), p=(0.1, 0.4, 0.5))]
  delay = rng.uniform()
  lines = _num_lines(workdir)
  if moment == "starting":
    _wait(process, lambda: False, 4 * delay)
  else:
    _wait(process, lambda: _num_lines(workdir) > lines, SECONDS)
    # After the first new line, so that a run that is killed again and again makes progress.
    _wait(process, lambda: False, 1.5 * delay)
  if moment == "checkpoint":
    _wait(process, lambda: bool(_unfinished(workdir)), SECONDS)
    _wait(process, lambda: False, 0.03 * rng.uniform())
  process.send_signal(signal.SIGKILL)
  code = process.wait()
  if code == 0:
    return ""
  if code != -signal.SIGKILL:
    raise RuntimeError(_failed(code, workdir))
  if _unfinished(workdir):
    return "checkpoint"
  return "training" if _num_lines(workdir) > lines else "starting"


def _wait(process: subprocess.Popen, is_there: Callable[[], bool], seconds: float) -> None:
  """Returns when `is_there` holds, the time is over or the process has ended."""
  deadline = time.monotonic() + seconds
  while process.poll() is None and time.monotonic() < deadline and not is_there():
    time.sleep(0.0005)


def _num_lines(workdir: pathlib.Path) -> int:
  path = workdir / "metrics.jsonl"
  return path.read_bytes().count(b"\n") if path.exists() else 0


def _unfinished(workdir: pathlib.Path) -> list[pathlib.Path]:
  """Checkpoints that are being written."""
  return list((workdir / "checkpoints").glob("*.orbax-checkpoint-tmp*"))


def _states_of(workdir: pathlib.Path, name: str) -> dict[int, list[np.ndarray]]:
  return runs.states_of(workdir, runs.config_of(runs.flags_of(name, NUM_STEPS, EVERY)))


def difference(
  workdir: pathlib.Path,
  uninterrupted: pathlib.Path,
  states: Mapping[str, dict[int, list[np.ndarray]]],
) -> str:
  """The differences between a run and the uninterrupted one; "" if there are none."""
  name = uninterrupted.name
  actual = _states_of(workdir, name)
  if actual.keys() != states[name].keys():
    return f"checkpoints {list(actual)}, not {list(states[name])}"
  if different := [step for step in actual if not runs.are_equal(actual[step], states[name][step])]:
    return f"states of steps {different}"
  return "" if runs.metrics_of(workdir) == runs.metrics_of(uninterrupted) else "metrics"


def search(
  num_kills: int,
  seed: int,
  names: Sequence[str] = NAMES,
  only: int | None = None,
  say: Callable[[str], None] = print,
) -> dict[str, Any]:
  """Kills and compares runs; returns counts and all failures.

  Runs of these names take turns until all kills are done. The kills of the i-th run are drawn from
  (seed, i). With `only`, there is this run alone. Progress goes to `say`, one line a call.
  """
  counts: collections.Counter[str] = collections.Counter()
  failures, num_runs, started = [], 0, time.monotonic()
  with tempfile.TemporaryDirectory() as made:
    root = pathlib.Path(made).resolve()
    processes = Processes(root)
    expected = {}
    for name in names:
      processes.finish(name, root / name)
      expected[name] = _states_of(root / name, name)
    say(f"uninterrupted runs made in {time.monotonic() - started:.0f} s")
    i = only or 0
    while counts.total() < num_kills and (only is None or num_runs == 0):
      rng = np.random.default_rng((seed, i))
      name = names[i % len(names)]
      workdir = root / f"run{i}"
      moments: list[str] = []
      try:
        for _ in range(min(rng.integers(1, 9), num_kills - counts.total())):
          moments.append(kill_once(processes.start(name, workdir), workdir, rng))
          if not moments[-1]:
            break
        processes.finish(name, workdir)
        wrong = difference(workdir, root / name, expected)
      except Exception as error:  # any error is a failure of the run
        wrong = f"{type(error).__name__}: {error}"
      if wrong:
        failures.append({"i": i, "run": name, "killed": moments, "why": wrong})
        say(f"FAILED --seed={seed} --only={i}: {name} killed {moments}: {wrong}")
      counts.update(moment for moment in moments if moment)
      num_runs, i = num_runs + 1, i + 1
      say(f"{num_runs} runs, {counts.total()} kills, {time.monotonic() - started:.0f} s")
  return {
    "seed": seed,
    "kills": {moment: counts[moment] for moment in MOMENTS},
    "runs": num_runs,
    "equal": num_runs - len(failures),
    "seconds": round(time.monotonic() - started),
    "failures": failures,
  }


def main(arguments: Sequence[str]) -> int:
  """Runs the search that the flags ask for; returns the exit code."""
  options = runs.search_flags(__doc__, default_n=10).parse_args(arguments)
  result = search(options.n, options.seed, only=options.only)
  kills = ", ".join(f"{count} {moment}" for moment, count in result["kills"].items())
  print(f"{result['runs']} runs in {result['seconds']} s, {result['equal']} equal; kills: {kills}")
  return runs.finish(result, options.out)


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
