"""Stored parameters: in the checkpoints of a run, or exported to a folder.

An exported folder, which experiments/export.py writes, has what evaluation needs of one seed:

<folder>/config.json    the run's resolved config
<folder>/params.npz     parameters by path, float16 or float32
<folder>/data.json      what the data set is that it was trained on
<folder>/source.json    step, seed and the run's figures
<folder>/clusters.json  clusters of the training images, named by their labels, of a model without
                        labels of its own; see `evaluation.clusters`
"""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from scae_jax.data.cache import read_arrays
from scae_jax.files import given_path, read_json
from scae_jax.models.system import Spec, System
from scae_jax.training.config import SHIPPED, Settings
from scae_jax.training.errors import RunError
from scae_jax.training.mesh import make_mesh
from scae_jax.training.state import abstract_state, variables_by_seed
from scae_jax.training.systems import init_params
from scae_jax.training.workdir import require_checkpoints

PRETRAINED = SHIPPED / "pretrained"
FILE = "params.npz"
Which = int | str  # a step, which may be in decimals, 'latest' or 'best' (lowest held-out loss)


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
  from scae_jax.training.checkpoints import Checkpoints

  template = abstract_state(settings, system, spec, make_mesh())
  with Checkpoints(require_checkpoints(folder), keep=1, writable=False) as checkpoints:
    state, progress = checkpoints.restore(template, which)
    is_latest = which == "latest" or progress.step == checkpoints.steps()[-1]
  return variables_by_seed(state, settings.train.all_seeds), progress.step, is_latest


def check_step(folder: pathlib.Path, which: Which) -> None:
  """Raises `RunError`, as `restore` does, if a folder has no such step; reads no parameters."""
  if not is_exported(folder):
    from scae_jax.training.checkpoints import Checkpoints

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
