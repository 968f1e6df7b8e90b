"""Sweeps: a list of runs in a TOML file, which are trained one after another and tabulated.

docs/guide/running.md describes the file. Its paths are relative to the current folder, as on the
command line of train.py.

Every row runs as a process of its own, so that a crash does not end the sweep. The state of a sweep
is that of its rows' folders: a sweep that was killed, or that runs as several tasks, goes on from
there. If another process trains in a row's folder, the row fails and the others go on.

<root>/<row>/            the workdir of the run, see `workdir`
<root>/<row>/train.log   the output of its processes
<root>/<row>/start.json  by which metrics of the row that it starts from are recognised
<root>/table.csv, table.md   results of all finished rows
"""

import dataclasses
import itertools
import os
import pathlib
import re
import subprocess
import time
import tomllib
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from filelock import FileLock
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from scae_jax.config import Settings, differences, load_config, tuples, with_changes
from scae_jax.errors import FailedError, Interrupted, RunError
from scae_jax.evaluation.comparison import csv_table, markdown_table
from scae_jax.files import read_json, write_json, write_whole
from scae_jax.interrupt import PARENT, on_signal
from scae_jax.training.hosts import make_mesh
from scae_jax.training.start import fitting_modules, plan_run
from scae_jax.training.workdir import RESUMABLE_CHANGES, checkpoint_directory, saved_config

SHARED_KEYS = ("config", "seeds", "overrides", "rows")
ROW_KEYS = ("name", "config", "seeds", "overrides", "start_from")


class RowsFailed(FailedError):
  """Some rows of a sweep failed; the message says which and why."""


@dataclasses.dataclass(frozen=True)
class Row:
  """One run of a sweep."""

  name: str  # of its folder and its line in the table
  arguments: tuple[str, ...]  # of train.py, without the workdir
  settings: Settings  # that result from the arguments
  start_from: str = ""  # name of the row whose parameters it starts from; "" for none

  @property
  def config(self) -> ConfigDict:
    """The config of the run."""
    return self.settings.config


def read_sweep(path: pathlib.Path, root: pathlib.Path) -> list[Row]:
  """The rows of a sweep file; their runs are in `root`.

  Raises one `RunError` with all errors of the file, each with its row.
  """
  try:
    content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
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
      if row.name.lower() in {name.lower() for name in names}:  # one folder on macOS
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
  """Loads the data of every row and traces its model.

  Raises one `RunError` with all errors that the runs would raise on any device.
  """
  errors, models = [], {}
  for row in rows:
    workdir, train = root / row.name, row.settings.train
    try:
      settings = row.settings
      if row.start_from:  # a row above, which may not be trained yet
        without_start = dataclasses.replace(train, start_from="")
        settings = dataclasses.replace(settings, train=without_start)
      params = plan_run(settings, workdir, make_mesh()).state.params
      models[row.name] = train.seeds, params
      if row.start_from in models:
        fitting_modules(train, params, root / row.start_from, *models[row.start_from])
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
  """A row of a sweep in `root`, from its own keys and those shared by all rows.

  Raises `RunError` for an unknown key or a wrong value.
  """
  _check_keys(table, ROW_KEYS)
  merged = {**shared, **table}
  name, source, seeds = merged.get("name"), merged.get("config"), merged.get("seeds")
  start_from = merged.get("start_from", "")
  # With a dot, a name could be table.md; with a slash, another folder.
  if not (isinstance(name, str) and re.fullmatch(r"[\w+-]+", name)):
    raise RunError(f"name must be letters, digits, '_', '-' or '+'; it is {name!r}.")
  if not isinstance(source, str):
    raise RunError(f"config must be 'FILE[:PRESET]'; it is {source!r}.")
  overrides = {}
  for values in (shared.get("overrides", {}), table.get("overrides", {})):
    if not isinstance(values, dict):
      raise RunError(f"overrides must be a table, section.key = value; it is {values!r}.")
    overrides |= flatten_dict(tuples(values), sep=".")
  if "train.seeds" in overrides:
    raise RunError(f"write seeds = {overrides['train.seeds']!r}, not an override of it.")
  if seeds is not None:
    overrides["train.seeds"] = seeds
  if not isinstance(start_from, str):
    raise RunError(f"start_from must be the name of a row above; it is {start_from!r}.")
  if start_from:
    if "train.start_from" in overrides:
      raise RunError("give start_from or an override of train.start_from, not both.")
    overrides["train.start_from"] = _start_of(root / name) or str(root / start_from)
  settings = with_changes(load_config(source), overrides)
  arguments = (f"--config.{key}={value}" for key, value in overrides.items())
  return Row(name, (f"--config={source}", *arguments), settings, start_from)


def _start_of(workdir: pathlib.Path) -> str:
  """What a row's run that has trained started from, as its config spells it; "" for no such run.

  The folder of the sweep may have been moved since, or be written in another way.
  """
  if not checkpoint_directory(workdir).is_dir():
    return ""
  return saved_config(workdir).train.start_from


def read_task(text: str, rows: Sequence[Row]) -> list[Row]:
  """The rows of task i of n, given as `i/n`: every n-th row from the i-th, counted from 0.

  A row that starts from another one is not counted; it belongs to the task of that row.
  """
  match = re.fullmatch(r"(\d+)/(\d+)", text)
  if not match or int(match[1]) >= int(match[2]):
    raise RunError(f"--task must be i/n, with i from 0 to n - 1; it is {text!r}.")
  counter = itertools.count()
  numbers: dict[str, int] = {}
  for row in rows:
    numbers[row.name] = numbers[row.start_from] if row.start_from else next(counter)
  return [row for row in rows if numbers[row.name] % int(match[2]) == int(match[1])]


def run_rows(
  task_rows: Sequence[Row],
  rows: Sequence[Row],
  root: pathlib.Path,
  command: Sequence[str],
  say: Callable[[str], None] = print,
) -> None:
  """Runs the unfinished rows of a task one after another; after each, writes the tables anew.

  Args:
    task_rows: rows of the task.
    rows: all rows of the sweep.
    root: folder of the runs and the tables.
    command: command that trains, to which a row's arguments and `--workdir` are added.
    say: receives each line of progress.

  Raises:
    RowsFailed: some rows failed; it is raised after all rows were tried.
    Interrupted: by a signal, see `run_logged`.
  """
  root.mkdir(parents=True, exist_ok=True)
  write_tables(rows, root)
  failures = []
  by_name = {row.name: row for row in rows}
  for number, row in enumerate(task_rows, start=1):
    workdir, where = root / row.name, f"{number}/{len(task_rows)} {row.name}"
    start = by_name.get(row.start_from)
    problem = ""
    if start is not None and _started_from_another(workdir, root / start.name):
      problem = f"has been trained again or longer since; remove {workdir} to train it anew"
    elif finished_report(row, workdir):
      say(f"{where}: finished before")
      continue
    elif start is not None and not finished_report(start, root / start.name):
      problem = "is not finished"
    if problem:
      failures.append(f"{row.name}: {row.start_from}, from which it starts, {problem}")
      say(f"{where}: FAILED; {failures[-1]}")
      continue
    log = workdir / "train.log"
    say(f"{where}: training, see {log}")
    workdir.mkdir(exist_ok=True)
    if start is not None and not (workdir / "start.json").exists():
      write_json(workdir / "start.json", _identity(root / start.name))
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
      f"{len(failures)} of {len(task_rows)} rows failed, the others are finished:\n  "
      + "\n  ".join(failures)
      + "\nThe same command tries them again and runs nothing else."
    )


def _started_from_another(workdir: pathlib.Path, start_workdir: pathlib.Path) -> bool:
  """Whether the run that a row started from has been trained again or longer since."""
  path = workdir / "start.json"
  return path.exists() and read_json(path) != _identity(start_workdir)


def _identity(workdir: pathlib.Path) -> dict[str, int]:
  """A checksum of a run's metrics, which are others if it is trained again or longer."""
  path = workdir / "metrics.jsonl"
  return {"metrics": zlib.crc32(path.read_bytes()) if path.exists() else 0}


def finished_report(row: Row, workdir: pathlib.Path) -> dict[str, Any] | None:
  """The report of a row; None unless it belongs to the row's config and last step."""
  path = workdir / "evaluation" / "metrics.json"
  try:
    report = read_json(path, "step", "max_examples", "provenance", "date")
    trained = ConfigDict(tuples(report["provenance"]["config"]))
    reported = (report["step"], report["max_examples"])
    markdown_table({row.name: report})  # raises if an entry that the tables need is missing
    csv_table({row.name: report})
  except (ValueError, LookupError, TypeError, AttributeError):
    return None  # there is no report, or a damaged one, which the run will write again
  if "unfinished" in report:
    return None  # its figures were not written
  # `RESUMABLE_CHANGES` do not affect results, except the length, which is compared below.
  different = set(differences(trained, row.config)) - RESUMABLE_CHANGES
  expected = (row.config.train.num_steps, row.config.evaluation.max_examples)
  return report if not different and reported == expected else None


def write_tables(rows: Sequence[Row], root: pathlib.Path) -> None:
  """Writes `table.csv` and `table.md` of all finished rows; a lock keeps other tasks out."""
  with FileLock(root / "table.lock"):  # also released when the process dies
    by_row = {row.name: finished_report(row, root / row.name) for row in rows}
    reports = {name: report for name, report in by_row.items() if report}
    missing = [name for name, report in by_row.items() if not report]
    write_whole(root / "table.csv", csv_table(reports).encode())
    write_whole(root / "table.md", markdown_table(reports, missing).encode())


def run_logged(command: Sequence[str], log: pathlib.Path) -> int:
  """Runs a process to its end and returns its exit code (negative: the signal that killed it).

  Its output is appended to the log. Ctrl-C, SIGTERM and SIGHUP are passed on to the process, which
  saves and ends; a second signal ends it at once. When it has ended, `Interrupted` is raised. The
  process also saves and ends if this one is killed.
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
    for number in received:  # signals that came before the process was started
      process.send_signal(number)
    code = process.wait()
  if received:
    raise Interrupted(
      f"the run that was training has ended, see {log}; the same command goes on from there.",
      received[0],
    )
  return code


def reason(log: pathlib.Path, start: int) -> str:
  """Why a run failed: the last error in its log after byte `start`, or else the last line."""
  with log.open("rb") as file:
    file.seek(start)
    lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
  errors = [line for line in lines if re.match(r"error: |\w+(\.\w+)*Error\b", line)]
  return (errors or lines or ["no output"])[-1].strip()
