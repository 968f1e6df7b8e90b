"""What all commands share: their help, their name in a record, and how findings are written."""

import pathlib
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from scae_jax.data.dataset import Dataset
from scae_jax.evaluation.pictures import save_figures
from scae_jax.evaluation.provenance import hardware, measured_with, versions
from scae_jax.files import write_json, write_whole
from scae_jax.training.build import Run
from scae_jax.training.errors import RunError
from scae_jax.training.options import DataOptions


def command_line(name: str) -> str:
  """What was typed to run the command of that name, for its record."""
  return shlex.join(["python", "-m", f"experiments.{name}", *sys.argv[1:]])


def images_of(
  run: Run, refusal: str = "a run on generated scenes has no images; name a run on images."
) -> tuple[Dataset, DataOptions, dict[str, int]]:
  """Data set and options of a run on images, and the `canvas` and `batch_size` of evaluation."""
  data = run.settings.data
  if not isinstance(run.dataset, Dataset) or not isinstance(data, DataOptions):
    raise RunError(refusal)
  sizes = {"canvas": data.canvas, "batch_size": run.settings.evaluation.batch_size}
  return run.dataset, data, sizes


def write_record(path: pathlib.Path, record: Mapping[str, Any]) -> dict[str, Any]:
  """Writes what a command found, and on what it was measured, into a JSON file; returns both."""
  record = {**record, **measured_with()}
  write_json(path, record)
  return record


def write_findings(
  folder: pathlib.Path,
  name: str,
  record: Mapping[str, Any],
  paragraphs: Sequence[str],
  draw: Callable[[], Figure] | None = None,
) -> None:
  """Writes `<name>.json`, `.md` and, of a figure, `.png` into a folder, and prints the text, which
  ends with the record's `command`, the machine and the date."""
  record = write_record(folder / f"{name}.json", record)
  origin = [
    f"Command: `{record['command']}`.",
    f"{hardware(record)} {versions(record)}",
    f"Measured {record['date'][:10]}.",
  ]
  text = "\n\n".join([*paragraphs, *origin]) + "\n"
  write_whole(folder / f"{name}.md", text.encode())
  print(text, flush=True)
  if draw is not None:
    save_figures(folder, {name: draw})
