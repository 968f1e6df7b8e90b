"""Trains a system and reports on it.

  python train.py
  python train.py --config=FILE[:PRESET[,ablation=NAME]] --config.SECTION.KEY=VALUE --workdir=FOLDER

The default config is configs/digits.py, the default workdir runs/<config file>[-<preset>]. The same
command again resumes. Ctrl-C, SIGTERM or SIGHUP saves and stops. `--help` lists keys and ablations.

On several hosts, which share the workdir, start the same command on each with `--distributed` (TPU
pods, Slurm, Open MPI) or with `--coordinator=HOST:PORT --num_processes=N --process_id=I`.

Exit codes: 0 trained and reported; 1 failed, for example on a loss that is not finite, or trained
and saved but not reported; 2 cannot start as asked; 130, 143 or 129 interrupted by Ctrl-C,
SIGTERM or SIGHUP, and saved.
"""

import pathlib
import sys
from logging import LogRecord

from scae_jax.errors import exit_with_message

DEFAULT_CONFIG = str(pathlib.Path(__file__).parent / "configs" / "digits.py")


def main(arguments: list[str] | None = None) -> None:
  """Trains and reports; `arguments` are those of the command line, None for this process's own."""
  with exit_with_message(process_ends=arguments is None):
    train_and_report(sys.argv[1:] if arguments is None else arguments)


def train_and_report(arguments: list[str]) -> None:
  """`main`, but raises `RunError` instead of exiting."""
  # Slow imports come here, where Ctrl-C already gives a message instead of a traceback.
  from absl import logging

  from scae_jax.config import as_started, describe, parse_command_line
  from scae_jax.interrupt import say
  from scae_jax.training.hosts import is_first, join, keep_compiled, shutdown, use_all_cores
  from scae_jax.training.loop import train
  from scae_jax.training.run import training_saved

  logging.set_verbosity(logging.WARNING)
  logging.get_absl_logger().addFilter(is_not_orbax)
  without_help = [argument for argument in arguments if argument not in ("--help", "-h")]
  command = parse_command_line(without_help, default_config=DEFAULT_CONFIG)
  if without_help != arguments:
    say(f"{as_started(__doc__)}\n{describe(command)}")
    return
  if command.processes is None:
    use_all_cores(command.settings.train.batch_size, command.settings.views)
  else:
    join(command.processes)
  keep_compiled(command.settings.train.compilation_cache)
  run = train(command.settings, command.workdir)
  shutdown()
  if is_first():
    with training_saved(run, command.workdir):
      from scae_jax.page.write import look_inside  # late: it imports slow statistics packages
      from scae_jax.training.reporting import report_run

      look_inside(run, command.workdir, command.workdir)
      report_run(run, command.workdir)  # last: for a sweep, a run with a report is finished


def is_not_orbax(record: LogRecord) -> bool:
  """Drops warnings of Orbax about every wait for the disk; `Checkpoints` reports real errors."""
  return "/orbax/checkpoint/" not in record.pathname


if __name__ == "__main__":
  main()
