"""A trained run and its parameters, from a workdir or from a folder of exported parameters.

experiments/export.py writes an exported folder: everything that evaluation needs, for one seed.

<folder>/config.json    the run's resolved config
<folder>/params.npz     parameters by path, float16 or float32
<folder>/data.json      description of the data set that it was trained on
<folder>/source.json    step, seed and the run's results
<folder>/clusters.json  clusters of the training images, each with a label, for models trained
                        without labels; see `evaluation.clusters`
"""

import contextlib
import dataclasses
import pathlib
import shlex
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import TypeCheckError
from ml_collections import ConfigDict

from scae_jax.config import SHIPPED, Settings, as_started, read_settings
from scae_jax.data.cache import read_arrays
from scae_jax.data.constellations import Scenes
from scae_jax.data.dataset import Dataset
from scae_jax.data.sources import is_dotted
from scae_jax.errors import ReportError, RunError, as_run_errors
from scae_jax.files import given_path, read_json
from scae_jax.interrupt import end, on_signal
from scae_jax.models.system import Spec, System
from scae_jax.precision import single_precision
from scae_jax.training.build import build
from scae_jax.training.hosts import make_mesh
from scae_jax.training.state import abstract_state, init_params, variables_by_seed
from scae_jax.training.workdir import (
  Which,
  check_same_data,
  describe_data,
  load_settings,
  require_checkpoints,
)
from scae_jax.waiting import waiting

PRETRAINED = SHIPPED / "pretrained"
FILE = "params.npz"


def pretrained_folders() -> dict[str, pathlib.Path]:
  """The folders of parameters in `PRETRAINED`, by name."""
  return {path.parent.name: path.parent for path in sorted(PRETRAINED.glob(f"*/{FILE}"))}


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
  folders = pretrained_folders()
  if name not in folders:  # a name must not be a path to another place
    raise RunError(f"there are no parameters {name!r} in {PRETRAINED}; it has {list(folders)}.")
  results = given_path(workdir or "runs") / f"pretrained-{name}"
  if (results / "config.json").exists():
    raise RunError(
      f"{results} holds a run, whose report would be overwritten. Name another folder by --workdir,"
      " in addition to --pretrained."
    )
  return folders[name], results


def is_exported(folder: pathlib.Path) -> bool:
  """Whether a folder has exported parameters instead of checkpoints."""
  return (folder / FILE).is_file()


def restore(
  folder: pathlib.Path, which: Which, settings: Settings, system: System, spec: Spec
) -> tuple[dict[int, dict[str, Any]], int, bool]:
  """Variables by seed, their step, and whether it is the latest one; see `Run`.

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


@dataclasses.dataclass(frozen=True)
class Run:
  """A trained run, with everything that evaluation needs."""

  settings: Settings
  system: System
  dataset: Dataset | Scenes  # the data set of its training, with the held-out splits
  variables: dict[int, dict[str, Any]]  # by seed, `{"params": ...}` for `system.module.apply`
  step: int
  is_latest: bool  # whether no later step of the run is saved

  @property
  def config(self) -> ConfigDict:
    """The resolved config."""
    return self.settings.config


@single_precision
def open_run(
  workdir: str | pathlib.Path,
  which: Which = "latest",
  config: ConfigDict | Settings | None = None,
  dataset: Dataset | None = None,
) -> Run:
  """Loads the run of a workdir or of a folder of exported parameters; changes nothing there.

  `which` is a step, 'latest' or 'best', as in `restore`. A `config` replaces that of the folder,
  for example to read the data elsewhere. A run on data in memory needs its `dataset`. Raises
  `RunError` if the run, the checkpoint or the data set is missing, or they do not fit each other.
  """
  with as_run_errors():
    workdir = given_path(workdir)
  if config is None:
    config = load_settings(workdir, is_given=dataset is not None)
  settings = read_settings(config)
  check_step(workdir, which)
  system, data, feed = build(settings, dataset, training=False)
  check_same_data(workdir, describe_data(data))
  with waiting(f"reading {workdir}"):
    variables, step, is_latest = restore(workdir, which, settings, system, feed.spec)
  return Run(settings, system, data, variables, step, is_latest)


@contextlib.contextmanager
def training_saved(run: Run, workdir: pathlib.Path) -> Iterator[None]:
  """Around the report on a finished run: messages say that it is saved and how to report again.

  Raises `ReportError` if the report fails; a signal ends the process.
  """
  command = as_started(f"python evaluate.py --workdir={shlex.quote(str(workdir))}")
  if "." in run.settings.system.removeprefix("scae_jax.models."):  # code of the user's own
    command += f" --system={run.settings.system}"
  if is_dotted(run.config.data.name):
    command += f" --source={run.config.data.name}"
  status = f"the training is finished and saved at step {run.step}"
  try:
    with (
      on_signal(lambda number: end(number, f"{status}; `{command}` reports on it")),
      as_run_errors(),
    ):
      yield
  except (RunError, TypeCheckError) as error:  # the latter for arrays of a user's own system
    raise ReportError(
      f"{status}, but its report failed; `{command}` tries it again. Why: {error}"
    ) from error
