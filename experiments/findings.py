"""Shared by the commands: flags, images and file names of a trained run; writing of findings."""

import argparse
import pathlib
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from scae_jax.config import plain_parser
from scae_jax.data.dataset import Dataset
from scae_jax.data.options import DataOptions
from scae_jax.errors import RunError, as_run_errors, exit_with_message
from scae_jax.evaluation.examples import describe_scored, load_split
from scae_jax.evaluation.provenance import hardware, measured_with, recorded_folder, versions
from scae_jax.evaluation.report_figures import save_figure
from scae_jax.files import write_json, write_whole
from scae_jax.training.hosts import keep_compiled
from scae_jax.training.run import Run, open_run
from scae_jax.training.workdir import load_settings


class ImageRun(NamedTuple):
  """A run on images, and the images that a command measures it on."""

  run: Run
  examples: dict[str, np.ndarray]  # as `load_split` returns them
  scored_on: dict[str, Any]  # see `describe_scored`
  sizes: dict[str, int]  # `canvas`, pixels a side, and `batch_size` of the run's evaluation


class Findings(NamedTuple):
  """Results of a command: entries of its record, paragraphs of its text, drawer of its figure."""

  record: Mapping[str, Any]
  paragraphs: Sequence[str]
  draw: Callable[[], Figure] | None = None


# (run, variables of a seed, head of its record) -> findings
Measure = Callable[[ImageRun, Any, dict[str, Any]], Findings]


def run_parser(description: str | None) -> argparse.ArgumentParser:
  """A parser of the run, the checkpoint and the folder of the data set."""
  parser = plain_parser(description)
  parser.add_argument("workdir", type=pathlib.Path)
  parser.add_argument("--step", default="latest", help="a number, latest or best")
  parser.add_argument("--data_dir", default="", help="where the data set is, if elsewhere")
  return parser


def open_named(options: argparse.Namespace) -> Run:
  """Opens the run that the command line names; from here on compiled programs are cached."""
  keep_compiled("")
  changes = {"data.dir": options.data_dir} if options.data_dir else {}
  settings = load_settings(options.workdir, changes=changes)
  return open_run(options.workdir, options.step, settings)


def images_of(run: Run) -> tuple[Dataset, DataOptions, dict[str, int]]:
  """Data set and options of a run on images, and the `canvas` and `batch_size` of evaluation."""
  data = run.settings.data
  if not isinstance(run.dataset, Dataset) or not isinstance(data, DataOptions):
    raise RunError("a run on generated scenes has no images; name a run on images.")
  sizes = {"canvas": data.canvas, "batch_size": run.settings.evaluation.batch_size}
  return run.dataset, data, sizes


def measure_images(
  kind: str, description: str | None, measure: Measure, max_examples: int | None = None
) -> None:
  """The main function of a command that measures each seed of a run on images.

  `kind` is the name of the command and of its files. `max_examples` is the default of the flag;
  with None there is no flag, and all examples are used.
  """
  parser = run_parser(description)
  parser.add_argument("folder", type=pathlib.Path)
  parser.add_argument("--split", default=None, help="of the images, if not the held-out one")
  if max_examples is not None:
    parser.add_argument("--max_examples", type=int, default=max_examples, help="0 is all")
  options = parser.parse_args()
  with exit_with_message(), as_run_errors():
    run = open_named(options)
    dataset, _, sizes = images_of(run)
    split = options.split or dataset.held_out
    examples = load_split(dataset, split, getattr(options, "max_examples", 0))
    scored_on = describe_scored(dataset, split, len(examples["label"]))
    images = ImageRun(run, examples, scored_on, sizes)
    for name, variables, head in each_seed(kind, run, options):
      write_findings(options.folder, name, head, measure(images, variables, head))


def each_seed(
  kind: str, run: Run, options: argparse.Namespace
) -> Iterator[tuple[str, Any, dict[str, Any]]]:
  """Yields for each seed of a run the name of its files, its variables, and its record's head.

  `kind` is the name of the command with hyphens, such as "free-form".
  """
  for seed, variables in run.variables.items():
    suffix = f"-seed-{seed}" if len(run.variables) > 1 else ""
    head = {
      "workdir": recorded_folder(options.workdir),
      "step": run.step,
      "seed": seed,
      "command": command_line(kind.replace("-", "_")),
    }
    yield f"{kind}-{options.workdir.absolute().name}{suffix}", variables, head


def command_line(name: str) -> str:
  """The command line of the experiment of that name, for its record."""
  return shlex.join(["python", "-m", f"experiments.{name}", *sys.argv[1:]])


def write_record(path: pathlib.Path, record: Mapping[str, Any]) -> dict[str, Any]:
  """Writes a record, with versions, hardware and date, into a JSON file; returns it."""
  record = {**record, **measured_with()}
  write_json(path, record)
  return record


def write_findings(
  folder: pathlib.Path, name: str, head: Mapping[str, Any], findings: Findings
) -> None:
  """Writes `<name>.json`, `.md` and, if there is a figure, `.png` into a folder; prints the text.

  The text ends with the `command` in the record's head, the machine and the date.
  """
  record = write_record(folder / f"{name}.json", {**head, **findings.record})
  origin = [
    f"Command: `{record['command']}`.",
    f"{hardware(record)} {versions(record)}",
    f"Measured {record['date'][:10]}.",
  ]
  text = "\n\n".join([*findings.paragraphs, *origin]) + "\n"
  write_whole(folder / f"{name}.md", text.encode())
  print(text, flush=True)
  if findings.draw is not None:
    save_figure(folder / f"{name}.png", findings.draw)
