"""Runs a list of configs, one after another, and writes tables of the results.

  python sweep.py sweeps/digits-ablations.toml
  python sweep.py sweeps/mnist-ablations.toml --workdir=FOLDER --task=2/7

The file lists rows, each a config with overrides and a number of seeds; its form is described in
docs/guide/running.md. All of it is checked before anything runs. Each row is a run of
train.py in <workdir>/<row>, by default runs/<sweep file>/<row>; <workdir>/table.md and table.csv
have mean and standard deviation of all finished rows. If a row fails, only rows that start from it
are left out. The same command again skips finished rows, resumes interrupted ones and tries failed
ones again. Ctrl-C, SIGTERM or SIGHUP saves and stops, a second one stops at once. If the sweep is
killed, its run also saves and stops.

--task=i/n runs every n-th row from the i-th, counted from 0, for example in a Slurm array:

  sbatch --array=0-6 --wrap='python sweep.py sweeps/mnist-ablations.toml \\
    --task=$SLURM_ARRAY_TASK_ID/7'

Exit codes: 0 all rows are finished; 1 some failed; 2 the sweep cannot start as asked; 130, 143 or
129 interrupted.
"""

import pathlib
import sys

from scae_jax.errors import as_run_errors, exit_with_message

TRAIN = pathlib.Path(__file__).parent / "train.py"


def main(arguments: list[str] | None = None) -> None:
  """Runs the sweep that the command line names."""
  with exit_with_message(process_ends=arguments is None), as_run_errors():
    sweep(arguments)


def sweep(arguments: list[str] | None) -> None:
  """`main`, but raises `RunError` instead of exiting."""
  # Slow imports come here, where Ctrl-C already gives a message instead of a traceback.
  import jax
  from absl import logging

  from scae_jax.config import plain_parser
  from scae_jax.files import given_path
  from scae_jax.interrupt import say
  from scae_jax.training.sweep import check_rows, read_sweep, read_task, run_rows

  parser = plain_parser(__doc__)
  parser.add_argument("file", type=given_path, help="sweep file, TOML")
  parser.add_argument("--workdir", type=given_path, help="folder of all runs and the tables")
  parser.add_argument("--task", default="0/1", metavar="i/n", help="run a share of the rows")
  options = parser.parse_args(arguments)
  logging.set_verbosity(logging.WARNING)
  # The checks only trace models: this process must leave the device to the runs.
  jax.config.update("jax_platforms", "cpu")
  root = options.workdir or pathlib.Path("runs") / options.file.stem
  rows = read_sweep(options.file, root)
  mine = read_task(options.task, rows)
  say(f"checking {len(rows)} rows")
  check_rows(rows, root)
  run_rows(mine, rows, root, [sys.executable, str(TRAIN)], say)


if __name__ == "__main__":
  main()
