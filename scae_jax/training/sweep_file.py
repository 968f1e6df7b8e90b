"""Sweep files: a list of runs in TOML, checked as a whole before any of them starts.

    seeds = 3                                   # number at once, of every row that says nothing
    config = "configs/digits.py"                # of every row that names none
    [overrides]                                 # of every row
    train.num_steps = 3000

    [[rows]]
    name = "base"

    [[rows]]
    name = "small_parts"
    config = "configs/digits.py:ablation=no_noise"
    seeds = 5
    overrides = { model.part_decoder.template_size = 5 }

Paths are relative to the folder in which the sweep is started, as on the command line of train.py.
A row's overrides come after those of all rows.
"""

import dataclasses
import pathlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from scae_jax.training.build import build
from scae_jax.training.config import Settings, parse_command_line, tuples
from scae_jax.training.errors import RunError
from scae_jax.training.optimizers import check_length
from scae_jax.training.workdir import check_same_run

SHARED_KEYS = ("config", "seeds", "overrides", "rows")
ROW_KEYS = ("name", "config", "seeds", "overrides")


@dataclasses.dataclass(frozen=True)
class Row:
  """One run of a sweep."""

  name: str  # of its line in the table and of its folder
  arguments: tuple[str, ...]  # of train.py, without the workdir
  settings: Settings  # what train.py makes of them

  @property
  def config(self) -> ConfigDict:
    """The config of the run."""
    return self.settings.config


def read_sweep(path: pathlib.Path) -> list[Row]:
  """The rows of a sweep file; `RunError` with all that is wrong in it, each with its row."""
  try:
    content = tomllib.loads(path.read_text(encoding="utf-8"))
  except (OSError, ValueError) as error:
    raise RunError(f"the sweep file {path} cannot be read: {error}.") from error
  _check_keys(str(path), content, SHARED_KEYS)
  tables = content.get("rows", [])
  if not (isinstance(tables, list) and tables and all(isinstance(t, dict) for t in tables)):
    raise RunError(f"{path} must have at least one [[rows]], each with a name; it has {tables!r}.")
  shared = {key: value for key, value in content.items() if key != "rows"}
  rows, errors, names = [], [], set()
  for number, table in enumerate(tables):
    where = f"{path}, row {number} ({table.get('name', 'without a name')})"
    try:
      row = make_row(where, shared, table)
      if row.name in names:
        raise RunError(f"{where}: another row has this name; names are folders, give it its own.")
    except RunError as error:
      errors.append(str(error))
    else:
      names.add(row.name)
      rows.append(row)
  _raise_all(errors)
  return rows


def check_rows(rows: Sequence[Row], root: pathlib.Path) -> None:
  """Loads every row's data and traces its model; `RunError` with all that the runs would refuse."""
  errors = []
  for row in rows:
    try:
      check_same_run(root / row.name, row.config)
      check_length(row.settings.optimizer, row.settings.train)
      build(row.settings)
    except RunError as error:
      errors.append(f"row {row.name!r}: {error}")
  _raise_all(errors)


def _raise_all(errors: Sequence[str]) -> None:
  if errors:
    raise RunError("\n".join(errors) + "\nNothing was started.")


def _check_keys(where: str, table: Mapping[str, Any], valid: Sequence[str]) -> None:
  if unknown := sorted(set(table) - set(valid)):
    raise RunError(f"{where}: unknown keys {unknown}; valid ones are {list(valid)}.")


def make_row(where: str, shared: Mapping[str, Any], table: Mapping[str, Any]) -> Row:
  """A row from its table and the keys shared by all rows; errors begin with `where`."""
  _check_keys(where, table, ROW_KEYS)
  merged = {**shared, **table}
  name, source, seeds = merged.get("name"), merged.get("config"), merged.get("seeds")
  # A dot would let a name be that of a table, and a slash leave the folder.
  if not (isinstance(name, str) and re.fullmatch(r"[\w+-]+", name)):
    raise RunError(f"{where}: name must be letters, digits, '_', '-' or '+'; it is {name!r}.")
  if not isinstance(source, str):
    raise RunError(f"{where}: config must be 'FILE[:PRESET]'; it is {source!r}.")
  overrides = {}
  for given in (shared.get("overrides", {}), table.get("overrides", {})):
    if not isinstance(given, dict):
      raise RunError(f"{where}: overrides must be a table, section.key = value; it is {given!r}.")
    overrides |= flatten_dict(given, sep=".")
  if "train.seeds" in overrides:
    raise RunError(f"{where}: write seeds = {overrides['train.seeds']!r}, not an override of it.")
  if seeds is not None:
    if type(seeds) is not int or seeds < 1:
      raise RunError(f"{where}: seeds must be a whole number of at least 1; it is {seeds!r}.")
    overrides["train.seeds"] = seeds
  arguments = [f"--config={source}"]
  # As train.py reads them: TOML's arrays are tuples.
  arguments += [f"--config.{key}={tuples(value)}" for key, value in overrides.items()]
  try:
    settings = parse_command_line(arguments, default_config="").settings
  except RunError as error:
    raise RunError(f"{where}: {error}") from error
  values = flatten_dict(settings.config.to_dict(), sep=".")
  for key, given in overrides.items():
    # A command line would read the number 3 as the name '3'; TOML has types.
    expected, found = type(values[key]), type(tuples(given))
    if found is not expected and (expected, found) != (float, int):
      raise RunError(
        f"{where}: config.{key} must be of type {expected.__name__}; it is {given!r} of type"
        f" {type(given).__name__}."
      )
  return Row(name, tuple(arguments), settings)
