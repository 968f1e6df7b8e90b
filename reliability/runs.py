"""Short runs to break, and the comparison of two of them."""

import argparse
import contextlib
import json
import pathlib
import signal
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from scae_jax.config import parse_command_line, plain_parser, read_settings
from scae_jax.errors import RunError
from scae_jax.files import write_json
from scae_jax.training.build import build
from scae_jax.training.checkpoint import Checkpoints
from scae_jax.training.hosts import make_mesh
from scae_jax.training.state import TrainState, abstract_state
from scae_jax.training.workdir import checkpoint_directory

CONFIGS = pathlib.Path(__file__).parent.parent / "configs"
CNN = f"--config={CONFIGS / 'cnn.py'}:digits"
FLAGS = {
  "cnn": (CNN,),
  "two-seeds": (CNN, "--config.train.seeds=2"),
  "ccae": (f"--config={CONFIGS / 'constellations.py'}:mlp",),
}


def flags_of(name: str, num_steps: int, every: int) -> list[str]:
  """Flags of train.py for one of `FLAGS`, with lines and checkpoints every `every` steps."""
  cadence = ("steps_per_dispatch", "log_every", "eval_every", "checkpoint_every")
  train = {"num_steps": num_steps, "batch_size": 8, "keep_checkpoints": 3}
  train |= dict.fromkeys(cadence, every)
  return [*FLAGS[name], *(f"--config.train.{key}={value}" for key, value in train.items())]


def config_of(flags: Sequence[str]) -> ConfigDict:
  """The config that flags of train.py make."""
  return parse_command_line(flags, default_config="").settings.config


def search_flags(description: str | None, default_n: int) -> argparse.ArgumentParser:
  """A parser with the flags of a search."""
  parser = plain_parser(description)
  parser.add_argument("--n", type=int, default=default_n, help="number of cases")
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--only", type=int, help="number of the only case to repeat")
  parser.add_argument("--out", type=pathlib.Path, help="JSON of the counts and failures")
  return parser


def finish(result: dict[str, Any], out: pathlib.Path | None) -> int:
  """Writes the result of a search to `out`, if given; returns the exit code."""
  if out:
    write_json(out, result)
  return 1 if result["failures"] else 0


class WithoutEndError(BaseException):
  """Something took too long. It is no `Exception`, so that no handler of one catches it."""


@contextlib.contextmanager
def ending(seconds: int) -> Iterator[None]:
  """Raises `WithoutEndError` in the block after this number of seconds."""

  def stop(*_: object) -> None:
    raise WithoutEndError(f"no end after {seconds} seconds")

  before = signal.signal(signal.SIGALRM, stop)
  signal.alarm(seconds)
  try:
    yield
  finally:
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def states_of(
  workdir: pathlib.Path, config: ConfigDict, which: Sequence[int] = ()
) -> dict[int, list[np.ndarray]]:
  """Parameters, optimiser, step and random key of checkpoints, by step.

  `which` are the steps; without it, all. Checkpoints that cannot be read are left out.
  """
  settings = read_settings(config)
  system, _, feed = build(settings)
  template = abstract_state(settings, system, feed.spec, make_mesh())
  states = {}
  with Checkpoints(
    checkpoint_directory(workdir), keep=1, writable=False, say=lambda _: None
  ) as checkpoints:
    for step in which or checkpoints.steps():
      with contextlib.suppress(RunError):
        states[step] = numbers(checkpoints.restore(template, step)[0])
  return states


def numbers(tree: TrainState | Any) -> list[np.ndarray]:
  """The leaves as NumPy arrays; of a random key, its data."""
  return [
    np.asarray(
      jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
    )
    for leaf in jax.tree.leaves(tree)
  ]


def are_equal(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> bool:
  """Whether two lists of arrays are equal, bit for bit."""
  return len(actual) == len(expected) and all(
    a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    for a, b in zip(actual, expected, strict=True)
  )


def metrics_of(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """The lines of metrics, without their timing."""
  lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  return [{key: line[key] for key in line if key != "timing"} for line in lines]
