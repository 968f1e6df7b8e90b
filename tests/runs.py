"""For tests of whole runs: stopping and comparing them, and the scripts in this process."""

import functools
import json
import os
import pathlib
import signal
import time

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import logging
from ml_collections import ConfigDict
from PIL import Image

import evaluate as evaluate_script
import train as train_script
from reliability.runs import metrics_of as metrics
from scae_jax.config import read_settings
from scae_jax.data.batches import evaluation_batch
from scae_jax.data.digits import load_digits
from scae_jax.errors import Interrupted
from scae_jax.models.system import ImageSpec
from scae_jax.training import hosts
from scae_jax.training.build import make_system
from scae_jax.training.loop import train
from scae_jax.training.optimizer import make_optimizer
from scae_jax.training.run import open_run
from scae_jax.training.state import initial_states
from scae_jax.training.step import Program, update
from scae_jax.training.sweep import Row, read_sweep

ROOT = pathlib.Path(__file__).resolve().parent.parent
# XLA's flags for processes that need not have four devices.
ONE_DEVICE = os.environ["XLA_FLAGS"].replace("device_count=4", "device_count=1")


def steps_of(workdir: pathlib.Path, split: str) -> list[int]:
  return [line["step"] for line in metrics(workdir) if line["split"] == split]


def assert_same_run(workdir: pathlib.Path, expected: pathlib.Path) -> None:
  run, other = open_run(workdir), open_run(expected)
  assert run.step == other.step
  chex.assert_trees_all_equal(run.variables, other.variables)
  assert metrics(workdir) == metrics(expected)


def stop_after(num_dispatches: int, config, workdir: pathlib.Path, saved: str) -> None:
  """Trains until SIGTERM after this number of dispatches; `saved` matches the last message."""
  original, count = Program.run, 0

  def run(self, state, step):
    nonlocal count
    count += 1
    if count == num_dispatches:
      terminate()
    return original(self, state, step)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(Program, "run", run)
    with pytest.raises(Interrupted, match=saved) as stopped:
      train(config, workdir)
  assert stopped.value.exit_code == 143


def run_steps(program: Program, state, num_steps: int):
  """The state after the first `num_steps` steps, and the metrics of each step."""
  collected, step = [], 0
  while step < num_steps:
    state, rows = program.run(state, step)
    step += len(rows["total"])
    collected.append(rows)
  assert step == num_steps
  return state, {name: np.concatenate([rows[name] for rows in collected]) for name in collected[0]}


def terminate() -> None:
  """Sends SIGTERM to this process, and waits for the thread that takes note of it."""
  os.kill(os.getpid(), signal.SIGTERM)
  time.sleep(0.2)


def truncate(folder: pathlib.Path) -> None:
  """Cuts every file of a folder in half."""
  for file in folder.rglob("*"):
    if file.is_file():
      file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def save_images(
  folder: pathlib.Path, num_classes: int, num_images: int, prefix: str = "class"
) -> pathlib.Path:
  """A folder of pictures of noise, a folder a class, "class0" and so on."""
  rng = np.random.RandomState(0)
  for index in range(num_images):
    path = folder / f"{prefix}{index % num_classes}" / f"{index:03}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.randint(0, 256, (12, 12)).astype(np.uint8)).save(path)
  return folder


def train_py(*arguments: str) -> None:
  """Runs train.py with these arguments in this process."""
  absl_logger = logging.get_absl_logger()
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(hosts, "keep_compiled", lambda folder: None)
    try:
      train_script.main(list(arguments))
    finally:
      absl_logger.removeFilter(train_script.is_not_orbax)


def evaluate_py(*arguments: str) -> None:
  """Runs evaluate.py with these arguments in this process."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(hosts, "keep_compiled", lambda folder: None)
    evaluate_script.main(list(arguments))


# All that `shrink` changes: sizes and lengths, not the kinds of layers and losses.
SIZES = {
  "model.num_parts": 4,
  "model.num_objects": 4,
  "model.part_encoder.widths": (6,),
  "model.part_encoder.strides": (2,),
  "model.part_encoder.num_features": 4,
  "model.part_decoder.template_size": 5,
  "model.object_encoder.output_features": 8,
  "model.object_encoder.num_layers": 1,
  "model.object_encoder.features": 8,
  "model.object_decoder.hidden": 8,
  "model.object_decoder.capsule_features": 6,
  "data.canvas": 18,
  "data.max_shift": 1,
  "train.num_steps": 2,
  "train.batch_size": 8,
  "train.steps_per_dispatch": 1,
  "train.log_every": 2,
  "train.eval_every": 0,
  "train.checkpoint_every": 0,
  "optimizer.decay_steps": 1000,
  "evaluation.batch_size": 64,
}


def shrink(config: ConfigDict, **train_options: int) -> ConfigDict:
  """A shipped config at a size that trains in seconds, with changes of its train section."""
  config.update_from_flattened_dict(SIZES)
  config.train.update(train_options)
  return config.lock()


def on_eight_digits(config, canvas: int):
  """The compiled step of a system on eight digits, the initial state, and the batch."""
  config.optimizer.learning_rate = 1e-2  # it has a short life
  settings, spec = read_settings(config), ImageSpec(canvas=canvas, channels=1, num_classes=10)
  system, optimizer = make_system(settings, spec), make_optimizer(settings.optimizer)
  split = load_digits().splits["train"].take(np.arange(8))
  arrays = {"image": jnp.asarray(split.images), "label": jnp.asarray(split.labels)}
  batch = evaluation_batch(arrays, jnp.arange(8), canvas=canvas)
  state = jax.jit(lambda: initial_states(settings, system, spec))()
  return jax.jit(functools.partial(update, system, optimizer)), state, batch


TEACHING = """
The first step of training gives other numbers than it used to. If you meant to change the
mathematics (a loss, an initial value, the optimiser, the order in which keys are used), update
GOLDEN with the numbers below and say in the commit what changed them. If you did not, you have
found a mistake.
"""


def assert_golden(on_eight, golden: dict[str, float]) -> None:
  """Checks terms, total and gradient norm of the first step; `after` is the total of the second."""
  step, state, batch = on_eight
  state, first = step(state, batch, jax.random.key(1))
  _, second = step(state, batch, jax.random.key(1))
  actual = {name: float(value) for name, value in first["terms"].items()}
  actual |= {name: float(first[name]) for name in ("total", "grad_norm")}
  actual["after"] = float(second["total"])
  # The same machine comes back to 2e-8; other versions and processors take float32 sums over
  # hundreds of pixels in another order, which costs 1e-6 or so. Adam divides gradients by their
  # size: those that are nothing but rounding step too.
  tolerances = {name: 1e-3 if name == "after" else 1e-4 for name in golden}
  expected = {name: pytest.approx(golden[name], rel=tolerances[name]) for name in golden}
  assert actual == expected, f"{TEACHING}{json.dumps(actual, indent=2)}"


# A sweep of four rows.
FOUR = 'config = "toy.py"\n' + "".join(f'[[rows]]\nname = "{name}"\n' for name in "abcd")


def report_of(config, seed=0, lin_match=0.5):
  """The report of a run of this config, with made-up scores."""
  scores = {"lin_match": lin_match, "lin_pred": 0.75, "capsules_in_use": 3, "capsules": 8}
  report = {
    "fitted_on": {"dataset": "digits", "split": "train", "examples": 1437},
    "scored_on": {"dataset": "digits", "split": "test", "examples": 360},
    "max_examples": config.evaluation.max_examples,
    "step": config.train.num_steps,
    "date": f"2026-11-2{seed}T10:00:00+00:00",
    "features": {"code": scores},
    "pixels": scores,
    "metrics": {"squared_error": 12.5, "probe_accuracy": 0.25},
    "notes": ["of all", f"of seed {seed}"],
    "versions": {"jax": "1.2"},
    "hardware": {"cpu_count": 2, "cpu_model": "C", "device_count": 1, "device_kind": "D"},
    "provenance": {"config": json.loads(json.dumps(config.to_dict()))},
  }
  return report | {"seed": seed}


def rows_of(home: pathlib.Path, text: str) -> list[Row]:
  """The rows of a sweep file with this text."""
  (home / "sweep.toml").write_text(text)
  return read_sweep(home / "sweep.toml", home / "root")
