"""What the commands share that measure one trained run: which it is, on which images, and what
files are called."""

import argparse
import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from experiments.findings import command_line, plain_parser
from scae_jax.data.dataset import Dataset
from scae_jax.evaluation.examples import load_split
from scae_jax.evaluation.provenance import recorded_folder
from scae_jax.training.build import Run, open_run
from scae_jax.training.checkpoints import named_checkpoint
from scae_jax.training.compilation import keep_compiled
from scae_jax.training.errors import RunError
from scae_jax.training.options import DataOptions
from scae_jax.training.workdir import load_settings


def run_parser(description: str | None) -> argparse.ArgumentParser:
  """A parser of the run, the checkpoint and where the data set is."""
  parser = plain_parser(description)
  parser.add_argument("workdir", type=pathlib.Path)
  parser.add_argument("--step", default="latest", help="a number, latest or best")
  parser.add_argument("--data_dir", default="", help="where the data set is, if elsewhere")
  return parser


def make_parser(description: str | None) -> argparse.ArgumentParser:
  """Of the folder of results, too."""
  parser = run_parser(description)
  parser.add_argument("folder", type=pathlib.Path)
  return parser


def image_parser(description: str | None) -> argparse.ArgumentParser:
  """Of the folder of results and the split of images, too."""
  parser = make_parser(description)
  parser.add_argument("--split", default=None, help="of the images, if not the held-out one")
  return parser


def open_named(options: argparse.Namespace) -> Run:
  """The run that the command line names; compiled programs are kept from here on.

  Raises:
    RunError: as of `open_run`.
  """
  keep_compiled("")
  changes = {"data.dir": options.data_dir} if options.data_dir else {}
  settings = load_settings(options.workdir, changes=changes)
  return open_run(options.workdir, named_checkpoint(options.step), settings)


@dataclasses.dataclass(frozen=True)
class ImageRun:
  """A run on images, and those that a command measures it on.

  Attributes:
    run: the run.
    examples: what `load_split` takes.
    scored_on: names of the data set and of the split, and how many examples.
    sizes: `canvas`, side of the square that the model sees, pixels; and `batch_size`, examples in a
      pass of the run's evaluation.
  """

  run: Run
  examples: dict[str, np.ndarray]
  scored_on: dict[str, Any]
  sizes: dict[str, int]


def open_on_images(options: argparse.Namespace, lacks: str, max_examples: int) -> ImageRun:
  """The run that the command line names and images of its `--split`, or of the held-out one; makes
  the folder of results.

  Args:
    options: those of `image_parser`.
    lacks: what generated scenes do not have: "no parts to route".
    max_examples: of the split; 0 is all.

  Raises:
    RunError: a run on generated scenes; or as of `open_run`.
    ValueError: as of `load_split`.
  """
  run = open_named(options)
  if not isinstance(run.dataset, Dataset):
    raise RunError(f"a run on generated scenes has {lacks}; name a run on images.")
  settings = run.settings
  assert isinstance(settings.data, DataOptions)  # of images
  split = options.split or run.dataset.held_out
  examples = load_split(run.dataset, split, max_examples)
  scored_on = {"dataset": run.dataset.name, "split": split, "examples": len(examples["label"])}
  options.folder.mkdir(parents=True, exist_ok=True)
  sizes = {"canvas": settings.data.canvas, "batch_size": settings.evaluation.batch_size}
  return ImageRun(run, examples, scored_on, sizes)


def stem_of(kind: str, run: Run, workdir: pathlib.Path, seed: int) -> str:
  """Name of the files of one seed, without an ending: `<kind>-<workdir>`, and `-seed-<seed>` of a
  run that has several."""
  several = f"-seed-{seed}" if len(run.variables) > 1 else ""
  return f"{kind}-{workdir.absolute().name}{several}"


def each_seed(
  kind: str, run: Run, options: argparse.Namespace
) -> Iterator[tuple[str, Any, dict[str, Any]]]:
  """Of each seed of a run: what its files are called, its variables, and the head of its record.

  Args:
    kind: of the findings, after which the command is called: "free-form".
    run: of one seed or several.
    options: those of `make_parser`.
  """
  for seed, variables in run.variables.items():
    yield (
      stem_of(kind, run, options.workdir, seed),
      variables,
      {
        "workdir": recorded_folder(options.workdir),
        "step": run.step,
        "seed": seed,
        "command": command_line(kind.replace("-", "_")),
      },
    )
