"""The training loop: from a config and a workdir to a trained run.

The order after every dispatch is fixed: check that its metrics are finite, count its steps, write
a line of training metrics, compute held-out losses, save a checkpoint. The lines of a step are
written before its checkpoint, so a run that resumes from it lacks none.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from jax.sharding import Mesh

from scae_jax.config import ConfigSource, Settings, read_settings
from scae_jax.data.dataset import Dataset
from scae_jax.data.feed import Feed
from scae_jax.errors import Interrupted, explained
from scae_jax.files import given_path
from scae_jax.interrupt import StopRequest, stop_request
from scae_jax.models.system import Spec, System
from scae_jax.precision import single_precision
from scae_jax.sections import TrainOptions
from scae_jax.training import hosts
from scae_jax.training.checkpoint import Checkpoints, Progress
from scae_jax.training.hosts import check_batch_size, make_mesh, put
from scae_jax.training.log import Display, MetricsWriter, Window, of_seeds
from scae_jax.training.program import Program, check_finite
from scae_jax.training.run import Run, build_to_train
from scae_jax.training.start import Start, find_start
from scae_jax.training.state import TrainState, abstract_state, make_state, variables_by_seed
from scae_jax.training.workdir import checkpoint_directory, locked, write_description


@single_precision
def train(
  config: ConfigSource, workdir: str | os.PathLike[str], dataset: Dataset | None = None
) -> Run:
  """Trains to the config's last step, from the latest checkpoint of the workdir if it has one.

  Everything is checked before anything is written. A run that is stopped and resumed gives the same
  parameters and metrics, bit for bit, as one that was never stopped. (On a GPU only if XLA_FLAGS
  has --xla_gpu_deterministic_ops=true; otherwise the order of some sums varies.)

  The config is a file, such as "configs/digits.py:views", a ConfigDict or a dict of its sections. A
  `dataset` in memory must have the name that `config.data.name` gives.

  Raises:
    RunError: the run is not possible with this config, data set, model or workdir.
    NonFiniteError: a loss term or gradient is not finite; earlier checkpoints stay.
    Interrupted: by Ctrl-C, SIGTERM or SIGHUP; the state is saved.
  """
  with explained():
    workdir = given_path(workdir)
  settings = read_settings(config)
  options = settings.train
  mesh = make_mesh()
  check_batch_size(options.batch_size, mesh, settings.views)
  system, data, feed, data_description = build_to_train(settings, workdir, dataset)
  hosts.check_agreement("config", json.dumps(settings.config.to_dict()))
  hosts.check_agreement("data set", json.dumps(data_description))
  with hosts.all_or_none("read the run to start from"):
    start = find_start(settings, system, feed.spec, mesh, workdir)
  with contextlib.ExitStack() as stack:
    with hosts.all_or_none("open the workdir"):
      stack.enter_context(locked(workdir))
    display = stack.enter_context(Display(num_steps=options.num_steps, silent=not hosts.is_first()))
    stop = stack.enter_context(stop_request())
    folder, keep = checkpoint_directory(workdir), options.keep_checkpoints
    program = None
    if not (folder / str(options.num_steps)).exists():  # otherwise nothing is left to train
      program = _compiled(settings, system, feed, mesh, display)
    with hosts.all_or_none("write to the workdir"):
      write_description(workdir, settings.config, data_description)
    checkpoints = stack.enter_context(
      Checkpoints(folder, keep=keep, writable=True, say=display.say)
    )
    stack.enter_context(hosts.lost_peers_explained())
    state, progress = _start(settings, system, feed.spec, mesh, start, checkpoints, display)
    writer = stack.enter_context(_metrics_writer(options, workdir, progress, display))
    if progress.step < options.num_steps:
      program = program or _compiled(settings, system, feed, mesh, display)
      loop = _Loop(options, program, checkpoints, display, writer, stop)
      state, progress = loop.run(state, progress)
    checkpoints.wait()
    if number := hosts.largest(stop.signal_number or 0):
      after_steps = (
        f"step {progress.step} of {options.num_steps} is saved in {workdir}; the same command"
        " resumes from there."
      )
      before_steps = (
        f"no step of {options.num_steps} was trained, so nothing but the config is in {workdir};"
        " the same command starts from the beginning."
      )
      has_steps = progress.step > options.start_step
      raise Interrupted(after_steps if has_steps else before_steps, number)
  variables = variables_by_seed(state, options.all_seeds)
  return Run(settings, system, data, variables, progress.step, is_latest=True)


def _compiled(
  settings: Settings, system: System, feed: Feed, mesh: Mesh, display: Display
) -> Program:
  """The compiled program of a run; the data set lies on the mesh. `RunError` if it does not fit."""
  started = time.perf_counter()
  program = Program(settings, system, feed, mesh)
  program.compile(abstract_state(settings, system, feed.spec, mesh))
  display.say(f"compiled in {time.perf_counter() - started:.1f} s")
  return program


def _start(
  settings: Settings,
  system: System,
  data: Spec,
  mesh: Mesh,
  start: Start | None,
  checkpoints: Checkpoints,
  display: Display,
) -> tuple[TrainState, Progress]:
  """The state of the latest readable checkpoint, or a new one with the parameters of `start`."""
  seeds = settings.train.all_seeds
  if checkpoints.steps():
    state, progress = checkpoints.restore(abstract_state(settings, system, data, mesh))
    checkpoints.set_aside_after(progress.step)
    display.say(f"resuming at step {progress.step}")
  else:
    start_params = None if start is None else put(start.params, mesh)
    state = make_state(settings, system, data, mesh, start=start_params)
    if start is not None:
      display.say(start.summary)
    step = settings.train.start_step
    progress = Progress(step=step, window=Window().to_json(), selection_loss=None)
  num_parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params)) // len(seeds)
  at_once = "" if len(seeds) == 1 else f", seeds {seeds[0]} to {seeds[-1]} at once"
  display.say(f"{settings.system}: {num_parameters:,} parameters on {mesh.size} device(s){at_once}")
  return state, progress


@contextlib.contextmanager
def _metrics_writer(
  options: TrainOptions, workdir: pathlib.Path, progress: Progress, display: Display
) -> Iterator[MetricsWriter | None]:
  """The writer of metrics; says so if earlier lines in the file have changed."""
  if not hosts.is_first():
    yield None
    return
  writer = MetricsWriter(workdir, after_step=progress.step, tensorboard=options.tensorboard)
  if progress.lines not in (None, writer.checksum):
    display.say(
      f"{workdir / 'metrics.jsonl'} has not the lines that were written up to step"
      f" {progress.step}: some are changed or missing. They stay as they are."
    )
  with contextlib.closing(writer):
    yield writer


@dataclasses.dataclass(frozen=True)
class _Loop:
  """Trains a state to the last step; `writer` is None in all processes but the first."""

  options: TrainOptions
  program: Program
  checkpoints: Checkpoints
  display: Display
  writer: MetricsWriter | None
  stop: StopRequest

  def run(self, state: TrainState, progress: Progress) -> tuple[TrainState, Progress]:
    """Trains until the last step or a request to stop; the result's checkpoint is being written."""
    options, step = self.options, progress.step
    # All three belong to the next line of metrics.
    window, num_steps, seconds = Window(progress.window), 0, 0.0
    saved = step if self.checkpoints.steps() else 0  # step of the last checkpoint; 0 for none
    began = time.perf_counter()
    stopping = self._is_stopping()
    while step < options.num_steps and not stopping:
      started = time.perf_counter()
      state, rows = self.program.run(state, step)
      num_done = len(rows["total"])
      num_steps, seconds = num_steps + num_done, seconds + time.perf_counter() - started
      check_finite(rows, step, options.all_seeds, saved=saved)
      step += num_done
      last = step == options.num_steps
      window.add(rows)
      self.display.advance(step, num_steps / seconds)
      if last or _due(step, options.log_every):
        timing = {"steps_per_second": num_steps / seconds, "seconds": seconds}
        timing["wall_seconds"] = time.perf_counter() - began
        means = of_seeds(window.means(), options.all_seeds)
        self._record({"split": "train", "step": step, **means, "timing": timing})
        window, num_steps, seconds = Window(), 0, 0.0
      selection_loss = None
      save = last or _due(step, options.checkpoint_every)
      if save or _due(step, options.eval_every):
        selection_loss = self._evaluate(state, step, saved)
      lines = None if self.writer is None else self.writer.checksum
      progress = Progress(step, window.to_json(), selection_loss, lines)
      stopping = self._is_stopping()
      if save or stopping:
        self.checkpoints.save(state, progress)
        saved = step
    return state, progress

  def _evaluate(self, state: TrainState, step: int, saved: int) -> float:
    """Writes a line of held-out results; returns the loss that ranks the checkpoint."""
    started, seeds = time.perf_counter(), self.options.all_seeds
    results = self.program.evaluate(state.params)
    flat: dict[str, Any] = flatten_dict(results, sep="/")
    rows = {
      f"held-out {name.removeprefix('terms/')}": np.reshape(value, (1, -1))
      for name, value in flat.items()
    }
    check_finite(rows, step - 1, seeds, saved=saved)
    seconds = time.perf_counter() - started
    means = of_seeds(results, seeds)
    line = {"split": self.program.held_out, "step": step, **means, "timing": {"seconds": seconds}}
    self._record(line)
    return means["selection_loss"]

  def _record(self, line: dict[str, Any]) -> None:
    self.display.line(line)
    if self.writer is not None:
      self.writer.write(line)

  def _is_stopping(self) -> bool:
    """Whether any process was asked to stop; all processes then stop after the same step."""
    return hosts.largest(self.stop.signal_number or 0) > 0


def _due(step: int, every: int) -> bool:
  return every > 0 and step % every == 0
