"""Damages workdirs at random, then opens and resumes them.

    python -m reliability.workdirs --n=1000 --seed=0

Each of n copies of a small finished run, or of exported parameters, is damaged in one to three
ways, then opened as evaluate.py does, started from, tabled as sweep.py does, and resumed. The
outcome is one of

- same: parameters and metrics as without the damage, bit for bit
- stated: another correct result, after a message that says so
- refused: one message that names a file

or a failure: a traceback, no end, other parameters or metrics without a message. Then the exit code
is 1, and `--only=i` repeats the i-th (orbax names files at random, so among those of a checkpoint
another may be drawn).
"""

import collections
import contextlib
import dataclasses
import io
import json
import logging
import pathlib
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
from absl import logging as absl_logging
from ml_collections import ConfigDict

from experiments.export import save_pretrained
from reliability import runs
from reliability.damages import damage
from scae_jax.config import Settings, read_settings
from scae_jax.errors import RunError, as_run_errors
from scae_jax.evaluation.history import read_history
from scae_jax.training import build as build_module
from scae_jax.training import run as run_module
from scae_jax.training import start as start_module
from scae_jax.training.hosts import keep_compiled, make_mesh
from scae_jax.training.loop import train
from scae_jax.training.reporting import report_run
from scae_jax.training.run import Run, open_run
from scae_jax.training.start import plan_run
from scae_jax.training.sweep import Row, write_tables
from scae_jax.training.workdir import Which, load_settings

OUTCOMES = ("same", "stated", "refused", "failed")  # from the best to the worst
SECONDS = 120  # a check that takes longer counts as hanging
NUM_STEPS, EVERY = 6, 2
# Phrases of the messages that report a change.
REPORTING_PHRASES = (
  "can be read",
  "cannot be read",
  "unreadable",
  "no readable held-out loss",
  "has not the lines",
  "is not as it was written",
  "starting from step",
  "stands for latest",
)


class SilentError(Exception):
  """Something has changed without a message."""


@dataclasses.dataclass(frozen=True)
class Original:
  """An undamaged run, or undamaged exported parameters."""

  folder: pathlib.Path
  config: ConfigDict
  params: dict[int, list[np.ndarray]]  # by step, of the seed or seeds that `folder` has
  states: dict[int, list[np.ndarray]]  # by step, of each checkpoint; none of exported parameters
  metrics: list[dict[str, Any]]  # lines without their timing


def make_originals(root: pathlib.Path, names: Sequence[str]) -> list[Original]:
  """Trains a run of each name, with a report, and exports the first."""
  originals = []
  for name in names:
    config = runs.config_of(runs.flags_of(name, NUM_STEPS, EVERY))
    config.unlock()
    config.evaluation.max_examples = 60
    config.lock()
    with contextlib.redirect_stdout(io.StringIO()):
      run = train(config, root / name)
      report_run(run, root / name)
    for picture in (root / name).rglob("*.png"):
      picture.unlink()
    states = runs.states_of(root / name, config)
    params = {step: runs.numbers(open_run(root / name, step).variables) for step in states}
    originals.append(Original(root / name, config, params, states, runs.metrics_of(root / name)))
  exported = root / "exported"
  run = open_run(root / names[0])
  save_pretrained(run, run.config.train.seed, exported, "float32", {})
  params = {run.step: runs.numbers(run.variables)}
  return [originals[0], Original(exported, run.config, params, {}, []), *originals[1:]]


@contextlib.contextmanager
def built_once() -> Iterator[None]:
  """In its block, `build` loads and traces each config once: it is most of a check's time."""
  anew, kept = build_module.build, {}

  def build(settings: Settings, dataset: None = None, **options: Any) -> Any:
    assert dataset is None  # all load theirs by its name
    if (key := repr((settings, options))) not in kept:
      kept[key] = anew(settings, **options)
    return kept[key]

  with contextlib.ExitStack() as stack:
    for module in (run_module, start_module, runs):
      stack.enter_context(mock.patch.object(module, "build", build))
    yield


def check(original: Original, folder: pathlib.Path, i: int) -> dict[str, tuple[str, str]]:
  """Opens, tables and resumes the i-th damaged copy; outcome and reason by use."""
  if not original.states:
    return {"open": _outcome(folder, lambda: _check_opened(original, open_run(folder)))}
  outcomes = {"open": _outcome(folder, lambda: _open(original, folder, ("latest", "best")[i % 2]))}
  if i % 3 == 0:  # takes longest
    outcomes["start"] = _outcome(folder, lambda: _start_from(original, folder))
  outcomes["curves"] = _outcome(folder, lambda: _read_curves(folder))
  outcomes["tables"] = _outcome(folder, lambda: _write_tables(original, folder))
  outcomes["resume"] = _outcome(folder, lambda: _resume(original, folder))
  return outcomes


def _open(original: Original, folder: pathlib.Path, which: Which) -> str:
  run = open_run(folder, which)
  if run.step != max(original.params) and not (folder / "checkpoints" / str(NUM_STEPS)).exists():
    # The last checkpoint is gone without a trace; only the step in the report shows it.
    absl_logging.warning("step %d stands for latest", run.step)
  return _check_opened(original, run)


def _check_opened(original: Original, run: Run) -> str:
  # Exported parameters have one step, which their source.json names.
  step = run.step if original.states else max(original.params)
  if not runs.are_equal(runs.numbers(run.variables), original.params.get(step, [])):
    raise SilentError(f"other parameters at step {run.step}")
  if run.config.to_dict() != original.config.to_dict():
    return "another config"
  return "" if run.step == max(original.params) else f"step {run.step}"


def _start_from(original: Original, folder: pathlib.Path) -> str:
  config = ConfigDict(original.config.to_dict())
  config.train.start_from = str(folder)
  settings = read_settings(config)
  start = plan_run(settings, folder.parent / "none", make_mesh()).start
  assert start is not None
  absl_logging.warning("%s", start.summary)  # as the run says it
  for step, state in original.params.items():
    if runs.are_equal(runs.numbers(start.params), _stacked(state, settings.train.seeds)):
      return "" if step == max(original.params) else f"step {step}"
  raise SilentError(f"other parameters: {start.summary}")


def _stacked(params: list[np.ndarray], seeds: int) -> list[np.ndarray]:
  """Leaves of all seeds, one seed after another, stacked as in a state."""
  if seeds == 1:
    return params
  num_leaves = len(params) // seeds
  return [np.stack(params[i::num_leaves]) for i in range(num_leaves)]


def _read_curves(folder: pathlib.Path) -> str:
  path = folder / "metrics.jsonl"
  if path.is_file():
    with as_run_errors():
      read_history(path, 0)
  return ""


def _write_tables(original: Original, folder: pathlib.Path) -> str:
  with as_run_errors():
    write_tables([Row(folder.name, (), read_settings(original.config))], folder.parent)
  return ""


def _resume(original: Original, folder: pathlib.Path) -> str:
  run = train(original.config, folder)
  last = max(original.states)
  if run.step != last or not runs.are_equal(runs.numbers(run.variables), original.params[last]):
    raise SilentError(f"other parameters at step {run.step}")
  states = runs.states_of(folder, original.config, [last])
  if not runs.are_equal(states.get(last, []), original.states[last]):
    raise SilentError(f"another state at step {last}")
  if load_settings(folder).config.to_dict() != original.config.to_dict():
    raise SilentError("another config is saved")
  return "" if runs.metrics_of(folder) == original.metrics else "metrics differ"


def _outcome(folder: pathlib.Path, do: Callable[[], str]) -> tuple[str, str]:
  """Runs a check and returns outcome and reason.

  The check returns "" or a change, which a message must have reported. A refusal must name the
  folder or a file in it.
  """
  with _listening() as messages_so_far:
    try:
      with runs.ending(SECONDS):
        different = do()
    except RunError as error:
      text = f"{messages_so_far()}{error}"
      return ("refused", text) if str(folder) in text else ("failed", f"names no file: {text}")
    except (Exception, runs.WithoutEndError):
      return "failed", traceback.format_exc()
  messages = messages_so_far()
  if "Traceback" in messages or (
    different and not any(phrase in messages for phrase in REPORTING_PHRASES)
  ):
    return "failed", f"{different}; said: {messages}"
  return ("stated" if different else "same"), f"{different}\n{messages}"


@contextlib.contextmanager
def _listening() -> Iterator[Callable[[], str]]:
  """Yields a function that returns what the block has logged or printed to stderr so far."""
  text = io.StringIO()
  handler = logging.StreamHandler(text)
  logger = absl_logging.get_absl_logger()
  handler.addFilter(lambda record: "/orbax/" not in record.pathname)  # as train.py does
  before: list[logging.Handler] = logger.handlers
  handlers: list[logging.Handler] = [handler]
  logger.handlers, logger.propagate = handlers, False
  try:
    with contextlib.redirect_stderr(text):
      yield text.getvalue
  finally:
    logger.handlers, logger.propagate = before, True


def search(
  numbers_: Sequence[int], seed: int, names: Sequence[str], say: Callable[[str], None] = print
) -> dict[str, Any]:
  """Damages and checks folders; returns counts and all failures.

  The damages of the i-th folder are drawn from (seed, i). Progress goes to `say`, one line a call.
  """
  counts: collections.Counter[str] = collections.Counter()
  ways: dict[str, collections.Counter[str]] = {}
  failures = []
  started = time.monotonic()
  with tempfile.TemporaryDirectory() as made, built_once():
    root = pathlib.Path(made).resolve()
    originals = make_originals(root, names)
    shares = np.arange(len(originals), 0, -1) / sum(range(len(originals) + 1))
    say(f"{len(originals)} folders made in {time.monotonic() - started:.0f} s")
    for i in numbers_:
      rng = np.random.default_rng((seed, i))
      # The last run, which takes longest, comes up less often.
      original = originals[rng.choice(len(originals), p=shares)]
      folder = root / "copies" / str(i)
      shutil.copytree(original.folder, folder)
      done = damage(folder, rng)
      outcomes = check(original, folder, i)
      shutil.rmtree(folder.parent)
      worst = max((outcome for outcome, _ in outcomes.values()), key=OUTCOMES.index)
      counts[worst] += 1
      for use, (outcome, _) in outcomes.items():
        ways.setdefault(use, collections.Counter())[outcome] += 1
      if len(numbers_) == 1:
        say(json.dumps({"damage": done, "found": outcomes}, indent=2))
      if worst == "failed":
        why = {use: text for use, (outcome, text) in outcomes.items() if outcome == "failed"}
        failures.append({"i": i, "folder": original.folder.name, "damage": done, "why": why})
        say(f"FAILED --seed={seed} --only={i}: {original.folder.name}, {'; '.join(done)}")
        for use, text in why.items():
          say(f"  {use}: {text.strip().splitlines()[-1]}")
      if (sum(counts.values()) % 100) == 0:
        say(f"{sum(counts.values())}: {dict(counts)}, {time.monotonic() - started:.0f} s")
  return {
    "seed": seed,
    "n": len(numbers_),
    "counts": {outcome: counts[outcome] for outcome in OUTCOMES},
    "by_use": {use: dict(outcomes) for use, outcomes in ways.items()},
    "seconds": round(time.monotonic() - started),
    "failures": failures,
  }


def main(arguments: Sequence[str]) -> int:
  """Runs the search that the flags ask for; returns the exit code."""
  options = runs.search_flags(__doc__, default_n=100).parse_args(arguments)
  absl_logging.set_verbosity(absl_logging.WARNING)
  keep_compiled("")
  chosen = range(options.n) if options.only is None else [options.only]
  result = search(chosen, options.seed, ("cnn", "two-seeds", "ccae"))
  print(f"{result['n']} damaged folders in {result['seconds']} s: {result['counts']}")
  return runs.finish(result, options.out)


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
