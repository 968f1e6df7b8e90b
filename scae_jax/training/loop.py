"""The training loop: from a config and a workdir to a trained run.

The order is fixed, after every dispatch: check that its steps are finite, count them, line of
training metrics, held-out loss, checkpoint. The lines of a step are written before its checkpoint,
so that a run resumed from it misses none.
"""

import contextlib
import dataclasses
import json
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from scae_jax.data.dataset import Dataset
from scae_jax.models.system import Spec, System
from scae_jax.training.build import Run, build, variables_by_seed
from scae_jax.training.checkpoints import Checkpoints, Progress
from scae_jax.training.config import Settings, dump_config, read_settings
from scae_jax.training.errors import Interrupted, WriteError
from scae_jax.training.interrupt import StopRequest
from scae_jax.training.mesh import check_batch_size, make_mesh, put
from scae_jax.training.metrics import (
  JsonLines,
  Sink,
  Speed,
  Window,
  check_tensorboard,
  flatten,
  of_seeds,
  open_sinks,
)
from scae_jax.training.optimizers import check_length, make_optimizer
from scae_jax.training.options import TrainOptions
from scae_jax.training.processes import (
  all_or_none,
  check_agreement,
  is_first,
  largest,
  lost_peers_explained,
)
from scae_jax.training.program import Program, check_finite
from scae_jax.training.progress import Display
from scae_jax.training.start import Start, find_start
from scae_jax.training.state import TrainState, abstract_state, make_state
from scae_jax.training.workdir import (
  check_same_data,
  check_same_run,
  checkpoint_directory,
  describe_data,
  open_for_writing,
)


@dataclasses.dataclass(frozen=True)
class _Write:
  """Takes a line of metrics to the display and, in process 0, to the files."""

  workdir: pathlib.Path
  display: Display
  sinks: Sequence[Sink]

  def __call__(self, line: Mapping[str, Any]) -> None:
    self.display.line(line)
    with _writing_to(self.workdir):
      for sink in self.sinks:
        sink.write(line)

  @property
  def checksum(self) -> int | None:
    """Of all lines so far, where this process writes them."""
    return next((sink.checksum for sink in self.sinks if isinstance(sink, JsonLines)), None)


def train(config: ConfigDict, workdir: str | pathlib.Path, dataset: Dataset | None = None) -> Run:
  """Trains to the config's last step, from where the workdir stands.

  Everything is checked before anything is written. Stopped and started again, a run gives the same
  parameters and the same metrics, bit for bit, as one that was never stopped. (A GPU takes some
  sums in no fixed order unless XLA_FLAGS has --xla_gpu_deterministic_ops=true.)

  Args:
    config: see `config.read_settings`.
    workdir: folder of the run, made if it is not there.
    dataset: in memory, of the name that `config.data.name` says; None to load it by this name.

  Returns:
    The run at its last step.

  Raises:
    RunError: the config, the data, the model or the workdir do not allow the run.
    NonFiniteError: a loss term or gradient is not finite; the checkpoints before it stand.
    Interrupted: by Ctrl-C or SIGTERM; the state is saved.
  """
  workdir = pathlib.Path(workdir)
  settings = read_settings(config)
  check_same_run(workdir, config)
  check_length(settings.optimizer, settings.train)
  mesh = make_mesh()
  check_batch_size(settings.train.batch_size, mesh)
  if settings.train.tensorboard:
    check_tensorboard()
  with all_or_none("load its data"):
    system, data, feed = build(settings, dataset)
  described = describe_data(data)
  check_same_data(workdir, described)
  check_agreement("config", dump_config(config))
  check_agreement("data set", json.dumps(described))
  with all_or_none("read the run to start from"):
    start = find_start(settings, system, feed.spec, mesh, workdir)
  with contextlib.ExitStack() as stack:
    with all_or_none("open the workdir"):
      stack.enter_context(open_for_writing(workdir, config, described))
    display = stack.enter_context(
      Display(num_steps=settings.train.num_steps, silent=not is_first())
    )
    checkpoints = stack.enter_context(
      Checkpoints(
        checkpoint_directory(workdir),
        keep=settings.train.keep_checkpoints,
        writable=True,
        say=display.say,
      )
    )
    stop = stack.enter_context(StopRequest())
    stack.enter_context(lost_peers_explained())
    state, progress = _start(settings, system, feed.spec, mesh, start, checkpoints, display)
    write = stack.enter_context(_writer(settings.train, workdir, display, progress))
    if progress.step < settings.train.num_steps:
      program = Program(settings, system, feed, mesh)
      state, progress = _run(
        program, settings.train, state, progress, checkpoints, display, stop, write
      )
    checkpoints.wait()
    if number := largest(stop.signal_number or 0):
      raise Interrupted(_stopped_at(progress.step, settings.train.num_steps, workdir), number)
  variables = variables_by_seed(state, settings.train)
  return Run(config, system, data, variables, progress.step, is_latest=True)


def _stopped_at(step: int, num_steps: int, workdir: pathlib.Path) -> str:
  if step == 0:
    return (
      f"no step of {num_steps} was trained, so nothing but the config is in {workdir};"
      " the same command starts from the beginning."
    )
  return f"step {step} of {num_steps} is saved in {workdir}; the same command resumes from there."


def _start(
  settings: Settings,
  system: System,
  data: Spec,
  mesh: Mesh,
  start: Start | None,
  checkpoints: Checkpoints,
  display: Display,
) -> tuple[TrainState, Progress]:
  """The state of the latest checkpoint that can be read, or a new one, with what it starts from."""
  optimizer, seeds = make_optimizer(settings.optimizer), settings.train.all_seeds
  if checkpoints.steps():
    template = abstract_state(system, data, optimizer, mesh, seeds=seeds)
    state, progress = checkpoints.restore(template)
    checkpoints.set_aside_after(progress.step)
    display.say(f"resuming at step {progress.step}")
  else:
    taken = None if start is None else put(start.params, mesh)
    state = make_state(system, data, optimizer, mesh, seeds=seeds, start=taken)
    if start is not None:
      display.say(start.summary)
    progress = Progress(step=0, window=Window().to_json(), selection_loss=None)
  num_parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params)) // len(seeds)
  at_once = "" if len(seeds) == 1 else f", seeds {seeds[0]} to {seeds[-1]} at once"
  display.say(f"{settings.system}: {num_parameters:,} parameters on {mesh.size} device(s){at_once}")
  return state, progress


def _run(
  program: Program,
  options: TrainOptions,
  state: TrainState,
  progress: Progress,
  checkpoints: Checkpoints,
  display: Display,
  stop: StopRequest,
  write: _Write,
) -> tuple[TrainState, Progress]:
  """Trains until the last step or a request to stop; what it returns is being saved."""
  step, window, speed = progress.step, Window(progress.window), Speed()
  saved = step  # 0 if nothing is
  started = time.perf_counter()
  program.compile(state)
  display.say(f"compiled in {time.perf_counter() - started:.1f} s")
  began = time.perf_counter()
  stopping = largest(stop.signal_number or 0) > 0  # at the same step in all processes
  while step < options.num_steps and not stopping:
    started = time.perf_counter()
    state, rows = program.run(state, step)
    num_done = len(rows["total"])
    speed.add(num_done, time.perf_counter() - started)
    check_finite(rows, step, options.all_seeds, saved=saved)
    step += num_done
    last = step == options.num_steps
    window.add(rows)
    display.advance(step, speed.steps_per_second)
    if last or _due(step, options.log_every):
      timing = speed.to_json() | {"wall_seconds": time.perf_counter() - began}
      means = of_seeds(window.means(), options.all_seeds)
      write({"split": "train", "step": step, **means, "timing": timing})
      window, speed = Window(), Speed()
    selection_loss = None
    save = last or _due(step, options.checkpoint_every)
    if save or _due(step, options.eval_every):
      selection_loss = _evaluate(program, options.all_seeds, state, step, saved, write)
    progress = Progress(step, window.to_json(), selection_loss, write.checksum)
    stopping = largest(stop.signal_number or 0) > 0
    if save or stopping:
      checkpoints.save(state, progress)
      saved = step
  return state, progress


def _evaluate(
  program: Program, seeds: Sequence[int], state: TrainState, step: int, saved: int, write: _Write
) -> float:
  """Writes the line of held-out results; returns the loss that ranks the checkpoint."""
  started = time.perf_counter()
  results = program.evaluate(state.params)
  rows = {
    f"held-out {name.removeprefix('terms/')}": np.reshape(value, (1, -1))
    for name, value in flatten(results).items()
  }
  check_finite(rows, step - 1, seeds, saved=saved)
  seconds = time.perf_counter() - started
  means = of_seeds(results, seeds)
  write({"split": program.held_out, "step": step, **means, "timing": {"seconds": seconds}})
  return means["selection_loss"]


@contextlib.contextmanager
def _writer(
  options: TrainOptions, workdir: pathlib.Path, display: Display, progress: Progress
) -> Iterator[_Write]:
  """Where the lines of metrics go on; says so if those before are not what they were."""
  sinks = []
  if is_first():
    with _writing_to(workdir):
      sinks = open_sinks(workdir, after_step=progress.step, tensorboard=options.tensorboard)
  write = _Write(workdir, display, sinks)
  if is_first() and progress.lines not in (None, write.checksum):
    display.say(
      f"{workdir / 'metrics.jsonl'} has not the lines that were written up to step"
      f" {progress.step}: some are changed or missing. They stay as they are."
    )
  try:
    yield write
  finally:
    for sink in sinks:
      sink.close()


@contextlib.contextmanager
def _writing_to(workdir: pathlib.Path) -> Iterator[None]:
  try:
    yield
  except OSError as error:
    raise WriteError(
      f"the metrics cannot be written to {workdir}: {error}. The checkpoints stand: make room"
      " there, and the same command goes on from the last one."
    ) from error


def _due(step: int, every: int) -> bool:
  return every > 0 and step % every == 0
