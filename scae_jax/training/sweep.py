"""Sweeps: a list of runs in TOML, checked as a whole, trained one after another, and tabled.

docs/guide/running.md has the form of the file. Its paths are relative to the folder in which the
sweep is started, as on the command line of train.py.

Every row is a process of its own, so that whatever ends it does not end the sweep. The state of a
sweep is in the folders of its rows: one that was killed, or runs in several tasks, goes on from
there. A folder in which another process trains is locked: its row fails, the others go on.

<root>/<row>/            the workdir of the run, see `workdir`
<root>/<row>/train.log   the output of its processes
<root>/table.csv, table.md   of all finished rows, whoever trained them
"""

import dataclasses
import itertools
import os
import pathlib
import re
import subprocess
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from filelock import FileLock
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from scae_jax.config import Settings, differences, load_config, tuples, with_changes
from scae_jax.errors import FailedError, Interrupted, RunError
from scae_jax.evaluation.comparison import csv_table, markdown_table
from scae_jax.files import read_json, write_whole
from scae_jax.interrupt import PARENT, on_signal
from scae_jax.training.hosts import make_mesh
from scae_jax.training.run import build_to_train
from scae_jax.training.start import find_start
from scae_jax.training.workdir import RESUMABLE_CHANGES

SHARED_KEYS = ("config", "seeds", "overrides", "rows")
ROW_KEYS = ("name", "config", "seeds", "overrides", "start_from")


class RowsFailed(FailedError):
  """Some rows of a sweep have no report; the message says which and why."""


@dataclasses.dataclass(frozen=True)
class Row:
  """One run of a sweep."""

  name: str  # of its line in the table and of its folder
  arguments: tuple[str, ...]  # of train.py, without the workdir
  settings: Settings  # what train.py makes of them
  start_from: str = ""  # the row whose run it goes on from, if any

  @property
  def config(self) -> ConfigDict:
    """The config of the run."""
    return self.settings.config


def read_sweep(path: pathlib.Path, root: pathlib.Path) -> list[Row]:
  """The rows of a sweep file whose runs are in `root`; `RunError` with all that is wrong in it,
  each with its row."""
  try:
    content = tomllib.loads(path.read_text(encoding="utf-8"))
  except (OSError, ValueError) as error:
    raise RunError(f"the sweep file {path} cannot be read: {error}.") from error
  _check_keys(content, SHARED_KEYS, f"{path}: ")
  tables = content.get("rows", [])
  if not (isinstance(tables, list) and tables and all(isinstance(t, dict) for t in tables)):
    raise RunError(f"{path} must have at least one [[rows]], each with a name; it has {tables!r}.")
  shared = {key: value for key, value in content.items() if key != "rows"}
  rows, errors, names = [], [], set()
  for number, table in enumerate(tables):
    where = f"{path}, row {number} ({table.get('name', 'without a name')})"
    try:
      row = make_row(shared, table, root)
      if row.name in names:
        raise RunError("another row has this name; names are folders, give it its own.")
      if row.start_from and row.start_from not in names:
        raise RunError(f"start_from must be the name of a row above; it is {row.start_from!r}.")
    except RunError as error:
      errors.append(f"{where}: {error}")
    else:
      names.add(row.name)
      rows.append(row)
  _raise_all(errors)
  return rows


def check_rows(rows: Sequence[Row], root: pathlib.Path) -> None:
  """Loads every row's data and traces its model; `RunError` with all that the runs would refuse,
  whatever devices they have."""
  errors = []
  for row in rows:
    workdir = root / row.name
    try:
      system, _, feed, _ = build_to_train(row.settings, workdir)
      if not row.start_from:
        find_start(row.settings, system, feed.spec, make_mesh(), workdir)
    except RunError as error:
      errors.append(f"row {row.name!r}: {error}")
  _raise_all(errors)


def _raise_all(errors: Sequence[str]) -> None:
  if errors:
    raise RunError("\n".join(errors) + "\nNothing was started.")


def _check_keys(table: Mapping[str, Any], valid: Sequence[str], where: str = "") -> None:
  if unknown := sorted(set(table) - set(valid)):
    raise RunError(f"{where}unknown keys {unknown}; valid ones are {list(valid)}.")


def make_row(
  shared: Mapping[str, Any], table: Mapping[str, Any], root: pathlib.Path = pathlib.Path()
) -> Row:
  """A row of a sweep in `root`, from its table and the keys shared by all rows; or `RunError`."""
  _check_keys(table, ROW_KEYS)
  merged = {**shared, **table}
  name, source, seeds = merged.get("name"), merged.get("config"), merged.get("seeds")
  start_from = merged.get("start_from", "")
  # A dot would let a name be that of a table, and a slash leave the folder.
  if not (isinstance(name, str) and re.fullmatch(r"[\w+-]+", name)):
    raise RunError(f"name must be letters, digits, '_', '-' or '+'; it is {name!r}.")
  if not isinstance(source, str):
    raise RunError(f"config must be 'FILE[:PRESET]'; it is {source!r}.")
  overrides = {}
  for given in (shared.get("overrides", {}), table.get("overrides", {})):
    if not isinstance(given, dict):
      raise RunError(f"overrides must be a table, section.key = value; it is {given!r}.")
    overrides |= flatten_dict(tuples(given), sep=".")
  if "train.seeds" in overrides:
    raise RunError(f"write seeds = {overrides['train.seeds']!r}, not an override of it.")
  if seeds is not None:
    overrides["train.seeds"] = seeds
  if not isinstance(start_from, str):
    raise RunError(f"start_from must be the name of a row above; it is {start_from!r}.")
  if start_from:
    if "train.start_from" in overrides:
      raise RunError("give start_from or an override of train.start_from, not both.")
    overrides["train.start_from"] = str(root / start_from)
  settings = with_changes(load_config(source), overrides)
  arguments = (f"--config.{key}={value}" for key, value in overrides.items())
  return Row(name, (f"--config={source}", *arguments), settings, start_from)


def read_task(text: str, rows: Sequence[Row]) -> list[Row]:
  """The rows of task i of n, `i/n`: every n-th from the i-th, both counted from 0.

  Only rows that start from no other are counted; the others go with the one they start from.
  """
  match = re.fullmatch(r"(\d+)/(\d+)", text)
  if not match or int(match[1]) >= int(match[2]):
    raise RunError(f"--task must be i/n, with i from 0 to n - 1; it is {text!r}.")
  first = itertools.count()
  numbers: dict[str, int] = {}
  for row in rows:
    numbers[row.name] = numbers[row.start_from] if row.start_from else next(first)
  return [row for row in rows if numbers[row.name] % int(match[2]) == int(match[1])]


def run_rows(
  mine: Sequence[Row],
  rows: Sequence[Row],
  root: pathlib.Path,
  command: Sequence[str],
  say: Callable[[str], None] = print,
) -> None:
  """Runs those of `mine` that are not finished, and writes the tables of all rows after each.

  The command trains; a row's arguments and `--workdir` follow it. Progress goes to `say`, a line a
  call. Raises `RowsFailed` when all others are finished, and what `run_logged` raises.
  """
  root.mkdir(parents=True, exist_ok=True)
  write_tables(rows, root)
  failures = []
  by_name = {row.name: row for row in rows}
  for number, row in enumerate(mine, start=1):
    workdir, where = root / row.name, f"{number}/{len(mine)} {row.name}"
    if finished_report(row, workdir):
      say(f"{where}: finished before")
      continue
    start = by_name.get(row.start_from)
    if start is not None and not finished_report(start, root / start.name):
      failures.append(f"{row.name}: {start.name}, from which it starts, is not finished")
      say(f"{where}: FAILED; {failures[-1]}")
      continue
    log = workdir / "train.log"
    say(f"{where}: training, see {log}")
    workdir.mkdir(exist_ok=True)
    started, size = time.monotonic(), log.stat().st_size if log.exists() else 0
    code = run_logged([*command, *row.arguments, f"--workdir={workdir}"], log)
    minutes = (time.monotonic() - started) / 60
    if code == 0 and finished_report(row, workdir):
      say(f"{where}: finished in {minutes:.1f} min")
    else:
      failures.append(f"{row.name}: exit code {code}, {reason(log, size)}")
      say(f"{where}: FAILED after {minutes:.1f} min; {failures[-1]}")
    write_tables(rows, root)
  say(f"tables: {root / 'table.md'}, {root / 'table.csv'}")
  if failures:
    raise RowsFailed(
      f"{len(failures)} of {len(mine)} rows failed, the others are finished:\n  "
      + "\n  ".join(failures)
      + "\nThe same command tries them again and runs nothing else."
    )


def finished_report(row: Row, workdir: pathlib.Path) -> dict[str, Any] | None:
  """The row's report; None unless it is of this config and of its last step."""
  path = workdir / "evaluation" / "metrics.json"
  try:
    report = read_json(path, "step", "max_examples", "provenance", "date")
    trained = ConfigDict(tuples(report["provenance"]["config"]))
    facts = (report["step"], report["max_examples"])
    markdown_table({row.name: report})  # what a table takes of it is there
    csv_table({row.name: report})
  except (ValueError, LookupError, TypeError, AttributeError):
    return None  # none, or one that the run will write again
  # `RESUMABLE_CHANGES` do not change the figures, except the length, which is compared below.
  if "unfinished" in report:
    return None  # the numbers alone, without their figures
  different = set(differences(trained, row.config)) - RESUMABLE_CHANGES
  asked = (row.config.train.num_steps, row.config.evaluation.max_examples)
  return report if not different and facts == asked else None


def write_tables(rows: Sequence[Row], root: pathlib.Path) -> None:
  """Writes `table.csv` and `table.md` of all rows that are finished now; tasks take turns."""
  with FileLock(root / "table.lock"):  # also let go when the process dies
    found = {row.name: finished_report(row, root / row.name) for row in rows}
    reports = {name: report for name, report in found.items() if report}
    missing = [name for name, report in found.items() if not report]
    write_whole(root / "table.csv", csv_table(reports).encode())
    write_whole(root / "table.md", markdown_table(reports, missing).encode())


def run_logged(command: Sequence[str], log: pathlib.Path) -> int:
  """Runs a process to its end and returns its exit code (negative: the signal that killed it).

  Its output is added to the log. Ctrl-C, SIGTERM and SIGHUP are passed on to the process, which
  saves and ends; a second one ends it at once. `Interrupted` is raised when the process has ended.
  It saves and ends too when this process is killed.
  """
  received: list[int] = []
  process: subprocess.Popen | None = None

  def pass_on(number: int) -> None:
    received.append(number)
    if process is not None:
      process.send_signal(number)

  with log.open("ab") as file, on_signal(pass_on):
    process = subprocess.Popen(
      command,
      stdin=subprocess.DEVNULL,
      stdout=file,
      stderr=subprocess.STDOUT,
      env=os.environ | {PARENT: str(os.getpid())},
    )
    for number in received:  # those that came before there was a process
      process.send_signal(number)
    code = process.wait()
  if received:
    raise Interrupted(
      f"the run that was training has ended, see {log}; the same command goes on from there.",
      received[0],
    )
  return code


def reason(log: pathlib.Path, start: int) -> str:
  """Why a run failed: the last error in its log from a byte on, or the last line."""
  with log.open("rb") as file:
    file.seek(start)
    lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
  errors = [line for line in lines if re.match(r"error: |\w+(\.\w+)*Error\b", line)]
  return (errors or lines or ["it said nothing"])[-1].strip()
