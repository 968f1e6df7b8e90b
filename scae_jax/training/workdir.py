"""The folder of a run: config, description of the data set, keys that may change, and the lock.

config.json    the resolved config of the run
data.json      description of the data set that it trains on
jax.json       settings of JAX on which its results depend
checkpoints/   a folder for each saved step
metrics.jsonl  metrics of training and of held-out examples
tensorboard/   if `train.tensorboard` is set
evaluation/    the report
"""

import contextlib
import glob
import os
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from filelock import FileLock, Timeout
from ml_collections import ConfigDict

from scae_jax.config import Settings, differences, tuples, with_changes, with_defaults
from scae_jax.data.constellations import NAME, Scenes
from scae_jax.data.dataset import Dataset, Split
from scae_jax.data.feed import spec_of
from scae_jax.data.options import DataOptions
from scae_jax.data.sources import is_dotted
from scae_jax.errors import RunError, as_run_errors
from scae_jax.evaluation.provenance import jax_settings
from scae_jax.files import given_path, read_json, sealed_json, write_json, write_whole
from scae_jax.models.system import ImageSpec
from scae_jax.training.hosts import is_first

Which = int | str  # a step, as int or decimal digits, 'latest' or 'best' (lowest held-out loss)
# Keys that a resumed run may change: none affects the parameters at a step.
RESUMABLE_CHANGES = frozenset(
  {
    "train.num_steps",  # only to a larger number, see `check_same_run`
    "train.steps_per_dispatch",
    "train.log_every",
    "train.eval_every",
    "train.checkpoint_every",
    "train.keep_checkpoints",
    "train.tensorboard",
    "train.compilation_cache",
    "data.dir",  # the data set must be the same there, see `check_same_data`
    "data.cache_dir",
    "data.affnist_dir",
  }
)


def check_writable_name(workdir: pathlib.Path) -> None:
  """Raises `RunError` if no checkpoint that can be read again can be written below this path.

  Orbax writes paths as UTF-8, and takes those with `[`, `*` or `?` for patterns of names.
  """
  path = str(workdir.absolute())
  if glob.has_magic(path):
    raise RunError(
      f"the workdir {path} has one of the letters [ * ? in its path, below which checkpoints"
      " cannot be saved. Give another --workdir."
    )
  if path != path.encode(errors="replace").decode():
    raise RunError(
      f"Python does not read the workdir {os.fsencode(path)!r} as UTF-8, and below it checkpoints"
      " cannot be saved. Set PYTHONUTF8=1, or give another --workdir."
    )


def check_readable(workdir: pathlib.Path) -> None:
  """Raises `RunError` if a workdir cannot be read: no permission, or too long a name."""
  try:
    for folder in (workdir, workdir / "checkpoints"):
      with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for path in folder.iterdir():
          path.stat()
  except OSError as error:
    raise RunError(
      f"the workdir {workdir} cannot be read: {error.strerror} ({error.filename}). Give another"
      " --workdir, or permission to read this one."
    ) from error


def checkpoint_directory(workdir: pathlib.Path) -> pathlib.Path:
  """The folder of a run's checkpoints; absolute, because orbax requires it."""
  return workdir.absolute() / "checkpoints"


def require_checkpoints(workdir: pathlib.Path) -> pathlib.Path:
  """The folder of a run's checkpoints; raises `RunError` if there is none."""
  directory = checkpoint_directory(workdir)
  if not directory.is_dir():
    raise RunError(f"{workdir} has no checkpoints. Train first, with train.py.")
  return directory


def saved_config(workdir: str | pathlib.Path) -> ConfigDict:
  """The resolved config of a run, for comparisons; to build the run, use `load_settings`."""
  check_readable(pathlib.Path(workdir))
  path = pathlib.Path(workdir) / "config.json"
  if not path.is_file():
    raise RunError(f"{workdir} holds no run: there is no {path}. Name the --workdir of train.py.")
  try:
    content = read_json(path)
  except ValueError as error:
    raise RunError(f"{error} Train in a new --workdir.") from error
  try:
    return with_defaults(ConfigDict(tuples(content))).lock()
  except (ValueError, AttributeError) as error:  # the latter for keys such as __class__
    raise RunError(f"{path} cannot be read: {error} Train in a new --workdir.") from error


def load_settings(
  workdir: str | pathlib.Path,
  own_system: str = "",
  own_source: str = "",
  changes: Mapping[str, Any] | None = None,
  *,
  is_given: bool = False,
) -> Settings:
  """The settings of a saved run, from which it can be built.

  A shared folder must not choose code to run. So the caller names the code that the config may use:
  `own_system`, a system outside of the package that is not imported yet, and `own_source`, a
  function that loads the data (also for a run on data in memory).

  Args:
    workdir: folder of the run.
    own_system: dotted path of the system, or "".
    own_source: dotted path of the function that loads the data, or "".
    changes: values that replace saved ones, by `section.key`.
    is_given: whether the caller has the data set.

  Raises:
    RunError: the config cannot be read, lacks a key of `changes`, names another system or data set
      than the caller, or names code that the caller has not named.
  """
  with as_run_errors():
    workdir = given_path(workdir)
  settings = saved_settings(workdir, changes)
  path, name = pathlib.Path(workdir) / "config.json", settings.system
  if own_system and name != own_system:
    raise RunError(f"{path} names the system {name!r}, and --system={own_system} is given.")
  in_package = "." not in name.removeprefix("scae_jax.models.")
  if not (own_system or in_package or name in sys.modules):
    raise RunError(
      f"{path} names the system {name!r}, which is code outside of scae_jax.models. If you trust"
      f" it, give --system={name}, or import it first in a program of your own."
    )
  source = settings.config.data.name
  if own_source and not is_dotted(source):  # `run.open_run` compares the data
    return saved_settings(workdir, {**(changes or {}), "data.name": own_source})
  if own_source and source != own_source:
    raise RunError(f"{path} names the data set {source!r}, and {own_source!r} is given.")
  # Also for imported modules: the source could be `os.system`, and data.dir its argument.
  if is_dotted(source) and not own_source and not is_given:
    raise RunError(
      f"{path} names the data set {source!r}, which is a function to call. If you trust it, give"
      f" --source={source}; a program of your own gives open_run the data set."
    )
  return settings


def saved_settings(
  workdir: str | pathlib.Path, changes: Mapping[str, Any] | None = None
) -> Settings:
  """`load_settings` for callers that do not build the system; any system is allowed."""
  config = saved_config(workdir)
  try:
    return with_changes(config, changes or {})
  except RunError as error:
    raise RunError(f"{pathlib.Path(workdir) / 'config.json'}: {error}") from error


def check_same_run(workdir: pathlib.Path, config: ConfigDict) -> None:
  """Raises `RunError` unless the folder is new or holds a run that `config` may resume.

  The keys in `RESUMABLE_CHANGES` may differ. `train.num_steps` may only grow, and not if a cosine
  ends with the run: the trained steps would have had other learning rates. `evaluation.*` may
  differ, because it is used after training. The error lists every other difference with both
  values.
  """
  check_writable_name(workdir)
  check_readable(workdir)
  if not (workdir / "config.json").exists():
    return
  _check_same_settings(workdir)
  ends_with_run = config.optimizer.schedule == "cosine" and config.optimizer.decay_steps == 0
  changed = {
    key: (old, new)
    for key, (old, new) in differences(saved_config(workdir), config).items()
    if not key.startswith("evaluation.")
    and not (key in RESUMABLE_CHANGES and key != "train.num_steps")
    and not (key == "train.num_steps" and type(old) is int and new > old and not ends_with_run)
  }
  if changed:
    reason = ""
    if ends_with_run and "train.num_steps" in changed:
      reason = (
        " The cosine ends with the run (config.optimizer.decay_steps = 0): with another length, the"
        " steps already trained would have had other learning rates. To extend a run, set"
        " optimizer.decay_steps from its start, as long as the run may become."
      )
    raise RunError(
      f"{workdir} holds a run with another config:\n{_listed(changed)}\nGive another --workdir, or"
      f" the same config. A resumed run may change {', '.join(sorted(RESUMABLE_CHANGES))}"
      f" (num_steps only upwards).{reason}"
    )


def _check_same_settings(workdir: pathlib.Path) -> None:
  """Raises `RunError` if the run has saved other settings of JAX; older runs have saved none."""
  path = workdir / "jax.json"
  if not path.exists():
    return
  try:
    saved = read_json(path)
  except ValueError as error:
    raise RunError(f"{error} Remove it if you are sure that no variable has changed.") from error
  current = jax_settings()
  if changed := [name for name in current if saved.get(name, current[name]) != current[name]]:
    listed = ", ".join(f"{name}={saved[name]} ({current[name]} here)" for name in changed)
    raise RunError(
      f"{workdir} holds a run trained with {listed}: it would go on with other numbers. Set"
      " the environment as it was, or give another --workdir."
    )


def _listed(different: Mapping[str, tuple[Any, Any]]) -> str:
  return "\n".join(
    f"  {key}: {old!r} there, {new!r} given" for key, (old, new) in different.items()
  )


def describe_data(dataset: Dataset | Scenes) -> dict[str, Any]:
  """A description as a JSON object, by which a data set is recognised in any folder.

  It has the name, the class names, and for each split the number of examples, the height, width and
  channels of the images, and a hash. If images are cropped, it also has the height and width before
  cropping. Generated scenes have only a name; the config has the rest.
  """
  if isinstance(dataset, Scenes):
    return {"name": dataset.name}
  whole = dataset.cropped_from
  return {
    "name": dataset.name,
    "class_names": list(dataset.class_names),
    **{name: _described(split) for name, split in dataset.splits.items()},
    **({} if whole is None else {"cropped_from": list(whole)}),
  }


def _described(split: Split) -> dict[str, Any]:
  return {
    "examples": len(split.labels),
    "shape": list(split.images.shape[1:]),
    "hash": split.fingerprint,
  }


def _read_description(path: pathlib.Path, *keys: str) -> dict[str, Any]:
  """The description that `describe_data` made; ValueError, which names the file, if it is damaged.

  Version 0.1 wrote sentences: "60000 examples of 28x28x1, hash 0123456789abcdef" for a split,
  "96x96" for `cropped_from`.
  """
  description = read_json(path, *keys)
  if description.get("name") == NAME:  # version 0.1 also wrote the generator's options
    return {"name": NAME}
  for name, value in description.items():
    if not isinstance(value, str) or name == "name":
      continue
    if split := re.fullmatch(r"(\d+) examples of (\d+)x(\d+)x(\d+), hash (\w+)", value):
      examples, *shape, digest = split.groups()
      shape = [int(length) for length in shape]
      description[name] = {"examples": int(examples), "shape": shape, "hash": digest}
    elif sides := re.fullmatch(r"(\d+)x(\d+)", value):
      description[name] = [int(side) for side in sides.groups()]
  return description


def read_image_facts(
  workdir: pathlib.Path, options: DataOptions
) -> tuple[ImageSpec, tuple[str, ...], tuple[int, int]]:
  """Facts about the images that a run was trained on, from its folder.

  Returns the spec that the model is built from, the name of each label, and the height and width in
  pixels before `data.crop`. Raises `RunError` if `data.json` is missing or damaged.
  """
  path = workdir / "data.json"
  try:
    description = _read_description(path, "class_names", "train")
  except ValueError as error:
    raise RunError(f"{error} Resume the run to write it again.") from error
  try:
    *sides, channels = map(int, description["train"]["shape"])
    height, width = map(int, description.get("cropped_from", sides))
  except (TypeError, ValueError, KeyError) as error:
    raise RunError(f"{path} does not say what the images are like; it is damaged.") from error
  names = tuple(map(str, description["class_names"]))
  return spec_of(options, channels, len(names)), names, (height, width)


def read_splits(workdir: pathlib.Path) -> tuple[str, ...]:
  """The splits of the data set that a run was trained on; ValueError if `data.json` is damaged."""
  description = _read_description(workdir / "data.json")
  return tuple(name for name, value in description.items() if isinstance(value, Mapping))


def check_same_data(workdir: pathlib.Path, description: Mapping[str, Any]) -> None:
  """Raises `RunError`, which lists the differences, if the folder describes another data set."""
  path = workdir / "data.json"
  if not path.exists():
    return
  try:
    saved = _read_description(path)
  except ValueError as error:
    raise RunError(f"{error} Remove it if you are sure that the data set is the same.") from error
  none = "(none)"
  saved.pop("cropped_from", None)  # older folders have none, and the hashes suffice
  current = {key: value for key, value in description.items() if key != "cropped_from"}
  pairs = {key: (saved.get(key, none), current.get(key, none)) for key in {**saved, **current}}
  if different := {key: (old, new) for key, (old, new) in pairs.items() if old != new}:
    raise RunError(
      f"{workdir} holds a run on another data set:\n{_listed(different)}\nName the folder of the"
      " same data in config.data.dir, put back what was changed there,"
      " or train in another --workdir."
    )


@contextlib.contextmanager
def locked(workdir: pathlib.Path) -> Iterator[None]:
  """Creates the folder of a run, and locks it against other runs.

  Of several processes, only the first one does. Raises `RunError` if the folder cannot be written,
  or another process trains in it.
  """
  if not is_first():
    yield
    return
  with contextlib.ExitStack() as stack:
    with _writable(workdir):
      workdir.mkdir(parents=True, exist_ok=True)
      try:
        stack.enter_context(FileLock(workdir / "lock", timeout=0))
      except Timeout as error:
        raise RunError(
          f"another process is training in {workdir}. Wait for it, or give another --workdir."
        ) from error
    yield


def write_description(
  workdir: pathlib.Path, config: ConfigDict, data_description: Mapping[str, Any]
) -> None:
  """Saves config, data description and settings of JAX; `RunError` if they cannot be written."""
  if is_first():
    with _writable(workdir):
      write_whole(workdir / "config.json", sealed_json(config.to_dict()))
      write_json(workdir / "data.json", data_description)
      write_whole(workdir / "jax.json", sealed_json(jax_settings()))


@contextlib.contextmanager
def _writable(workdir: pathlib.Path) -> Iterator[None]:
  try:
    yield
  except OSError as error:
    raise RunError(
      f"the workdir {workdir} cannot be written: {error}. Give a --workdir that can."
    ) from error
