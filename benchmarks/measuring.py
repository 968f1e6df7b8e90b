"""Times compiled functions in turns and records times, hardware and versions."""

import argparse
import contextlib
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from scae_jax.config import plain_parser
from scae_jax.evaluation.provenance import hardware, measured_with, versions
from scae_jax.evaluation.tables import table
from scae_jax.files import write_json

ROOT = pathlib.Path(__file__).resolve().parent.parent


# Milliseconds, every time that was taken; or, where it failed, what was raised.
Row = list[float] | str


def flags(description: str | None, **defaults: int | str | bool) -> argparse.Namespace:
  """The flags of a benchmark, by name; types are those of the defaults."""
  parser = plain_parser(description)
  for name, default in defaults.items():
    if isinstance(default, bool):
      parser.add_argument(f"--{name}", action="store_true")
    else:
      parser.add_argument(f"--{name}", type=type(default), default=default)
  return parser.parse_args()


def milliseconds(functions: dict[str, Callable[[], Any]], rounds: int) -> dict[str, Row]:
  """Times of each function. They take turns, so that a slow moment of the machine hits all.

  Each runs once before it is timed. One that raises does not run again.
  """
  rows: dict[str, Row] = {}
  for name, function in functions.items():
    rows[name] = []
    with failing_alone(rows, name):
      jax.block_until_ready(function())
  for _ in range(rounds):
    for name, function in functions.items():
      times = rows[name]
      if not isinstance(times, str):
        with failing_alone(rows, name):
          started = time.perf_counter()
          jax.block_until_ready(function())
          times.append(1000 * (time.perf_counter() - started))
  return rows


def each_step(row: Row, steps: int) -> Row:
  """Milliseconds of one step, from times of `steps` steps."""
  return row if isinstance(row, str) else [total / steps for total in row]


@contextlib.contextmanager
def failing_alone(rows: dict[str, Row], name: str) -> Iterator[None]:
  """An exception in the block becomes the row of that name; other rows are still measured."""
  try:
    yield
  except Exception as error:  # a compiler's, a memory's, a check's: none may cost the other rows
    rows[name] = f"{type(error).__name__}: {error}"


def checked_milliseconds(
  variants: dict[str, tuple[Callable[[], Any], Callable[[], Any]]], rounds: int
) -> dict[str, Row]:
  """Times of several ways to compute the same numbers, after a check that they agree.

  Values must agree with those of the first variant to 1e-5, gradients to 1e-4 of the largest entry.
  A variant that does not agree is not timed. Variants are a function's value and its gradient, as
  calls without arguments.
  """
  rows: dict[str, Row] = {}
  functions = {}
  for number, (direction, tolerance) in enumerate((("forward", 1e-5), ("with gradient", 1e-4))):
    expected = None
    for name, calls in variants.items():
      row, call = f"{name}, {direction}", calls[number]
      rows[row] = []
      with failing_alone(rows, row):
        actual = [np.asarray(leaf) for leaf in jax.tree.leaves(call())]
        expected = actual if expected is None else expected
        for leaf, other in zip(actual, expected, strict=True):
          bound = tolerance * np.abs(other).max()
          np.testing.assert_allclose(leaf, other, rtol=0, atol=bound, err_msg=name)
        functions[row] = call
  return rows | milliseconds(functions, rounds)


def report(title: str, settings: dict[str, Any], rows: dict[str, Row], out: str) -> None:
  """Prints a Markdown table of the rows; writes them as JSON to `out` unless it is empty.

  Raises:
    SystemExit: with exit code 1, after everything is written, if a row failed.
  """
  record = {"title": title, "settings": settings, "commit": commit(), **measured_with()}
  failed = {name: row for name, row in rows.items() if isinstance(row, str)}
  record["milliseconds"] = {
    name: {"error": row} if isinstance(row, str) else row for name, row in rows.items()
  }
  print(f"{title}: {', '.join(f'{key} {value}' for key, value in settings.items())}\n")
  columns = {"": "", "median, ms": ".2f", "fastest": ".2f", "slowest": ".2f"}
  lines = []
  for name, row in rows.items():
    is_failed = isinstance(row, str)
    times = ("failed", "", "") if is_failed else (statistics.median(row), min(row), max(row))
    lines.append([name, *times])
  print(table(columns, lines))
  for name, error in failed.items():
    print(f"\n{name}: {error}")
  print(
    f"\n{hardware(record)} {versions(record)} Commit {record['commit']}, {record['date'][:10]}."
  )
  if out:
    write_json(pathlib.Path(out), record)
  if failed:
    sys.exit(f"{len(failed)} of {len(rows)} rows failed: {'; '.join(failed)}")


def commit() -> str:
  """The checkout's commit, marked if files differ from it.

  Outside a repository, as in a copy of the files without their history, it is what
  `$SCAE_JAX_COMMIT` says, and else "unknown".
  """
  command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
  try:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
  except (OSError, subprocess.CalledProcessError):
    return os.environ.get("SCAE_JAX_COMMIT") or "unknown"
  return done.stdout.strip()
