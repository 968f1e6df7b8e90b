"""Stored parameters of a run or of an exported folder, and runs that start from them.

experiments/export.py writes an exported folder: everything that evaluation needs, for one seed.

<folder>/config.json    the run's resolved config
<folder>/params.npz     parameters by path, float16 or float32
<folder>/data.json      description of the data set that it was trained on
<folder>/source.json    step, seed and the run's results
<folder>/clusters.json  clusters of the training images, each with a label, for models trained
                        without labels; see `evaluation.clusters`
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
  """The folder of a run or of the named pretrained parameters, and the folder of its results.

  Results of pretrained parameters go to `<workdir>/pretrained-<name>`, or `runs/pretrained-<name>`
  without a workdir. Raises `RunError` if both names are empty, the name is unknown, or the folder
  of results holds a run.
  """
  if not workdir and not name:
    raise RunError("name a run by --workdir=FOLDER, or parameters by --pretrained=NAME.")
  if not name:
    return given_path(workdir), given_path(workdir)
  names = pretrained_names()
  if name not in names:  # a name must not be a path to another place
    raise RunError(f"there are no parameters {name!r} in {PRETRAINED}; it has {names}.")
  results = given_path(workdir or "runs") / f"pretrained-{name}"
  if (results / "config.json").exists():
    raise RunError(
      f"{results} holds a run, whose report would be overwritten. Name another folder by --workdir,"
      " in addition to --pretrained."
    )
  return PRETRAINED / name, results


def is_exported(folder: pathlib.Path) -> bool:
  """Whether a folder has exported parameters instead of checkpoints."""
  return (folder / FILE).is_file()


def restore(
  folder: pathlib.Path, which: Which, settings: Settings, system: System, spec: Spec
) -> tuple[dict[int, dict[str, Any]], int, bool]:
  """Variables by seed, their step, and whether it is the latest one; see `run.Run`.

  Raises `RunError` if there is no such step, it cannot be read or it does not fit the system.
  """
  if is_exported(folder):
    check_step(folder, which)
    step, seed, arrays = read_stored(folder)
    return {seed: {"params": _fitted(folder, arrays, system, spec)}}, step, True
  # Imported here: orbax takes a second, and exported folders do not need it.
  from scae_jax.training.checkpoint import Checkpoints

  template = abstract_state(settings, system, spec, make_mesh())
  with Checkpoints(require_checkpoints(folder), keep=1, writable=False) as checkpoints:
    state, progress = checkpoints.restore(template, which)
    is_latest = which == "latest" or progress.step == checkpoints.steps()[-1]
  return variables_by_seed(state, settings.train.all_seeds), progress.step, is_latest


def check_step(folder: pathlib.Path, which: Which) -> None:
  """Raises `RunError`, as `restore`, if a folder has no such step; reads no parameters."""
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
  """Step, seed and stored parameters by path; `RunError` if the files are damaged."""
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
  """The module's parameter tree from arrays by path; `RunError` if they do not fit it."""
  key = jax.random.key(0)
  flat: dict[str, Any] = flatten_dict(init_params.eval_shape(system, spec, key, key), sep="/")
  for name, leaf in flat.items():
    array = arrays.get(name, np.zeros(0))
    if array.shape != leaf.shape:
      raise RunError(
        f"{folder}: parameter {name} must have shape {leaf.shape}; it has {array.shape}. Config"
        " and parameters are of different versions."
      )
    flat[name] = jnp.asarray(array, leaf.dtype)
  if unknown := sorted(set(arrays) - set(flat)):
    raise RunError(f"{folder} has parameters that the model does not: {unknown}.")
  return unflatten_dict(flat, sep="/")


MAX_NAMES = 5  # that a message lists
RESIZABLE = "position_bias"  # parameters [height, width, channels] of this name may be resized


@dataclasses.dataclass(frozen=True)
class Start:
  """Stored parameters that a run starts from."""

  params: Any  # all parameters of the model or some, on the host; several seeds: one more axis
  summary: str  # one line: how many come from where, and which are new


def find_start(
  settings: Settings, system: System, data: Spec, mesh: Mesh, workdir: pathlib.Path
) -> Start | None:
  """Reads the parameters that `train.start_from` names; their model and data may be others.

  It names a run, whose latest checkpoint is read, or a folder of exported parameters. One seed is
  broadcast to all seeds of this run; otherwise the numbers of seeds must match. Returns None if the
  key is empty, or if `workdir` has a checkpoint to resume from. Raises `RunError` if there is no
  such run or checkpoint, or its parameters do not fit.
  """
  source, directory = settings.train.start_from, checkpoint_directory(workdir)
  if not source:
    return None
  if directory.is_dir():
    from scae_jax.training.checkpoint import Checkpoints

    with Checkpoints(directory, keep=1, writable=False, say=lambda _: None) as checkpoints:
      if checkpoints.steps():
        return None
  model_params = abstract_state(settings, system, data, mesh).params
  try:
    with explained():
      folder = given_path(source)
    return _read(folder, settings.train, model_params, mesh)
  except RunError as error:
    raise RunError(f"config.train.start_from: {error}") from error


def _read(source: pathlib.Path, options: TrainOptions, model_params: Any, mesh: Mesh) -> Start:
  """The parameters of a folder, for a model of these parameters (their shapes alone are used)."""
  check_readable(source)
  num_seeds, is_pretrained = options.seeds, is_exported(source)
  source_seeds = 1 if is_pretrained else saved_settings(source).train.seeds
  if source_seeds not in (1, num_seeds):
    raise RunError(
      f"{source} has {source_seeds} seeds and this run {num_seeds}. Start from a run of one seed,"
      f" which all share, or set config.train.seeds to {source_seeds}."
    )
  model_shapes = _shapes(model_params, num_seeds > 1)

  def select_modules(source_params: Any) -> dict[str, Any]:
    """The parameters of `train.start_modules`; `RunError` if some are missing or do not fit."""
    modules = options.start_modules or tuple(source_params)
    if absent := [name for name in modules if name not in source_params]:
      raise RunError(
        f"{source} has no module {', '.join(absent)}, which config.train.start_modules names; it"
        f" has {', '.join(sorted(source_params))}."
      )
    selected = {name: source_params[name] for name in modules}
    _check_fit(source, model_shapes, _shapes(selected, source_seeds > 1))
    return selected

  unfinished = ""
  if is_pretrained:
    step, _, arrays = read_stored(source)
    arrays = {path: array.astype(np.float32) for path, array in arrays.items()}
    params = select_modules(unflatten_dict(arrays, sep="/"))
  else:
    from scae_jax.training.checkpoint import Checkpoints

    with Checkpoints(require_checkpoints(source), keep=1, writable=False) as checkpoints:
      source_params = checkpoints.describe_params()
      select_modules(source_params)  # checks the shapes before the arrays are read
      optimizer = make_optimizer(saved_settings(source).optimizer)
      template = placed(state_shapes(source_params, optimizer, num_seeds=source_seeds), mesh)
      state, progress = checkpoints.restore(template)
    params, step = jax.device_get(select_modules(state.params)), progress.step
    length = saved_settings(source).train.num_steps
    if step < length:
      unfinished = f", which has {length} and is not finished"
  summary = _summary(model_shapes, _shapes(params, source_seeds > 1))
  params = _resized(params, model_shapes)
  if source_seeds < num_seeds:
    params = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (num_seeds, *leaf.shape)), params)
  return Start(params, f"starting from step {step} of {source}{unfinished}: {summary}")


Shapes = dict[str, tuple[int, ...]]  # of parameters, by path


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
  return f"{_count(source_shapes)} parameters taken, {added}{changed}"


def _prefixes(name: str) -> list[str]:
  """`a/b/c` has the prefixes a, a/b and a/b/c."""
  return list(itertools.accumulate(name.split("/"), "{}/{}".format))


def _count(shapes: Shapes) -> str:
  return f"{sum(math.prod(shape) for shape in shapes.values()):,}"


def _listed(items: list[str], separator: str) -> str:
  more = f"{separator}and {len(items) - MAX_NAMES} more" if len(items) > MAX_NAMES else ""
  return separator.join(items[:MAX_NAMES]) + more
