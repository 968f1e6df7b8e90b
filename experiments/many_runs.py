"""Shared by the commands that train several systems, score them all and compare them.

Rows are runs; a row's workdir is `<root>/<row>`. The same command continues where it was stopped
and trains nothing twice. A run that fails does not stop the others.
"""

import argparse
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from experiments.findings import Findings, command_line, write_findings
from scae_jax.config import plain_parser
from scae_jax.errors import RunError, as_run_errors, exit_with_message
from scae_jax.files import given_path
from scae_jax.training.hosts import keep_compiled
from scae_jax.training.run import Run, open_run
from scae_jax.training.sweep import (
  Row,
  RowsFailed,
  check_rows,
  finished_report,
  make_row,
  run_rows,
)

# (command line, finished run, its workdir, named as the row) -> results.
Score = Callable[[argparse.Namespace, Run, pathlib.Path], Mapping[str, Any]]
Results = Mapping[str, Mapping[str, Any]]  # by row
Systems = Mapping[str, tuple[str, Mapping[str, Any]]]  # config and its overrides, by name
TRAIN = pathlib.Path(__file__).resolve().parent.parent / "train.py"


def make_parser(description: str | None, data_sets: Iterable[str]) -> argparse.ArgumentParser:
  """A parser of the data set, the folder of results, and how much to train and score."""
  parser = plain_parser(description)
  parser.add_argument("data", choices=sorted(data_sets))
  parser.add_argument("folder", type=pathlib.Path)
  parser.add_argument("--workdir", type=given_path, help="folder of all runs")
  parser.add_argument("--seeds", type=int, default=1, help="of each run, at once")
  parser.add_argument("--num_steps", type=int, help="of each run, instead of its config's")
  parser.add_argument("--max_examples", type=int, default=0, help="of each scored set; 0 is all")
  return parser


def rows_of(
  systems: Systems,
  rotations: Mapping[str, float],
  shared: Mapping[str, Any],
  options: argparse.Namespace,
) -> list[Row]:
  """A run `<system>-<name>` of each system for each named range of rotation, degrees.

  `shared` are overrides of every config, and so are the options of `make_parser`.
  """
  steps = {"train.num_steps": options.num_steps} if options.num_steps is not None else {}
  rows = []
  for system, (source, changes) in systems.items():
    for name, degrees in rotations.items():
      overrides = {**shared, **changes, **steps, "data.max_rotation": float(degrees)}
      table = {"name": f"{system}-{name}", "config": source, "seeds": options.seeds}
      rows.append(make_row({}, {**table, "overrides": overrides}))
  return rows


def run_command(
  kind: str,
  options: argparse.Namespace,
  make_rows: Callable[[argparse.Namespace], Sequence[Row]],
  score: Score,
  describe: Callable[[Results], Findings],
) -> None:
  """Trains the rows that are not finished, scores all that are, writes and prints.

  `kind` is the name of the command, its runs and its files. If the config of any row is invalid,
  nothing is trained. If some rows fail, the results of the others are written before the error is
  raised.
  """
  with exit_with_message(), as_run_errors():
    keep_compiled("")
    # As in sweep.py, this process leaves the device to the runs; it scores on the CPU.
    jax.config.update("jax_platforms", "cpu")
    root = options.workdir or pathlib.Path("runs") / f"{kind}-{options.data}"
    rows = make_rows(options)
    check_rows(rows, root)
    failed = None
    try:
      run_rows(rows, rows, root, [sys.executable, str(TRAIN)])
    except RowsFailed as error:
      failed = error
    results = {}
    for row in rows:
      if finished_report(row, root / row.name):
        results[row.name] = score(options, open_run(root / row.name), root / row.name)
        print(f"{row.name}: scored", flush=True)
    if not results:
      raise failed or RunError(f"no run in {root} is finished.")
    findings = describe(results)
    findings = findings._replace(record={**findings.record, "results": results})
    write_findings(
      options.folder, f"{kind}-{options.data}", {"command": command_line(kind)}, findings
    )
    if failed:
      raise failed


def facts_of(run: Run) -> dict[str, Any]:
  """Entries of a run's result: parameters of one seed, steps, config."""
  first = next(iter(run.variables.values()))
  return {
    "parameters": sum(leaf.size for leaf in jax.tree.leaves(first)),
    "steps": run.step,
    "config": run.config.to_dict(),
  }


def notes_of(results: Results) -> list[str]:
  """The notes of all runs, each sentence once."""
  return list(dict.fromkeys(note for result in results.values() for note in result["notes"]))
