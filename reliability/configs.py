"""Draws configs at random; each must train or be refused with the name of its key.

    python -m reliability.configs --n=10000 --seed=0 --keep=runs/configs.json

Each config is a small one of one of the systems with a few keys changed: to sizes that are odd,
large or negative, to NaN or infinity, to values of another type, to schedules out of order. It is
read and traced as by train.py; every tenth one trains for two steps. A run that ends because its
loss is not finite counts as stopped. The exit code is 1 if a config ended neither in a run nor in
one line that names a changed key; `--only=i` repeats the i-th config. `--keep` saves the results
after every chunk, and the same command goes on from there.
"""

import concurrent.futures
import contextlib
import io
import json
import multiprocessing
import pathlib
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np
from absl import logging
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from configs import capsnet, cnn, constellations, digits, matrix_capsules, probabilistic
from reliability import runs
from scae_jax.config import read_settings
from scae_jax.errors import NonFiniteError, RunError
from scae_jax.files import write_json
from scae_jax.training.build import build
from scae_jax.training.loop import train

TRAINED, TRACED, REFUSED, STOPPED = "trained", "traced", "refused", "stopped"
SOUND = (TRAINED, TRACED, REFUSED, STOPPED)
TRAIN_EVERY = 10
CHUNK = 100  # configs a process; compiled programs stay in its memory
PATIENCE = 300  # seconds for one config

# Sizes at which a model is traced in a second.
SMALL: dict[str, dict[str, Any]] = {
  "scae": {
    "model.num_parts": 4,
    "model.num_objects": 4,
    "model.part_encoder.widths": (4, 4),
    "model.part_encoder.strides": (2, 1),
    "model.object_encoder.num_layers": 1,
    "model.object_encoder.output_features": 8,
    "model.object_encoder.features": 8,
    "model.object_decoder.hidden": 8,
  },
  "ccae": {
    "model.object_encoder.num_layers": 1,
    "model.object_encoder.features": 8,
    "model.object_encoder.output_features": 8,
    "model.object_decoder.hidden": 8,
  },
  "probabilistic": {
    "model.capsules": (4, 3),
    "model.part_inference.widths": (4, 4),
    "model.part_inference.strides": (2, 1),
    "model.object_inference.num_layers": 1,
    "model.object_inference.features": 8,
    "model.object_inference.output_features": 8,
    "model.object_inference.num_inducing": 4,
  },
  "capsnet": {
    "model.conv_width": 8,
    "model.primary_types": 4,
    "model.decoder_widths": (8,),
    "model.routing_iterations": 2,
  },
  "matrix_capsules": {
    "model.conv_width": 8,
    "model.primary_types": 2,
    "model.first_types": 2,
    "model.second_types": 2,
    "model.routing_iterations": 2,
  },
  "cnn": {},
}
TINY_RUN = {
  "train.num_steps": 2,
  "train.batch_size": 4,
  "train.compilation_cache": "off",
  "data.num_validation": 0,
}
WHOLE = (-1, 0, 1, 2, 3, 4, 5, 7, 8, 12, 16, 20, 31, 64, 100, 1000, 65_536, 10**6, 10**9, 10**12)
NUMBERS = (-1.0, 0.0, 1e-60, 1e-30, 1e-8, 1e-3, 0.3, 1.0, 2.0, 10.0, 1e3, 1e6, 1e9, 1e30, 1e300)
NOT_NUMBERS = (float("nan"), float("inf"), float("-inf"))
OTHERS = (None, True, "1", "", 1.5, (1, 2), {}, {"a": 1}, "nonsense", ((0, 1.0), (5, 2.0)))
WORDS = (
  *("attention", "mean", "linear", "sigmoid", "relu1", "alpha", "coupled"),
  *("set_transformer", "mlp", "hard", "soft", "none", "parts", "all"),
  *("l2", "entropy", "kl", "adam", "rmsprop", "constant", "exponential", "cosine", "same", "last"),
  *("gaussian", "summed_out", "sobel", "bfloat16", "digits", "constellations", "nowhere", ""),
)
# Folders and names of files are not drawn: they may name anything on the machine.
LEFT_ALONE = (
  *("data.dir", "data.cache_dir", "data.affnist_dir"),
  *("train.compilation_cache", "train.start_from", "train.tensorboard"),
)


def base_configs() -> dict[str, ConfigDict]:
  """A small config of every system."""
  made = {
    "scae": digits.get_config(),
    "ccae": constellations.get_config(),
    "probabilistic": probabilistic.get_config("digits"),
    "capsnet": capsnet.get_config("digits"),
    "matrix_capsules": matrix_capsules.get_config("digits"),
    "cnn": cnn.get_config("digits"),
  }
  for name, config in made.items():
    keys = flatten_dict(config.to_dict(), sep=".")
    changes = {**SMALL[name], **TINY_RUN}
    config.update_from_flattened_dict({k: v for k, v in changes.items() if k in keys})
  return made


def draw(seed: int, number: int) -> tuple[str, dict[str, Any]]:
  """A system and values of some of its keys: a pure function of the seed and the number."""
  rng = np.random.default_rng([seed, number])
  bases = base_configs()
  system = str(rng.choice(list(bases)))
  keys = {
    key: value
    for key, value in flatten_dict(bases[system].to_dict(), sep=".").items()
    if key not in LEFT_ALONE
  }
  how_many = int(rng.integers(1, 5))
  chosen = rng.choice(sorted(keys), size=how_many, replace=False)
  return system, {str(key): _value(rng, keys[str(key)]) for key in chosen}


def _value(rng: np.random.Generator, value: Any) -> Any:
  """A random value for a key with this value: mostly of its type, sometimes near it, or invalid."""
  if rng.random() < 0.1:
    return OTHERS[rng.integers(len(OTHERS))]
  if isinstance(value, bool):
    return not value
  if isinstance(value, str):
    return WORDS[rng.integers(len(WORDS))]
  if isinstance(value, int | float):
    return _number(rng, value)
  if isinstance(value, tuple) and (not value or isinstance(value[0], tuple)):
    count = int(rng.integers(0, 4))
    steps = [int(WHOLE[rng.integers(len(WHOLE))]) for _ in range(count)]
    steps = sorted(steps) if rng.random() < 0.7 else steps
    return tuple((step, _number(rng, 1.0)) for step in steps)
  if isinstance(value, tuple):
    length = len(value) if rng.random() < 0.5 else int(rng.integers(0, 5))
    return tuple(_value(rng, value[0]) for _ in range(length))
  return OTHERS[rng.integers(len(OTHERS))]


def _number(rng: np.random.Generator, value: float) -> Any:
  kind = rng.random()
  if isinstance(value, int):
    near = max(0, value + int(rng.integers(-3, 4)))
    return near if kind < 0.5 else int(WHOLE[rng.integers(len(WHOLE))])
  if kind < 0.1:
    return NOT_NUMBERS[rng.integers(len(NOT_NUMBERS))]
  if kind < 0.5:
    return float(value * rng.uniform(0.1, 3.0))
  return NUMBERS[rng.integers(len(NUMBERS))]


def make_config(system: str, changes: dict[str, Any]) -> ConfigDict:
  """The small config of a system with values of any type at some keys."""
  content = base_configs()[system].to_dict()
  for path, value in changes.items():
    *sections, last = path.split(".")
    section = content
    for name in sections:
      section = section[name]
    section[last] = value
  return ConfigDict(content).lock()


def try_config(seed: int, number: int) -> dict[str, Any]:
  """The outcome of reading, tracing and, every tenth time, training a config."""
  system, changes = draw(seed, number)
  started = time.perf_counter()
  outcome, message = TRACED, ""
  try:
    with runs.ending(PATIENCE):
      config = make_config(system, changes)
      if number % TRAIN_EVERY == 0:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
          train(config, pathlib.Path(folder) / "run")
        outcome = TRAINED
      else:
        build(read_settings(config))
  except NonFiniteError as error:
    outcome, message = STOPPED, str(error)
  except RunError as error:
    message = str(error)
    named = any(re.search(rf"config\.{re.escape(key)}\b", message) for key in changes)
    outcome = REFUSED if named and "\n" not in message else "refused without the key"
  except (Exception, SystemExit, runs.WithoutEndError) as error:
    outcome, message = type(error).__name__, traceback.format_exc()
  description = {"seed": seed, "number": number, "system": system, "changes": repr(changes)}
  return {
    **description,
    "outcome": outcome,
    "message": message,
    "seconds": round(time.perf_counter() - started, 2),
  }


def try_configs(seed: int, numbers: Sequence[int]) -> list[dict[str, Any]]:
  """Results of configs, one after the other."""
  logging.set_verbosity(logging.ERROR)
  return [try_config(seed, number) for number in numbers]


def try_all(
  seed: int, numbers: Sequence[int], keep: pathlib.Path | None = None
) -> list[dict[str, Any]]:
  """Results of all configs; each chunk is tried in its own process.

  `keep` is a file of earlier results. Those of this seed and these numbers are reused.
  """
  kept = json.loads(keep.read_text()) if keep is not None and keep.exists() else []
  results = [result for result in kept if result["seed"] == seed and result["number"] in numbers]
  done = {result["number"] for result in results}
  left = [number for number in numbers if number not in done]
  for start in range(0, len(left), CHUNK):
    chunk = left[start : start + CHUNK]
    try:
      chunk_results = _in_a_process(seed, chunk)
    except BrokenProcessPool:
      # A config has ended the process, perhaps for want of memory: try each by itself.
      chunk_results = [_alone(seed, number) for number in chunk]
    results += chunk_results
    if keep is not None:
      write_json(keep, results)
    print(f"{len(results)} of {len(numbers)}: {dict(_counts(results))}", flush=True)
  return results


def _in_a_process(seed: int, numbers: Sequence[int]) -> list[dict[str, Any]]:
  context = multiprocessing.get_context("spawn")
  with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
    return pool.submit(try_configs, seed, numbers).result()


def _alone(seed: int, number: int) -> dict[str, Any]:
  try:
    return _in_a_process(seed, [number])[0]
  except BrokenProcessPool:
    system, changes = draw(seed, number)
    ended = {"outcome": "process ended", "message": "", "seconds": 0.0}
    return {"seed": seed, "number": number, "system": system, "changes": repr(changes), **ended}


def _counts(results: Sequence[Mapping[str, Any]]) -> Counter[str]:
  return Counter(result["outcome"] for result in results)


def summary(seed: int, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """Counts of outcomes, the ten configs that took longest, and all failures."""
  by_time = sorted(results, key=lambda result: -result["seconds"])
  return {
    "seed": seed,
    "n": len(results),
    "counts": dict(_counts(results)),
    "longest": [{k: v for k, v in result.items() if k != "message"} for result in by_time[:10]],
    "failures": [dict(result) for result in results if result["outcome"] not in SOUND],
  }


def main(arguments: Sequence[str]) -> int:
  """Tries the configs that the flags ask for; returns the exit code."""
  parser = runs.search_flags(__doc__, default_n=1_000)
  parser.add_argument("--keep", type=pathlib.Path, help="JSON of all results, to go on from")
  options = parser.parse_args(arguments)
  numbers = range(options.n) if options.only is None else [options.only]
  keep = options.keep if options.only is None else None
  counts = summary(options.seed, try_all(options.seed, numbers, keep))
  print(json.dumps(counts, indent=1))
  return runs.finish(counts, options.out)


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
