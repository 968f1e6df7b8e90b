"""Configs: the sections that every config has, and the command line that overrides their keys.

A config file exports `get_config(preset="")` and is chosen by `--config=configs/mnist.py:official`;
`--config.section.key=value` overrides one key. It may also export `ABLATIONS`, `{name: sentence}`:
the ablations that `get_config` takes as `official,ablation=NAME`, which `--help` lists.
"""

import argparse
import contextlib
import dataclasses
import importlib
import json
import os
import pathlib
import re
import runpy
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import flags
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict, config_flags
from ml_collections.config_flags.config_flags import ConfigFileFlagParser

from scae_jax import bounds
from scae_jax.data.constellations import NAME, Scenes
from scae_jax.data.options import DataOptions
from scae_jax.errors import RunError, as_run_errors
from scae_jax.files import given_path
from scae_jax.sections import EvaluationOptions, OptimizerOptions, Processes, TrainOptions, resolve

PACKAGE = pathlib.Path(__file__).parent
# Files beside the package in a checkout; `pip install .` copies them to scae_jax/shipped.
SHIPPED = PACKAGE / "shipped" if (PACKAGE / "shipped").is_dir() else PACKAGE.parent

USAGE = "write --config=FILE[:PRESET], --config.SECTION.KEY=VALUE or --workdir=FOLDER."
SECTIONS = ("model", "loss", "data", "train", "optimizer", "evaluation")


@dataclasses.dataclass(frozen=True)
class Settings:
  """A checked config; the sections of the model are plain dicts, the others dataclasses."""

  config: ConfigDict  # a copy of the whole config, for the workdir and reports
  system: str  # module that exports `make_system`: a name in `scae_jax.models`, or a dotted path
  model: dict[str, Any]
  loss: dict[str, Any]
  data: DataOptions | Scenes  # the latter where `data.name` is "constellations"
  train: TrainOptions
  optimizer: OptimizerOptions  # resolved
  evaluation: EvaluationOptions

  @property
  def views(self) -> int:
    """Number of views that a training batch has of each image."""
    return 2 if isinstance(self.data, DataOptions) and self.data.two_views else 1


ConfigSource = ConfigDict | Mapping[str, Any] | str | os.PathLike[str] | Settings


@dataclasses.dataclass(frozen=True)
class Command:
  """The contents of a command line of train.py."""

  settings: Settings  # with the overrides
  workdir: pathlib.Path
  processes: Processes | None  # None for a run of a single process
  source: str  # the config's file and preset


def read_settings(config: ConfigSource) -> Settings:
  """Checks a config and returns its settings; `Settings` are returned as they are.

  A string names a file, as `configs/mnist.py:modern`; a dict has the sections of a config. Raises
  `RunError` for an unknown or missing key or section, or a wrong value.
  """
  if isinstance(config, Settings):
    return config
  if isinstance(config, str | os.PathLike):
    config = load_config(os.fspath(config))
  if not isinstance(config, ConfigDict):
    if not isinstance(config, Mapping):
      raise RunError(f"a config must be a file, a ConfigDict or a dict; it is {config!r}.")
    config = ConfigDict(tuples(config))
  content: dict[str, Any] = tuples(with_defaults(config).to_dict())
  expected, received = {"system", *SECTIONS}, set(content)
  if expected != received:
    raise RunError(
      f"a config must have exactly {sorted(expected)}; unknown: {sorted(received - expected)},"
      f" missing: {sorted(expected - received)}. Correct the config file."
    )
  if not isinstance(content["system"], str):
    raise RunError(f"config.system must be a string; it is {content['system']!r}.")
  for name in SECTIONS:
    if not isinstance(content[name], dict):
      raise RunError(f"config.{name} must be a section (ConfigDict); it is {content[name]!r}.")
  data_class, data_name = _data_class(content["data"]), content["data"].get("name", "")
  if not isinstance(data_name, str):
    raise RunError(f"config.data.name must be a string; it is {data_name!r}.")
  try:
    train = bounds.read(TrainOptions, "train", content["train"])
    optimizer = bounds.read(OptimizerOptions, "optimizer", content["optimizer"])
    evaluation = bounds.read(EvaluationOptions, "evaluation", content["evaluation"])
    data = bounds.read(data_class, "data", content["data"])
  except ValueError as error:
    has_other_keys = str(error).startswith("config.data:")
    hint = f" These are the keys if config.data.name is {data_name!r}." if has_other_keys else ""
    raise RunError(f"{error}{hint}") from error
  settings = Settings(
    config=ConfigDict(content).lock(),  # a copy: changes of the caller's config do not reach it
    system=content["system"],
    model=content["model"],
    loss=content["loss"],
    data=data,
    train=train,
    optimizer=resolve(optimizer, train),
    evaluation=evaluation,
  )
  if train.batch_size % settings.views:
    raise RunError(
      "config.train.batch_size must be even where config.data.two_views is True; it is"
      f" {train.batch_size}."
    )
  return settings


def with_defaults(config: ConfigDict) -> ConfigDict:
  """An unlocked copy, in which missing keys have their default values.

  A system's module has `SECTIONS`, the classes of its model and loss sections. If the system is
  neither in the package nor imported yet, these sections get no defaults. Missing or malformed
  sections stay as they are; `read_settings` refuses them.
  """
  sections: dict[str, tuple[type, ...]] = {
    "data": (_data_class(config.get("data")),),
    "train": (TrainOptions,),
    "optimizer": (OptimizerOptions,),
    "evaluation": (EvaluationOptions,),
    **_sections_of(config.get("system")),
  }
  completed = ConfigDict(config.to_dict())
  for path, schemas in sections.items():
    section: Any = completed
    for name in path.split("."):
      section = section.get(name) if isinstance(section, ConfigDict) else None
    if isinstance(section, ConfigDict):
      for name, value in bounds.defaults(*schemas).items():
        if name not in section:
          section[name] = value
  return completed


def _data_class(section: Any) -> type[DataOptions | Scenes]:
  """The class of a data section, by its key `name`: generated scenes or images."""
  is_scenes = isinstance(section, Mapping | ConfigDict) and section.get("name") == NAME
  return Scenes if is_scenes else DataOptions


def _sections_of(system: Any) -> dict[str, tuple[type, ...]]:
  """`SECTIONS` of a system's module; imports only modules of the package."""
  if not isinstance(system, str):
    return {}
  path = system if "." in system else f"scae_jax.models.{system}"
  if path not in sys.modules and path.count(".") == 2 and path.startswith("scae_jax.models."):
    with contextlib.suppress(ModuleNotFoundError):  # `make_system` raises an error that explains it
      importlib.import_module(path)
  return getattr(sys.modules.get(path), "SECTIONS", {})


def parse_command_line(arguments: Sequence[str], *, default_config: str) -> Command:
  """Reads `--config`, `--config.section.key=value`, `--workdir` and the flags of `Processes`.

  `arguments` do not include the program's name. Raises `RunError` for an unknown flag or key, a
  value of the wrong type, or a file without a config.
  """
  values = flags.FlagValues()
  values.set_gnu_getopt()  # allows `--flag value`, also for the flags of config keys
  flags.DEFINE_string("config", default_config, "FILE[:PRESET]", flag_values=values)
  flags.DEFINE_string("workdir", None, "folder of the run", flag_values=values)
  flags.DEFINE_bool("distributed", False, "one process of many", flag_values=values)
  flags.DEFINE_string("coordinator", "", "host:port of process 0", flag_values=values)
  flags.DEFINE_integer("num_processes", 0, "of the run", flag_values=values)
  flags.DEFINE_integer("process_id", 0, "of this one, from 0", flag_values=values)
  try:
    _, *overrides = values(["train.py", *arguments], known_only=True)
  except flags.Error as error:
    raise RunError(f"{error}; {USAGE}") from error
  source, folder = values["config"].value or "", values["workdir"].value
  if folder == "":  # of a variable of the shell that is not set
    raise RunError("--workdir is empty; name a folder, or leave it out.")
  with as_run_errors():
    workdir = given_path(folder or str(pathlib.Path("runs") / _run_name(source)))
  settings = read_settings(load_config(source, overrides))
  return Command(settings, workdir, _processes(values), source)


def load_config(source: str, overrides: Sequence[str] = ()) -> ConfigDict:
  """The config of `file[:preset]`, for example `configs/mnist.py:modern`, with its overrides.

  It is locked: values can be changed, keys cannot be added. Missing keys have their defaults. If
  there is no file `configs/...` in the current folder, it is that of the package. `overrides` are
  arguments such as `--config.train.num_steps=100`. Raises `RunError` if there is no such file, no
  config in it, or an override is wrong.
  """
  arguments = ["train.py", f"--config={source}", *overrides]
  values = flags.FlagValues()
  config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=arguments)
  names = [re.match(r"--?(?:no)?config\.([^=]*)", argument) for argument in overrides]
  keys = [match[1] for match in names if match]
  values["config"].parser = parser = _ConfigFile("config", keys)
  try:
    unused = values(arguments)[1:]
  except flags.UnrecognizedFlagError as error:
    raise RunError(f"{error}; {USAGE}") from error
  except (flags.Error, AttributeError, KeyError, TypeError, ValueError) as error:
    config = parser.parse(source)
    # For an unknown key, this raises an error that lists the valid ones.
    types = {key: type(value_at(config, key)).__name__ for key in keys}
    expected = [f"config.{key} is of type {kind}" for key, kind in types.items()]
    raise RunError(f"{error}; {'; '.join(expected) or USAGE}") from error
  if unused:
    raise RunError(f"cannot read {' '.join(unused)!r}; {USAGE}")
  config: Any = values["config"].value
  return config


class _ConfigFile(ConfigFileFlagParser):
  """The parser of `--config=FILE[:PRESET]`; missing keys of the config get their defaults.

  The parser of config_flags would leave names of a file that it has loaded before, and cannot load
  a file from a folder with a colon in its name.
  """

  def __init__(self, name: str, overridden: Sequence[str]):
    """A parser for the flag `name`; keys that are `overridden` may be weights of further terms."""
    super().__init__(name)
    self._overridden = overridden

  def parse(self, path: str) -> ConfigDict:
    _, preset = _split(path)
    names = _names_of_file(path)
    try:
      config = names["get_config"]() if preset is None else names["get_config"](preset)
    except (Exception, SystemExit) as error:  # the user's file may raise anything
      message = f"{type(error).__name__}: {error}"
      raise RunError(f"the config {path!r} cannot be loaded: {message}") from error
    if not isinstance(config, ConfigDict):
      raise RunError(f"get_config of {path!r} must return a ConfigDict; it returned {config!r}.")
    return _with_weights(with_defaults(config), self._overridden).lock()


def _with_weights(config: ConfigDict, keys: Iterable[str]) -> ConfigDict:
  """The config, with a weight of 0 for each key `loss.weights.NAME` that it lacks.

  If there is no such loss term, the first use of the weights raises an error that lists the terms.
  """
  loss = config.get("loss")
  weights = loss.get("weights") if isinstance(loss, ConfigDict) else None
  for key in keys:
    section, _, name = key.rpartition(".")
    if section == "loss.weights" and isinstance(weights, ConfigDict) and name not in weights:
      with weights.unlocked():
        weights[name] = 0.0
  return config


def _names_of_file(source: str) -> dict[str, Any]:
  """What the file of `file[:preset]` defines; `RunError` if it cannot be run."""
  path = os.path.expanduser(_split(source)[0])
  if not os.path.isfile(path) and path.startswith("configs/"):
    path = str(SHIPPED / path)
  if not (path.endswith(".py") and os.path.isfile(path)):
    raise RunError(f"--config must name a Python file with get_config(); there is no {path!r}.")
  if str(SHIPPED) not in sys.path:  # for `from configs import digits`; the user's modules go first
    sys.path.append(str(SHIPPED))
  try:
    return runpy.run_path(path)
  except (Exception, SystemExit) as error:  # the user's file may raise anything
    hint = ""
    if isinstance(error, ImportError):
      folder = os.path.dirname(os.path.abspath(path))
      hint = f". A module beside it is found by its name, without a dot, with PYTHONPATH={folder}."
    message = f"{type(error).__name__}: {error}{hint}"
    raise RunError(f"the config {source!r} cannot be loaded: {message}") from error


def _split(source: str) -> tuple[str, str | None]:
  """The path and the preset of `file[:preset]`; None without one. The path may have colons."""
  match = re.fullmatch(r"(.*?\.py|[^:]*)(?::(.*))?", source, re.DOTALL)
  assert match is not None  # both parts may be empty
  return match[1], match[2]


def _run_name(source: str) -> str:
  """The run's default name: `configs/mnist.py:official,ablation=a+b` gives `mnist-official-a-b`."""
  path, preset = _split(source)
  words = re.findall(r"[\w.]+", re.sub(r"\w+=", "", preset or ""))
  return "-".join([pathlib.Path(path).stem, *words])


def _processes(values: flags.FlagValues) -> Processes | None:
  fields: dict[str, Any] = {
    name: values[name].value for name in ("coordinator", "num_processes", "process_id")
  }
  if fields["coordinator"] or values["distributed"].value:
    return Processes(**fields)
  if fields["num_processes"] or fields["process_id"]:
    raise RunError("--num_processes and --process_id need --coordinator=host:port.")
  return None


def differences(old: ConfigDict, new: ConfigDict) -> dict[str, tuple[Any, Any]]:
  """Keys (`section.key`) whose values differ, with the old and the new value.

  A missing key has its default, or '(no such key)' if it has none; a loss term without a weight has
  weight 0. Values are compared as JSON: 1 and 1.0 differ, a tuple and the saved list are equal.
  """
  old_values, new_values = (
    flatten_dict(with_defaults(config).to_dict(), sep=".") for config in (old, new)
  )
  pairs = {}
  for key in sorted({*old_values, *new_values}):
    section = key.rpartition(".")[0]
    absent = {"loss.weights": 0.0, "loss.schedule": ()}.get(section, "(no such key)")
    pairs[key] = (old_values.get(key, absent), new_values.get(key, absent))
  return {key: pair for key, pair in pairs.items() if json.dumps(pair[0]) != json.dumps(pair[1])}


def describe(command: Command) -> str:
  """The config's part of `--help`: a line for each key, with its flag and value, and ablation."""
  keys = flatten_dict(command.settings.config.to_dict(), sep=".")
  lines = ["Config keys:", *(f"  --config.{key}={value!r}" for key, value in keys.items())]
  ablations: Mapping[str, str] = _names_of_file(command.source).get("ABLATIONS", {})
  if ablations:
    lines += ["", "Ablations, as --config=FILE:[PRESET,]ablation=NAME[+NAME...]:"]
  width = max(map(len, ablations), default=0)
  lines += [f"  {name:{width}}  {sentence}" for name, sentence in ablations.items()]
  return "\n".join(lines)


def as_started(text: str | None) -> str:
  """The text with commands as the user starts them: `scae-train` if the package is installed,
  `python train.py` in a checkout."""
  replacement = r"scae-\1" if SHIPPED.parent == PACKAGE else r"\g<0>"
  return re.sub(r"python (train|evaluate|explore)\.py", replacement, text or "")


def plain_parser(description: str | None) -> argparse.ArgumentParser:
  """A parser whose help keeps the lines of a docstring; commands are as in `as_started`."""
  return argparse.ArgumentParser(
    description=as_started(description), formatter_class=argparse.RawDescriptionHelpFormatter
  )


def value_at(config: ConfigDict, key: str) -> Any:
  """The value of `section.key`; for an unknown key, a `RunError` that lists the valid ones."""
  node: Any = config
  names = key.split(".")
  for depth, name in enumerate(names):
    where = ".".join(["config", *names[:depth]])
    if not isinstance(node, ConfigDict):
      raise RunError(f"unknown config key {key!r}: {where} is a value and has no keys.")
    if name not in node:
      raise RunError(f"unknown config key {key!r}: the keys of {where} are {sorted(node.keys())}.")
    node = node[name]
  if isinstance(node, ConfigDict):
    raise RunError(f"config.{key} is a section; set one of its keys {sorted(node.keys())}.")
  return node


def with_changes(config: ConfigDict, changes: Mapping[str, Any]) -> Settings:
  """Changes values of a config, by `section.key`, and returns its settings.

  Raises `RunError` for an unknown key, or a value of another type or out of bounds.
  """
  config = _with_weights(config, changes)
  for key, value in changes.items():
    expected, received = type(value_at(config, key)), type(value)
    if received is not expected and (expected, received) != (float, int):
      raise RunError(f"config.{key} must be of type {expected.__name__}; it is {value!r}.")
  config.update_from_flattened_dict(changes)
  return read_settings(config)


def tuples(value: Any) -> Any:
  """A value of JSON, TOML or NumPy as in configs: lists become tuples, and so do arrays.

  Numbers of NumPy and JAX become Python's, which JSON can hold.
  """
  if isinstance(value, Mapping):
    return {key: tuples(item) for key, item in value.items()}
  if isinstance(value, np.generic | np.ndarray | jax.Array):
    return tuples(value.tolist())
  return tuple(tuples(item) for item in value) if isinstance(value, list) else value
