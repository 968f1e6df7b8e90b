"""The viewpoint report: trains every system upright and turned, and scores all on turned images.

    python -m results.viewpoint digits results/viewpoint

The systems, angles and the rotation in training are in `configs/viewpoint.py`. Runs are in
`runs/viewpoint-<data>/<system>-upright` and `-turned`; the same command goes on where it was
stopped and trains nothing twice, and a run that fails does not stop the others. Writes
`viewpoint-<data>.md`, `.json` and `.png` into the folder.
"""

import functools
import json
import pathlib
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from configs.viewpoint import ANGLES, SHARED, SYSTEMS, TRAINED_ROTATION
from results.many_runs import (
  make_parser,
  mean_of,
  num_parameters,
  overrides_of,
  train_and_score,
  write_findings,
)
from scae_jax.data.dataset import Dataset, ScoredSet
from scae_jax.data.transfer import load_scored
from scae_jax.evaluation.provenance import hardware_and_versions, measured_with
from scae_jax.evaluation.viewpoint import accuracies
from scae_jax.figures import FIGURES
from scae_jax.training.build import Run
from scae_jax.training.compilation import keep_compiled
from scae_jax.training.config import read_settings
from scae_jax.training.errors import exit_with_message, explained
from scae_jax.training.options import DataOptions
from scae_jax.training.sweep_file import Row, make_row

WAYS = {"upright": 0.0, "turned": TRAINED_ROTATION}
# Columns of the table: the two angles of the seed article.
SHOWN_ANGLES = (0, 15, 35)


def make_rows(data: str, seeds: int, overrides: Mapping[str, Any]) -> list[Row]:
  """A run of each system for each way of training."""
  rows = []
  for name, (source, changes) in SYSTEMS[data].items():
    for way, degrees in WAYS.items():
      table = {
        "name": f"{name}-{way}",
        "config": source,
        "seeds": seeds,
        "overrides": {**SHARED[data], **changes, **overrides, "data.max_rotation": degrees},
      }
      rows.append(make_row(f"configs/viewpoint.py, {name}", {}, table))
  return rows


def scored_sets(data: str, options: DataOptions, notes: list[str]) -> Iterator[ScoredSet]:
  """Test images turned by every angle, then those moved by affNIST's maps; adds their notes."""
  folders = (options.dir, options.cache_dir, options.affnist_dir)
  names = [f"rotated_{data}:{angle}" for angle in ANGLES]
  for name in [*names, "affnist" if data == "mnist" else f"affine_{data}"]:
    scored = load_scored(name, options.canvas, *folders, normalize=options.normalize)
    notes += scored.notes
    yield scored


def score_run(data: str, run: Run, workdir: pathlib.Path, max_examples: int) -> dict[str, Any]:
  """Accuracies of a run, its size, and how long an epoch took."""
  settings = read_settings(run.config)
  assert isinstance(settings.data, DataOptions)  # of images, as all of SYSTEMS
  assert isinstance(run.dataset, Dataset)
  notes: list[str] = []
  found = accuracies(
    run.system,
    run.variables,
    run.dataset,
    scored_sets(data, settings.data, notes),
    canvas=settings.data.canvas,
    batch_size=settings.evaluation.batch_size,
    max_examples=max_examples,
  )
  steps_an_epoch = len(run.dataset.splits["train"].labels) / settings.train.batch_size
  return {
    "accuracy": found,
    "notes": notes,
    "parameters": num_parameters(run),
    "steps": run.step,
    "seconds_an_epoch": seconds_a_step(workdir) * steps_an_epoch,
    "config": run.config.to_dict(),
  }


def seconds_a_step(workdir: pathlib.Path) -> float:
  """Median over the lines of training metrics, without compilation and evaluation."""
  lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  speeds = [line["timing"]["steps_per_second"] for line in lines if line["split"] == "train"]
  return 1 / statistics.median(speeds)


def table(data: str, results: Mapping[str, Mapping[str, Any]]) -> str:
  """Markdown: a row for each system, way of training and way of scoring."""
  turned = [f"rotated_{data}:{angle}" for angle in SHOWN_ANGLES]
  names = [f"turned by {angle}" if angle else "upright" for angle in SHOWN_ANGLES] + ["affine"]
  columns = ["system", "trained", "scored by", *names, "parameters", "seconds an epoch"]
  rows = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
  for name, result in results.items():
    system, _, way = name.rpartition("-")
    for kind, by_set in result["accuracy"].items():
      # affNIST's own files or maps like them: its notes say which.
      (affine,) = (name for name in by_set if not name.startswith("rotated_"))
      shares = [mean_of(by_set[name]) for name in (*turned, affine)]
      cells = [system, way, kind, *(f"{100 * share:.1f}" for share in shares)]
      cells += [f"{result['parameters']:,}", f"{result['seconds_an_epoch']:.2f}"]
      rows.append(f"| {' | '.join(cells)} |")
  return "\n".join(rows)


def curves(data: str, results: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, np.ndarray]]:
  """Accuracy by angle for the figure: of every way of training and of every system."""
  found: dict[str, dict[str, np.ndarray]] = {}
  for name, result in results.items():
    system, _, way = name.rpartition("-")
    title = f"trained {way}" + (f", up to {WAYS[way]:g} degrees" if WAYS[way] else "")
    for kind, by_set in result["accuracy"].items():
      line = system if kind == "accuracy" else f"{system}, {kind}"
      values = [mean_of(by_set[f"rotated_{data}:{angle}"]) for angle in ANGLES]
      found.setdefault(title, {})[line] = np.array(values)
  return found


def main() -> None:
  """Trains, scores, writes and prints."""
  options = make_parser(__doc__, SYSTEMS).parse_args()
  with exit_with_message(), explained():
    keep_compiled("")
    root = options.workdir or pathlib.Path("runs") / f"viewpoint-{options.data}"
    rows = make_rows(options.data, options.seeds, overrides_of(options))

    def score(row: Row, run: Run) -> dict[str, Any]:
      return score_run(options.data, run, root / row.name, options.max_examples)

    results, failed = train_and_score(rows, root, score)
    write_report(options.data, options.folder, results, options.seeds)
    if failed:
      raise failed


def remarks(results: Mapping[str, Mapping[str, Any]], seeds: int) -> str:
  """What is to be said beside the table: of training, of the scored sets, and of the machine."""
  of_sets = dict.fromkeys(note for result in results.values() for note in result["notes"])
  measured = measured_with()
  lines = [
    f"Accuracy in percent, mean over {seeds} seed(s). `turned` saw training images turned by up to"
    f" {TRAINED_ROTATION:g} degrees either way. Clusters and probes, of systems that know no"
    " labels, are fitted to upright training images all the same.",
    f"Seconds an epoch are of steps alone, of all {seeds} seed(s) at once.",
    *of_sets,
    hardware_and_versions(measured),
    f"Scored {measured['date'][:10]}.",
  ]
  return "\n\n".join(lines)


def write_report(data: str, folder: pathlib.Path, results: Mapping[str, Any], seeds: int) -> None:
  """Writes table, figure and numbers."""
  record = {"results": results, "angles": ANGLES, **measured_with()}
  text = f"{table(data, results)}\n\n{remarks(results, seeds)}"
  num_classes = 10  # of digits and MNIST alike
  arguments = (np.array(ANGLES), curves(data, results), 1 / num_classes, f"Turned {data}")
  drawer = functools.partial(FIGURES["viewpoint"], *arguments)
  write_findings(folder, f"viewpoint-{data}", record, text, drawer)


if __name__ == "__main__":
  main()
