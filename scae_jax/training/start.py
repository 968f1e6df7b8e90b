"""The parameters that a run starts from, where its config names another run.

This run must have all parameters of the other one, or of the modules that it names, with the same
shapes; its other parameters are newly initialised. A bias of each place in a feature map is resized
to another canvas. The optimiser and the count of steps are new.
"""

import dataclasses
import itertools
import math
import pathlib
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh

from scae_jax.files import given_path
from scae_jax.models.system import Spec, System
from scae_jax.training.checkpoints import Checkpoints
from scae_jax.training.config import Settings
from scae_jax.training.errors import RunError, explained
from scae_jax.training.optimizers import make_optimizer
from scae_jax.training.options import TrainOptions
from scae_jax.training.parameters import is_exported, read_stored
from scae_jax.training.state import abstract_state, placed, state_shapes
from scae_jax.training.workdir import (
  check_readable,
  checkpoint_directory,
  require_checkpoints,
  saved_settings,
)

MOST_NAMES = 5  # in a message
PLACES = "position_bias"  # parameters [height, width, channels] of this name may be resized


@dataclasses.dataclass(frozen=True)
class Start:
  """What a run starts from."""

  params: Any  # all of the model's or some, on the host; of several seeds with an axis in front
  summary: str  # one line: how much was taken from where, and what is new


def find_start(
  settings: Settings, system: System, data: Spec, mesh: Mesh, workdir: pathlib.Path
) -> Start | None:
  """Reads the latest checkpoint of the run in `train.start_from`, or the parameters of a folder
  of `pretrained/`, whatever their model and data.

  A run of one seed starts all seeds of this one; one of several must have as many. None where no
  run is named, or this one, in `workdir`, has a checkpoint to resume from. Raises `RunError` if
  there is no such run or checkpoint, or it does not fit this one.
  """
  source, directory = settings.train.start_from, checkpoint_directory(workdir)
  if not source:
    return None
  if directory.is_dir():
    with Checkpoints(directory, keep=1, writable=False, say=lambda _: None) as checkpoints:
      if checkpoints.steps():
        return None
  own = abstract_state(settings, system, data, mesh).params
  try:
    with explained():
      folder = given_path(source)
    return _read(folder, settings.train, own, mesh)
  except RunError as error:
    raise RunError(f"config.train.start_from: {error}") from error


def _read(source: pathlib.Path, options: TrainOptions, own: Any, mesh: Mesh) -> Start:
  check_readable(source)
  num_seeds, is_pretrained = options.seeds, is_exported(source)
  found = 1 if is_pretrained else saved_settings(source).train.seeds
  if found not in (1, num_seeds):
    raise RunError(
      f"{source} has {found} seeds and this run {num_seeds}. Start from a run of one seed, which"
      f" all share, or set config.train.seeds to {found}."
    )
  own_shapes = _shapes(own, num_seeds > 1)

  def taken(theirs: Any) -> dict[str, Any]:
    """The modules to take; `RunError` if they are not there or do not fit."""
    modules = options.start_modules or tuple(theirs)
    if absent := [name for name in modules if name not in theirs]:
      raise RunError(
        f"{source} has no module {', '.join(absent)}, which config.train.start_modules names; it"
        f" has {', '.join(sorted(theirs))}."
      )
    chosen = {name: theirs[name] for name in modules}
    _check_fit(source, own_shapes, _shapes(chosen, found > 1))
    return chosen

  unfinished = ""
  if is_pretrained:
    step, _, arrays = read_stored(source)
    arrays = {path: array.astype(np.float32) for path, array in arrays.items()}
    params = taken(unflatten_dict(arrays, sep="/"))
  else:
    with Checkpoints(require_checkpoints(source), keep=1, writable=False) as checkpoints:
      theirs = checkpoints.describe_params()
      taken(theirs)  # before they are read
      optimizer = make_optimizer(saved_settings(source).optimizer)
      template = placed(state_shapes(theirs, optimizer, num_seeds=found), mesh)
      state, progress = checkpoints.restore(template)
    params, step = jax.device_get(taken(state.params)), progress.step
    length = saved_settings(source).train.num_steps
    if step < length:
      unfinished = f", which has {length} and is not finished"
  summary = _summary(own_shapes, _shapes(params, found > 1))
  params = _resized(params, own_shapes)
  if found < num_seeds:
    params = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (num_seeds, *leaf.shape)), params)
  return Start(params, f"starting from step {step} of {source}{unfinished}: {summary}")


Shapes = dict[str, tuple[int, ...]]  # of parameters, by path


def _shapes(params: Any, has_seeds: bool) -> Shapes:
  """Shapes without the axis over seeds."""
  flat: dict[str, Any] = flatten_dict(params, sep="/")
  return {name: leaf.shape[int(has_seeds) :] for name, leaf in flat.items()}


def _check_fit(source: pathlib.Path, own: Shapes, theirs: Shapes) -> None:
  lacking = [name for name in theirs if name not in own]
  others = [
    f"{name} {shape} there, {own[name]} here"
    for name, shape in theirs.items()
    if own.get(name, shape) != shape and not (name.endswith(PLACES) and own[name][2:] == shape[2:])
  ]
  problems = []
  if lacking:
    problems.append(f"has parameters that this model lacks: {_some(lacking, ', ')}")
  if others:
    problems.append(f"has parameters of other shapes: {_some(others, '; ')}")
  if problems:
    raise RunError(
      f"{source} {'; and it '.join(problems)}. Give this run the config.model of that one but for"
      " what is added, or start from another run."
    )


def _resized(params: Any, own: Shapes) -> Any:
  """With biases of places interpolated to this run's shapes."""
  flat: dict[str, Any] = flatten_dict(params, sep="/")
  for name, leaf in flat.items():
    shape = (*leaf.shape[: leaf.ndim - len(own[name])], *own[name])
    if leaf.shape != shape:
      flat[name] = np.asarray(jax.image.resize(leaf, shape, "linear"))
  return unflatten_dict(flat, sep="/")


def _summary(own: Shapes, theirs: Shapes) -> str:
  """Numbers of parameters, the largest modules (or parameters) that are new as a whole, and what is
  resized."""
  new = {name: shape for name, shape in own.items() if name not in theirs}
  taken = {prefix for name in theirs for prefix in _prefixes(name)}
  wholes = {next(p for p in _prefixes(name) if p not in taken): None for name in new}
  added = f"{_count(new)} are new ({_some(list(wholes), ', ')})" if new else "none is new"
  resized = [name for name, shape in theirs.items() if own[name] != shape]
  changed = f"; {_some(resized, ', ')} resized" if resized else ""
  return f"{_count(theirs)} parameters taken, {added}{changed}"


def _prefixes(name: str) -> list[str]:
  """`a/b/c` has the prefixes a, a/b and a/b/c."""
  return list(itertools.accumulate(name.split("/"), "{}/{}".format))


def _count(shapes: Shapes) -> str:
  return f"{sum(math.prod(shape) for shape in shapes.values()):,}"


def _some(items: list[str], separator: str) -> str:
  more = f"{separator}and {len(items) - MOST_NAMES} more" if len(items) > MOST_NAMES else ""
  return separator.join(items[:MOST_NAMES]) + more
