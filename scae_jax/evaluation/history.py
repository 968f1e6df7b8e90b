"""Reads the `metrics.jsonl` of a training run as curves."""

import json
import math
import pathlib

import numpy as np
from absl import logging
from flax.traverse_util import flatten_dict

_NOT_CURVES = ("step", "split", "timing")


def read_history(path: pathlib.Path, seed: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
  """Reads the JSON lines of a training run, of one of its seeds; see `training.log`.

  Skips an incomplete last line, and damaged lines with a warning. Returns ascending steps int [n]
  and the curves `{split/name: float [n]}`, without timings; NaN at steps without a value. Numbers
  of a nested object are named `split/object/name`.
  """
  rows: dict[int, dict[str, float]] = {}
  damaged = 0
  for line in path.read_bytes().splitlines(keepends=True):
    try:
      entry = json.loads(line.decode())
      seed_entry = entry["seeds"][str(seed)] if "seeds" in entry else entry
      curves = {name: value for name, value in seed_entry.items() if name not in _NOT_CURVES}
      numbers = {
        name: float(value)
        for name, value in flatten_dict({entry.get("split", "train"): curves}, sep="/").items()
        if isinstance(value, int | float) and not isinstance(value, bool)
      }
      rows.setdefault(int(np.int64(entry["step"])), {}).update(numbers)
    except (LookupError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
      damaged += line.endswith(b"\n")
  if damaged:
    logging.warning("%s: %d lines are damaged and left out of the curves.", path, damaged)
  steps = sorted(rows)
  names = list(dict.fromkeys(name for step in steps for name in rows[step]))
  values = {name: np.array([rows[step].get(name, math.nan) for step in steps]) for name in names}
  return np.array(steps, dtype=np.int64), values
