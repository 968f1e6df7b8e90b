"""The life of a run: from a config and a workdir to a trained run.

The order after every dispatch is fixed: check that its metrics are finite, count its steps, write
a line of training metrics, compute held-out losses, save a checkpoint. The lines of a step are
written before its checkpoint, so a run that resumes from it lacks none.
"""

import contextlib
import os
import time
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict

from scae_jax.config import ConfigSource, read_settings
from scae_jax.data.dataset import Dataset
from scae_jax.errors import Interrupted, as_run_errors
from scae_jax.files import given_path
from scae_jax.interrupt import StopRequest, stop_request
from scae_jax.precision import single_precision
from scae_jax.sections import TrainOptions
from scae_jax.training import hosts
from scae_jax.training.checkpoint import Checkpoints, Progress
from scae_jax.training.hosts import check_batch_size, make_mesh
from scae_jax.training.log import Display, MetricsWriter, Window, mean_over_seeds
from scae_jax.training.run import Run
from scae_jax.training.start import first_state, plan_run
from scae_jax.training.state import TrainState, variables_by_seed
from scae_jax.training.step import Program, check_finite
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
  with as_run_errors():
    workdir = given_path(workdir)
  settings = read_settings(config)
  options, mesh = settings.train, make_mesh()
  check_batch_size(options.batch_size, mesh, settings.views)
  plan = plan_run(settings, workdir, mesh, dataset)
  with contextlib.ExitStack() as stack:
    with hosts.all_or_none("open the workdir"):
      stack.enter_context(locked(workdir))
    display = stack.enter_context(Display(num_steps=options.num_steps, silent=not hosts.is_first()))
    stop = stack.enter_context(stop_request())
    program = Program(settings, plan.system, plan.feed, mesh)
    folder, keep = checkpoint_directory(workdir), options.keep_checkpoints
    if not (folder / str(options.num_steps)).exists():  # otherwise nothing is left to train
      started = time.perf_counter()
      program.compile(plan.state)
      display.say(f"compiled in {time.perf_counter() - started:.1f} s")
    with hosts.all_or_none("write to the workdir"):
      write_description(workdir, settings.config, plan.data_description)
    checkpoints = Checkpoints(folder, keep=keep, writable=True, say=display.say)
    stack.enter_context(checkpoints)
    stack.enter_context(hosts.lost_peers_explained())
    state, progress = first_state(plan, checkpoints, display.say)
    writer = MetricsWriter(
      workdir,
      display,
      after_step=progress.step,
      saved_checksum=progress.lines,
      tensorboard=options.tensorboard,
    )
    stack.enter_context(writer)
    state, progress = _train_steps(
      options, program, state, progress, checkpoints, display, writer, stop
    )
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
  return Run(settings, plan.system, plan.data, variables, progress.step, is_latest=True)


def _train_steps(
  options: TrainOptions,
  program: Program,
  state: TrainState,
  progress: Progress,
  checkpoints: Checkpoints,
  display: Display,
  writer: MetricsWriter,
  stop: StopRequest,
) -> tuple[TrainState, Progress]:
  """Trains until the last step or a request to stop; the result's checkpoint is being written."""
  step, seeds = progress.step, options.all_seeds
  window = Window(progress.window)  # of the next line of metrics
  saved = step if checkpoints.steps() else 0  # step of the last checkpoint; 0 for none
  began = time.perf_counter()
  stopping = _is_stopping(stop)
  while step < options.num_steps and not stopping:
    started = time.perf_counter()
    state, rows = program.run(state, step)
    seconds = time.perf_counter() - started
    check_finite(rows, step, seeds, saved=saved)
    step += len(rows["total"])
    last = step == options.num_steps
    window.add(rows, seconds)
    steps_per_second = window.count / window.seconds
    display.advance(step, steps_per_second)
    if last or _due(step, options.log_every):
      timing = {"steps_per_second": steps_per_second, "seconds": window.seconds}
      timing["wall_seconds"] = time.perf_counter() - began
      means = mean_over_seeds(window.means(), seeds)
      writer.write({"split": "train", "step": step, **means, "timing": timing})
      window = Window()
    selection_loss = None  # the held-out loss that ranks the checkpoint
    save = last or _due(step, options.checkpoint_every)
    if save or _due(step, options.eval_every):
      started = time.perf_counter()
      results = program.evaluate(state.params)
      check_finite(_heldout_rows(results), step - 1, seeds, saved=saved)
      timing = {"seconds": time.perf_counter() - started}
      means = mean_over_seeds(results, seeds)
      writer.write({"split": program.held_out, "step": step, **means, "timing": timing})
      selection_loss = means["selection_loss"]
    progress = Progress(step, window.to_json(), selection_loss, writer.checksum)
    stopping = _is_stopping(stop)
    if save or stopping:
      checkpoints.save(state, progress)
      saved = step
  return state, progress


def _heldout_rows(results: dict[str, Any]) -> dict[str, np.ndarray]:
  """Held-out results as metrics of one step, `{name: [1] or [1, seeds]}`."""
  flat: dict[str, Any] = flatten_dict(results, sep="/")
  return {
    f"held-out {name.removeprefix('terms/')}": np.reshape(value, (1, -1))
    for name, value in flat.items()
  }


def _is_stopping(stop: StopRequest) -> bool:
  """Whether any process was asked to stop; all processes then stop after the same step."""
  return hosts.largest(stop.signal_number or 0) > 0


def _due(step: int, every: int) -> bool:
  return every > 0 and step % every == 0
