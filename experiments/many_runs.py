"""What the commands share that train several systems, score them all and compare them.

Rows are runs; a row's workdir is `<root>/<row>`. The same command goes on where it was stopped and
trains nothing twice, and a run that fails does not stop the others.
"""

import argparse
import pathlib
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from experiments.findings import plain_parser
from scae_jax.training.build import Run, open_run
from scae_jax.training.errors import RunError
from scae_jax.training.sweep import RowsFailed, finished_report, run_rows
from scae_jax.training.sweep_file import Row, check_rows

TRAIN = pathlib.Path(__file__).resolve().parent.parent / "train.py"


def make_parser(description: str | None, data_sets: Iterable[str]) -> argparse.ArgumentParser:
  """A parser of the data set, the folder of results, and how much to train and score."""
  parser = plain_parser(description)
  parser.add_argument("data", choices=sorted(data_sets))
  parser.add_argument("folder", type=pathlib.Path)
  parser.add_argument("--workdir", type=pathlib.Path, help="folder of all runs")
  parser.add_argument("--seeds", type=int, default=1, help="of each run, at once")
  parser.add_argument("--num_steps", type=int, help="of each run, instead of its config's")
  parser.add_argument("--max_examples", type=int, default=0, help="of each scored set; 0 is all")
  return parser


def overrides_of(options: argparse.Namespace) -> dict[str, Any]:
  """What the options change in every config."""
  return {"train.num_steps": options.num_steps} if options.num_steps else {}


def train_and_score(
  rows: Sequence[Row], root: pathlib.Path, score: Callable[[Row, Run], Mapping[str, Any]]
) -> tuple[dict[str, Mapping[str, Any]], RowsFailed | None]:
  """Trains what is not finished, then scores what is.

  Args:
    rows: of all runs.
    root: folder of all runs.
    score: what is to be found of a finished run.

  Returns:
    `{row: what was found}`, and which rows failed; to be raised when the results are written.

  Raises:
    RunError: some rows would be refused, in which case nothing is trained, or none is finished.
  """
  check_rows(rows, root)
  failed = None
  try:
    run_rows(rows, rows, root, [sys.executable, str(TRAIN)])
  except RowsFailed as error:
    failed = error
  results = {}
  for row in rows:
    if finished_report(row, root / row.name):
      results[row.name] = score(row, open_run(root / row.name))
      print(f"{row.name}: scored", flush=True)
  if not results:
    raise failed or RunError(f"no run in {root} is finished.")
  return results, failed


def mean_of(by_seed: Mapping[int, float]) -> float:
  """The mean over seeds."""
  return statistics.mean(by_seed.values())


def num_parameters(run: Run) -> int:
  """Of one seed of a run."""
  first = next(iter(run.variables.values()))
  return sum(leaf.size for leaf in jax.tree.leaves(first))
