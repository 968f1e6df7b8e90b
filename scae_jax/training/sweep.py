"""Runs the rows of a sweep one after another, and writes tables of those that are finished.

Every row is a process of its own, so that whatever ends it does not end the sweep. The state of a
sweep is in the folders of its rows: one that was killed, or runs in several tasks, goes on from
there. A folder in which another process trains is locked: its row fails, the others go on.

<root>/<row>/            the workdir of the run, see `workdir`
<root>/<row>/train.log   the output of its processes
<root>/table.csv, table.md   of all finished rows, whoever trained them
"""

import contextlib
import fcntl
import pathlib
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from scae_jax.evaluation.comparison import csv_table, markdown_table
from scae_jax.files import read_json, write_whole
from scae_jax.training.config import differences, parse_config
from scae_jax.training.errors import FailedError, Interrupted, RunError
from scae_jax.training.sweep_file import Row
from scae_jax.training.workdir import RESUMABLE_CHANGES


class RowsFailed(FailedError):
  """Some rows of a sweep have no report; the message says which and why."""


def read_task(text: str, rows: Sequence[Row]) -> list[Row]:
  """The rows of task i of n, `i/n`: every n-th from the i-th, both counted from 0."""
  match = re.fullmatch(r"(\d+)/(\d+)", text)
  if not match or int(match[1]) >= int(match[2]):
    raise RunError(f"--task must be i/n, with i from 0 to n - 1; it is {text!r}.")
  return list(rows[int(match[1]) :: int(match[2])])


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
  for number, row in enumerate(mine, start=1):
    workdir, where = root / row.name, f"{number}/{len(mine)} {row.name}"
    if finished_report(row, workdir):
      say(f"{where}: finished before")
      continue
    log = workdir / "train.log"
    say(f"{where}: training, see {log}")
    workdir.mkdir(exist_ok=True)
    started, start = time.monotonic(), log.stat().st_size if log.exists() else 0
    code = run_logged([*command, *row.arguments, f"--workdir={workdir}"], log)
    minutes = (time.monotonic() - started) / 60
    if code == 0 and finished_report(row, workdir):
      say(f"{where}: finished in {minutes:.1f} min")
    else:
      failures.append(f"{row.name}: exit code {code}, {reason(log, start)}")
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
    trained = parse_config(report["provenance"]["config"])
    facts = (report["step"], report["max_examples"])
    markdown_table({row.name: report})  # what a table takes of it is there
    csv_table({row.name: report})
  except (ValueError, LookupError, TypeError, AttributeError):
    return None  # none, or one that the run will write again
  # `RESUMABLE_CHANGES` do not change the figures, except the length, which is compared below.
  different = set(differences(trained, row.config)) - RESUMABLE_CHANGES
  asked = (row.config.train.num_steps, row.config.evaluation.max_examples)
  return report if not different and facts == asked else None


def write_tables(rows: Sequence[Row], root: pathlib.Path) -> None:
  """Writes `table.csv` and `table.md` of all rows that are finished now; tasks take turns."""
  with (root / "table.lock").open("a") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed, or the process dies
    found = {row.name: finished_report(row, root / row.name) for row in rows}
    reports = {name: report for name, report in found.items() if report}
    missing = [name for name, report in found.items() if not report]
    write_whole(root / "table.csv", csv_table(reports).encode())
    write_whole(root / "table.md", markdown_table(reports, missing).encode())


def run_logged(command: Sequence[str], log: pathlib.Path) -> int:
  """Runs a process to its end and returns its exit code (negative: the signal that killed it).

  Its output is added to the log. Ctrl-C and SIGTERM are passed on to the process, which saves and
  ends; a second one ends it at once. `Interrupted` is raised when the process has ended.
  """
  received: list[int] = []
  processes: list[subprocess.Popen] = []

  def pass_on(number: int, _: object) -> None:
    received.append(number)
    for process in processes:
      process.send_signal(number)

  with contextlib.ExitStack() as stack:
    file = stack.enter_context(log.open("ab"))
    for number in (signal.SIGINT, signal.SIGTERM):
      stack.callback(signal.signal, number, signal.signal(number, pass_on))
    process = subprocess.Popen(
      command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
    )
    processes.append(process)
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
