"""Times compiled functions fairly and writes down what was measured on what."""

import json
import pathlib
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from scae_jax.evaluation.provenance import measured_with

ROOT = pathlib.Path(__file__).resolve().parent.parent


def milliseconds(functions: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
  """Times of each function, which take turns, so that a slow moment of the machine hits all.

  Args:
    functions: by name; each runs once before the clock does, and is waited for.
    rounds: how often each is timed.
  """
  for function in functions.values():
    jax.block_until_ready(function())
  times: dict[str, list[float]] = {name: [] for name in functions}
  for _ in range(rounds):
    for name, function in functions.items():
      started = time.perf_counter()
      jax.block_until_ready(function())
      times[name].append(1000 * (time.perf_counter() - started))
  return times


def checked_milliseconds(
  variants: dict[str, tuple[Callable[[], Any], Callable[[], Any]]], rounds: int
) -> dict[str, list[float]]:
  """Times of several ways to compute the same, after a check that they do.

  Values must agree with those of the first to 1e-5, gradients to 1e-4 of the largest entry.

  Args:
    variants: by name, a function's value and its gradient, as calls without arguments.
    rounds: how often each is timed.
  """
  expected = None
  for name, calls in variants.items():
    actual = [[np.asarray(leaf) for leaf in jax.tree.leaves(call())] for call in calls]
    expected = actual if expected is None else expected
    for tolerance, leaves, others in zip((1e-5, 1e-4), actual, expected, strict=True):
      for leaf, other in zip(leaves, others, strict=True):
        bound = tolerance * np.abs(other).max()
        np.testing.assert_allclose(leaf, other, rtol=0, atol=bound, err_msg=name)
  functions = {f"{name}, forward": calls[0] for name, calls in variants.items()}
  functions |= {f"{name}, with gradient": calls[1] for name, calls in variants.items()}
  return milliseconds(functions, rounds)


def report(title: str, settings: dict[str, Any], times: dict[str, list[float]], out: str) -> None:
  """Prints a Markdown table and writes the JSON beside it.

  Args:
    title: what was measured.
    settings: sizes.
    times: of `milliseconds`.
    out: path of the JSON file; "" writes none.
  """
  record = {"title": title, "settings": settings, "commit": commit(), **measured_with()}
  record["milliseconds"] = times
  print(f"{title}: {', '.join(f'{key} {value}' for key, value in settings.items())}\n")
  print("| | median, ms | fastest | slowest |\n|---|---|---|---|")
  for name, values in times.items():
    middle = statistics.median(values)
    print(f"| {name} | {middle:.2f} | {min(values):.2f} | {max(values):.2f} |")
  hardware = record["hardware"]
  print(
    f"\n{hardware['device_count']} x {hardware['device_kind']}, {hardware['cpu_count']} x "
    f"{hardware['cpu_model']}, jax {record['versions']['jax']}, commit {record['commit']}, "
    f"{record['date'][:10]}"
  )
  if out:
    path = pathlib.Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def commit() -> str:
  """The checkout's commit, marked if files differ from it; "unknown" outside a repository."""
  command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
  try:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
  except (OSError, subprocess.CalledProcessError):
    return "unknown"
  return done.stdout.strip()
