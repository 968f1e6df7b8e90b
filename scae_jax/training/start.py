"""How a run begins: what it needs is loaded and checked, and its first state made.

That is the state of its latest checkpoint, or new parameters, some of which may come from another
run or from exported parameters (`train.start_from`).
"""

import dataclasses
import itertools
import json
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh

from scae_jax.config import Settings
from scae_jax.data.constellations import Scenes
from scae_jax.data.dataset import Dataset
from scae_jax.data.feed import Feed
from scae_jax.errors import RunError, as_run_errors
from scae_jax.files import given_path
from scae_jax.models.system import System
from scae_jax.sections import TrainOptions
from scae_jax.training.build import build
from scae_jax.training.checkpoint import Checkpoints, Progress
from scae_jax.training.hosts import all_or_none, check_agreement, put
from scae_jax.training.log import Window, import_tensorboard
from scae_jax.training.optimizer import make_optimizer
from scae_jax.training.run import is_exported, read_stored
from scae_jax.training.state import TrainState, abstract_state, make_state, placed, state_shapes
from scae_jax.training.workdir import (
  check_readable,
  check_same_data,
  check_same_run,
  checkpoint_directory,
  describe_data,
  require_checkpoints,
  saved_settings,
)

MAX_NAMES = 5  # that a message lists
RESIZABLE = "position_bias"  # parameters [height, width, channels] of this name may be resized


@dataclasses.dataclass(frozen=True)
class Start:
  """Stored parameters that a run starts from."""

  params: Any  # all parameters of the model or some, on the host; several seeds: one more axis
  summary: str  # one line: how many come from where, and which are new


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
  """A run that can be trained: everything is loaded and checked, nothing is written yet."""

  settings: Settings
  workdir: pathlib.Path
  mesh: Mesh
  system: System
  data: Dataset | Scenes
  feed: Feed
  data_description: dict[str, Any]  # of `describe_data`
  state: TrainState  # its shapes, types and placement
  start: Start | None  # parameters of another run


def plan_run(
  settings: Settings, workdir: pathlib.Path, mesh: Mesh, dataset: Dataset | None = None
) -> Plan:
  """Loads and builds everything that training takes.

  Raises `RunError` as `build` and `find_start` do, if the workdir has a run that this one cannot
  resume, if a package is missing, or if several hosts have different configs or data.
  """
  check_same_run(workdir, settings.config)
  if settings.train.tensorboard:
    import_tensorboard()  # fails now rather than after the data is loaded
  with all_or_none("load its data"):
    system, data, feed = build(settings, dataset)
  description = describe_data(data)
  check_same_data(workdir, description)
  check_agreement("config", json.dumps(settings.config.to_dict()))
  check_agreement("data set", json.dumps(description))
  state = abstract_state(settings, system, feed.spec, mesh)
  with all_or_none("read the run to start from"):
    start = find_start(settings, state.params, mesh, workdir)
  return Plan(settings, workdir, mesh, system, data, feed, description, state, start)


def first_state(
  plan: Plan, checkpoints: Checkpoints, say: Callable[[str], None]
) -> tuple[TrainState, Progress]:
  """The state that a run begins with, and its progress.

  It is that of the latest readable checkpoint, or a new one with the parameters of `plan.start`.
  `say` receives where it comes from.
  """
  settings = plan.settings
  if checkpoints.steps():
    state, progress = checkpoints.restore(plan.state)
    checkpoints.set_aside_after(progress.step)
    say(f"resuming at step {progress.step}")
  else:
    start_params = None if plan.start is None else put(plan.start.params, plan.mesh)
    state = make_state(settings, plan.system, plan.feed.spec, plan.mesh, start=start_params)
    if plan.start is not None:
      say(plan.start.summary)
    step = settings.train.start_step
    progress = Progress(step=step, window=Window().to_json(), selection_loss=None)
  seeds = settings.train.all_seeds
  num_parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params)) // len(seeds)
  at_once = "" if len(seeds) == 1 else f", seeds {seeds[0]} to {seeds[-1]} at once"
  say(f"{settings.system}: {num_parameters:,} parameters on {plan.mesh.size} device(s){at_once}")
  return state, progress


Shapes = dict[str, tuple[int, ...]]  # of parameters, by path


def find_start(
  settings: Settings, model_params: Any, mesh: Mesh, workdir: pathlib.Path
) -> Start | None:
  """Reads the parameters that `train.start_from` names; their model and data may be others.

  It names a run, whose latest checkpoint is read, or a folder of exported parameters. One seed is
  broadcast to all seeds of this run; otherwise the numbers of seeds must match. Returns None if the
  key is empty, or if `workdir` has a checkpoint to resume from. Raises `RunError` if there is no
  such run or checkpoint, or its parameters do not fit `model_params`, of which shapes suffice.
  """
  options = settings.train
  if not options.start_from or _has_checkpoint(workdir):
    return None
  try:
    with as_run_errors():
      source = given_path(options.start_from)
    step, source_seeds, stored, unfinished = _read_params(source, mesh)
    params = fitting_modules(options, model_params, source, source_seeds, stored)
  except RunError as error:
    raise RunError(f"config.train.start_from: {error}") from error
  shapes = _shapes(params, source_seeds > 1)
  model_shapes = _shapes(model_params, options.seeds > 1)
  params = _resized(params, model_shapes)
  if source_seeds < options.seeds:
    params = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (options.seeds, *leaf.shape)), params)
  summary = _summary(model_shapes, shapes)
  return Start(params, f"starting from step {step} of {source}{unfinished}: {summary}")


def fitting_modules(
  options: TrainOptions,
  model_params: Any,
  source: pathlib.Path,
  source_seeds: int,
  source_params: Mapping[str, Any],
) -> dict[str, Any]:
  """The parameters of `source_params` that a run starts from; of both, shapes suffice.

  Raises `RunError`, with the name of the source, if the numbers of seeds differ, a module of
  `train.start_modules` is missing, or the parameters do not fit the model.
  """
  if source_seeds not in (1, options.seeds):
    raise RunError(
      f"{source} has {source_seeds} seeds and this run {options.seeds}. Start from a run of one"
      f" seed, which all share, or set config.train.seeds to {source_seeds}."
    )
  modules = options.start_modules or tuple(source_params)
  if absent := [name for name in modules if name not in source_params]:
    raise RunError(
      f"{source} has no module {', '.join(absent)}, which config.train.start_modules names; it"
      f" has {', '.join(sorted(source_params))}."
    )
  params = {name: source_params[name] for name in modules}
  _check_fit(source, _shapes(model_params, options.seeds > 1), _shapes(params, source_seeds > 1))
  return params


def _has_checkpoint(workdir: pathlib.Path) -> bool:
  directory = checkpoint_directory(workdir)
  if not directory.is_dir():
    return False
  with Checkpoints(directory, keep=1, writable=False, say=lambda _: None) as checkpoints:
    return bool(checkpoints.steps())


def _read_params(source: pathlib.Path, mesh: Mesh) -> tuple[int, int, dict[str, Any], str]:
  """Step, number of seeds and float32 parameters of a folder, and a note if it is unfinished."""
  check_readable(source)
  if is_exported(source):
    step, _, arrays = read_stored(source)
    arrays = {path: array.astype(np.float32) for path, array in arrays.items()}
    return step, 1, unflatten_dict(arrays, sep="/"), ""
  settings = saved_settings(source)
  seeds, length = settings.train.seeds, settings.train.num_steps
  with Checkpoints(require_checkpoints(source), keep=1, writable=False) as checkpoints:
    shapes = state_shapes(
      checkpoints.describe_params(), make_optimizer(settings.optimizer), num_seeds=seeds
    )
    state, progress = checkpoints.restore(placed(shapes, mesh))
  unfinished = f", which has {length} and is not finished" if progress.step < length else ""
  return progress.step, seeds, jax.device_get(state.params), unfinished


def _shapes(params: Any, has_seeds: bool) -> Shapes:
  """Shapes without the axis over seeds."""
  flat: dict[str, Any] = flatten_dict(params, sep="/")
  return {name: leaf.shape[int(has_seeds) :] for name, leaf in flat.items()}


def _check_fit(source: pathlib.Path, model_shapes: Shapes, source_shapes: Shapes) -> None:
  """Raises `RunError` if the model lacks a stored parameter or has it in another shape."""
  unknown = [name for name in source_shapes if name not in model_shapes]
  mismatched = []
  for name, shape in source_shapes.items():
    expected = model_shapes.get(name, shape)
    can_resize = name.endswith(RESIZABLE) and expected[2:] == shape[2:]
    if expected != shape and not can_resize:
      mismatched.append(f"{name} {shape} there, {expected} here")
  problems = []
  if unknown:
    problems.append(f"has parameters that this model lacks: {_listed(unknown, ', ')}")
  if mismatched:
    problems.append(f"has parameters of other shapes: {_listed(mismatched, '; ')}")
  if problems:
    raise RunError(
      f"{source} {'; and it '.join(problems)}. Give this run the same config.model except for what"
      " is added, or start from another run."
    )


def _resized(params: Any, model_shapes: Shapes) -> Any:
  """The parameters, with position biases interpolated to the model's shapes."""
  flat: dict[str, Any] = flatten_dict(params, sep="/")
  for name, leaf in flat.items():
    model_shape = model_shapes[name]
    shape = (*leaf.shape[: leaf.ndim - len(model_shape)], *model_shape)
    if leaf.shape != shape:
      flat[name] = np.asarray(jax.image.resize(leaf, shape, "linear"))
  return unflatten_dict(flat, sep="/")


def _summary(model_shapes: Shapes, source_shapes: Shapes) -> str:
  """How many parameters are stored and how many are new, with the names of new and resized ones.

  A module of which no parameter is stored is named once, as a whole.
  """
  new = {name: shape for name, shape in model_shapes.items() if name not in source_shapes}
  stored_prefixes = {prefix for name in source_shapes for prefix in _prefixes(name)}
  # A dict, because it keeps the order.
  new_modules = {next(p for p in _prefixes(n) if p not in stored_prefixes): None for n in new}
  added = f"{_count(new)} are new ({_listed(list(new_modules), ', ')})" if new else "none is new"
  resized = [name for name, shape in source_shapes.items() if model_shapes[name] != shape]
  changed = f"; {_listed(resized, ', ')} resized" if resized else ""
  return f"{_count(source_shapes)} parameters loaded, {added}{changed}"


def _prefixes(name: str) -> list[str]:
  """`a/b/c` has the prefixes a, a/b and a/b/c."""
  return list(itertools.accumulate(name.split("/"), "{}/{}".format))


def _count(shapes: Shapes) -> str:
  return f"{sum(math.prod(shape) for shape in shapes.values()):,}"


def _listed(items: list[str], separator: str) -> str:
  more = f"{separator}and {len(items) - MAX_NAMES} more" if len(items) > MAX_NAMES else ""
  return separator.join(items[:MAX_NAMES]) + more
