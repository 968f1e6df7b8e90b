"""What the commands share that measure one trained run: which it is, and what files are called."""

import argparse
import pathlib

from scae_jax.training.build import Run, open_run
from scae_jax.training.checkpoints import named_checkpoint
from scae_jax.training.compilation import keep_compiled
from scae_jax.training.config import change_config
from scae_jax.training.workdir import load_config


def make_parser(description: str | None) -> argparse.ArgumentParser:
  """A parser of the run, the folder of results, the checkpoint and where the data set is."""
  parser = argparse.ArgumentParser(
    description=description, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("workdir", type=pathlib.Path)
  parser.add_argument("folder", type=pathlib.Path)
  parser.add_argument("--step", default="latest", help="a number, latest or best")
  parser.add_argument("--data_dir", default="", help="where the data set is, if elsewhere")
  return parser


def open_named(options: argparse.Namespace) -> Run:
  """The run that the command line names; compiled programs are kept from here on.

  Raises:
    RunError: as of `open_run`.
  """
  keep_compiled("")
  config = load_config(options.workdir)
  change_config(config, {"data.dir": options.data_dir} if options.data_dir else {})
  return open_run(options.workdir, named_checkpoint(options.step), config)


def stem_of(kind: str, run: Run, workdir: pathlib.Path, seed: int) -> str:
  """Name of the files of one seed, without an ending: `<kind>-<workdir>`, and `-seed-<seed>` of a
  run that has several."""
  several = f"-seed-{seed}" if len(run.variables) > 1 else ""
  return f"{kind}-{workdir.absolute().name}{several}"
