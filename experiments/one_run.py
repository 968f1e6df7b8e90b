"""What the commands share that measure one trained run: which run, on which images, file names."""

import argparse
import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from experiments.findings import command_line, plain_parser, write_findings
from scae_jax.data.dataset import Dataset
from scae_jax.evaluation.examples import load_split
from scae_jax.evaluation.provenance import measured_with, recorded_folder
from scae_jax.training.build import Run, open_run
from scae_jax.training.checkpoints import named_checkpoint
from scae_jax.training.compilation import keep_compiled
from scae_jax.training.errors import RunError, exit_with_message, explained
from scae_jax.training.options import DataOptions
from scae_jax.training.workdir import load_settings


def run_parser(description: str | None) -> argparse.ArgumentParser:
  """A parser of the run, the checkpoint and where the data set is."""
  parser = plain_parser(description)
  parser.add_argument("workdir", type=pathlib.Path)
  parser.add_argument("--step", default="latest", help="a number, latest or best")
  parser.add_argument("--data_dir", default="", help="where the data set is, if elsewhere")
  return parser


def open_named(options: argparse.Namespace) -> Run:
  """The run that the command line names; compiled programs are kept from here on."""
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
    scored_on: names of the data set and of the split, and the number of examples.
    sizes: `canvas`, side of the square that the model sees, pixels; and `batch_size`, examples in a
      pass of the run's evaluation.
  """

  run: Run
  examples: dict[str, np.ndarray]
  scored_on: dict[str, Any]
  sizes: dict[str, int]


class Findings(NamedTuple):
  """Of one seed: entries of its record, the paragraphs of its text, the drawer of its figure."""

  record: dict[str, Any]
  paragraphs: Sequence[str]
  draw: Callable[[], Figure] | None = None


# (run, variables of a seed, head of its record, name of its files) -> what was found
Measure = Callable[[ImageRun, Any, dict[str, Any], str], Findings]


def measure_images(
  kind: str, description: str | None, lacks: str, measure: Measure, max_examples: int | None = None
) -> None:
  """A command that measures each seed of one run on images, and writes what it finds.

  Args:
    kind: what the command and its files are called.
    description: for --help.
    lacks: what generated scenes do not have: "no parts to route".
    measure: measures one seed.
    max_examples: default of the flag; None has no flag, and takes all.
  """
  parser = run_parser(description)
  parser.add_argument("folder", type=pathlib.Path)
  parser.add_argument("--split", default=None, help="of the images, if not the held-out one")
  if max_examples is not None:
    parser.add_argument("--max_examples", type=int, default=max_examples, help="0 is all")
  options = parser.parse_args()
  with exit_with_message(), explained():
    images = open_on_images(options, lacks)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, variables, head in each_seed(kind, images.run, options):
      record, paragraphs, draw = measure(images, variables, head, name)
      record = {**head, **record, **measured_with()}
      write_findings(options.folder, name, record, paragraphs, draw)


def open_on_images(options: argparse.Namespace, lacks: str) -> ImageRun:
  """The run that the command line names, and images of its `--split`, or of the held-out one.

  Raises:
    RunError: a run on generated scenes; or as of `open_run`.
  """
  run = open_named(options)
  if not isinstance(run.dataset, Dataset):
    raise RunError(f"a run on generated scenes has {lacks}; name a run on images.")
  settings = run.settings
  assert isinstance(settings.data, DataOptions)  # of images
  split = options.split or run.dataset.held_out
  examples = load_split(run.dataset, split, getattr(options, "max_examples", 0))
  scored_on = {"dataset": run.dataset.name, "split": split, "examples": len(examples["label"])}
  sizes = {"canvas": settings.data.canvas, "batch_size": settings.evaluation.batch_size}
  return ImageRun(run, examples, scored_on, sizes)


def each_seed(
  kind: str, run: Run, options: argparse.Namespace
) -> Iterator[tuple[str, Any, dict[str, Any]]]:
  """Of each seed of a run: what its files are called, its variables, and the head of its record.

  `kind` is that of the findings, after which the command is called: "free-form".
  """
  for seed, variables in run.variables.items():
    several = f"-seed-{seed}" if len(run.variables) > 1 else ""
    yield (
      f"{kind}-{options.workdir.absolute().name}{several}",
      variables,
      {
        "workdir": recorded_folder(options.workdir),
        "step": run.step,
        "seed": seed,
        "command": command_line(kind.replace("-", "_")),
      },
    )
