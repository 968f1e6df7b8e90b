"""Stored parameters of a run or of an exported folder, and runs that start from them.

An exported folder, which experiments/export.py writes, has what evaluation needs of one seed:

<folder>/config.json    the run's resolved config
<folder>/params.npz     parameters by path, float16 or float32
<folder>/data.json      what the data set is that it was trained on
<folder>/source.json    step, seed and the run's figures
<folder>/clusters.json  clusters of the training images, named by their labels, of a model without
                        labels of its own; see `evaluation.clusters`
"""

import dataclasses
import itertools
import math
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh

from scae_jax.config import SHIPPED, Settings
from scae_jax.data.cache import read_arrays
from scae_jax.errors import RunError, explained
from scae_jax.files import given_path, read_json
from scae_jax.models.system import Spec, System
from scae_jax.sections import TrainOptions
from scae_jax.training.hosts import make_mesh
from scae_jax.training.optimizer import make_optimizer
from scae_jax.training.state import (
  abstract_state,
  init_params,
  placed,
  state_shapes,
  variables_by_seed,
)
from scae_jax.training.workdir import (
  Which,
  check_readable,
  checkpoint_directory,
  require_checkpoints,
  saved_settings,
)

PRETRAINED = SHIPPED / "pretrained"
FILE = "params.npz"


def pretrained_names() -> list[str]:
  """Names of the folders in `PRETRAINED`."""
  return sorted(path.parent.name for path in PRETRAINED.glob(f"*/{FILE}"))


def named_folders(workdir: str, name: str) -> tuple[pathlib.Path, pathlib.Path]:
  """Folders of a run, or of the named pretrained parameters, and of its results; or `RunError`.

  Results of pretrained parameters go to `<workdir>/pretrained-<name>`, beside those of a run there,
  and without a workdir below `runs`.
  """
  if not workdir and not name:
    raise RunError("name a run by --workdir=FOLDER, or parameters by --pretrained=NAME.")
  if not name:
    return given_path(workdir), given_path(workdir)
  known = pretrained_names()
  if name not in known:  # so that a name is never a path to elsewhere
    raise RunError(f"there are no parameters {name!r} in {PRETRAINED}; it has {known}.")
  results = given_path(workdir or "runs") / f"pretrained-{name}"
  if (results / "config.json").exists():
    raise RunError(
      f"{results} holds a run of its own, whose report this one would replace. Name another folder"
      " by --workdir, beside --pretrained."
    )
  return PRETRAINED / name, results


def is_exported(folder: pathlib.Path) -> bool:
  """Whether a folder has exported parameters, and no checkpoints."""
  return (folder / FILE).is_file()


def restore(
  folder: pathlib.Path, which: Which, settings: Settings, system: System, spec: Spec
) -> tuple[dict[int, dict[str, Any]], int, bool]:
  """Variables by seed, their step, and whether it is the latest; see `build.Run`.

  Raises `RunError` if there is no such step, or it cannot be read or does not fit the system.
  """
  if is_exported(folder):
    check_step(folder, which)
    step, seed, arrays = read_stored(folder)
    return {seed: {"params": _fitted(folder, arrays, system, spec)}}, step, True
  # Here, because orbax takes a second to import.
  from scae_jax.training.checkpoint import Checkpoints

  template = abstract_state(settings, system, spec, make_mesh())
  with Checkpoints(require_checkpoints(folder), keep=1, writable=False) as checkpoints:
    state, progress = checkpoints.restore(template, which)
    is_latest = which == "latest" or progress.step == checkpoints.steps()[-1]
  return variables_by_seed(state, settings.train.all_seeds), progress.step, is_latest


def check_step(folder: pathlib.Path, which: Which) -> None:
  """Raises `RunError`, as `restore` does, if a folder has no such step; reads no parameters."""
  if not is_exported(folder):
    from scae_jax.training.checkpoint import Checkpoints

    directory = require_checkpoints(folder)
    with Checkpoints(directory, keep=1, writable=False, say=lambda _: None) as checkpoints:
      checkpoints.check(which)
    return
  step, _ = _step_and_seed(folder)
  if str(which) not in ("latest", str(step)):
    raise RunError(f"{folder} has step {step} alone; leave out --step={which}.")


def read_stored(folder: pathlib.Path) -> tuple[int, int, dict[str, np.ndarray]]:
  """Step, seed and parameters by path, as they were stored; `RunError` if they are damaged."""
  step, seed = _step_and_seed(folder)
  try:
    return step, seed, read_arrays(folder / FILE)
  except (OSError, ValueError) as error:
    raise RunError(f"{folder} cannot be read: {error}. Fetch it anew.") from error


def _step_and_seed(folder: pathlib.Path) -> tuple[int, int]:
  try:
    source = read_json(folder / "source.json", "step", "seed")
  except ValueError as error:
    raise RunError(f"{folder} cannot be read: {error}. Fetch it anew.") from error
  step, seed = source["step"], source["seed"]
  if type(step) is not int or type(seed) is not int:
    raise RunError(f"{folder / 'source.json'} must have whole numbers as step and seed.")
  return step, seed


def _fitted(folder: pathlib.Path, arrays: dict[str, np.ndarray], system: System, spec: Spec) -> Any:
  """Parameters of the module from those by path; `RunError` if they do not fit it."""
  key = jax.random.key(0)
  flat: dict[str, Any] = flatten_dict(init_params.eval_shape(system, spec, key, key), sep="/")
  for name, leaf in flat.items():
    found = arrays.get(name, np.zeros(0))
    if found.shape != leaf.shape:
      raise RunError(
        f"{folder}: parameter {name} must have shape {leaf.shape}; it has {found.shape}. Config"
        " and parameters are of different versions."
      )
    flat[name] = jnp.asarray(found, leaf.dtype)
  if unknown := sorted(set(arrays) - set(flat)):
    raise RunError(f"{folder} has parameters that the model does not: {unknown}.")
  return unflatten_dict(flat, sep="/")


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
    from scae_jax.training.checkpoint import Checkpoints

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
    from scae_jax.training.checkpoint import Checkpoints

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
