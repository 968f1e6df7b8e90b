"""The viewpoint report: trains every system upright and rotated, and scores all on rotated images.

    python -m experiments.viewpoint digits results/viewpoint

The sets, systems, angles and the rotation in training are in `viewpoint_systems.py`. Runs are in
`runs/viewpoint-<set>/<system>-upright` and `-turned`; see `many_runs.py`. Writes
`viewpoint-<set>.md`, `.json` and `.png` into the folder, of all systems or, with
`--systems=lenet5,cnn`, of these alone.
"""

import argparse
import functools
import pathlib
import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments import many_runs
from experiments.findings import Findings, images_of
from experiments.many_runs import Results
from experiments.viewpoint_systems import ANGLES, SHARED, SYSTEMS, TRAINED_ROTATION
from scae_jax.data import affnist
from scae_jax.data.dataset import EvalDataset
from scae_jax.data.transfer import load_scored
from scae_jax.evaluation.comparison import markdown
from scae_jax.evaluation.viewpoint import ACCURACY, accuracies
from scae_jax.figures import FIGURES
from scae_jax.training.build import Run
from scae_jax.training.metrics import read_lines
from scae_jax.training.options import DataOptions
from scae_jax.training.sweep import Row

WAYS = {"upright": 0.0, "turned": TRAINED_ROTATION}
# Columns of the table: the two angles of the seed article.
SHOWN_ANGLES = (0, 15, 35)
# What lines of the figure are called.
NAMES = {
  "lenet5": "LeNet-5",
  "cnn": "CNN",
  "capsnet": "CapsNet",
  "matrix_capsules": "matrix capsules",
  "scae": "SCAE",
}
NUM_CLASSES = 10  # of digits and MNIST alike


def make_rows(options: argparse.Namespace) -> list[Row]:
  """A run of each system, or of those in `options.systems`, for each way of training."""
  systems = SYSTEMS[options.data]
  named = options.systems.split(",") if options.systems else list(systems)
  if unknown := [name for name in named if name not in systems]:
    raise ValueError(
      f"no systems {', '.join(unknown)} in the set {options.data!r}; expected some of "
      f"{', '.join(systems)}, with commas between them"
    )
  chosen = {name: system for name, system in systems.items() if name in named}
  return many_runs.rows_of(chosen, WAYS, SHARED[options.data], options)


def rotated_set(data: str, angle: int) -> str:
  """The name of the test images rotated by an angle."""
  return f"rotated_{SHARED[data]['data.name']}:{angle}"


def scored_sets(data: str, options: DataOptions, notes: list[str]) -> Iterator[EvalDataset]:
  """Test images rotated by every angle, then those moved by affNIST's maps; adds their notes."""
  folders = (options.dir, options.cache_dir, options.affnist_dir)
  source = SHARED[data]["data.name"]
  # affNIST's own files are of 40x40 pixels.
  is_affnist = source == "mnist" and options.canvas >= affnist.SIDE
  affine = "affnist" if is_affnist else f"affine_{source}"
  for name in [*(rotated_set(data, angle) for angle in ANGLES), affine]:
    scored = load_scored(name, options.canvas, *folders, normalize=options.normalize)
    notes += scored.notes
    yield scored


def score_run(data: str, run: Run, workdir: pathlib.Path, max_examples: int) -> dict[str, Any]:
  """Accuracies of a run, its size, and how long an epoch took."""
  dataset, options, sizes = images_of(run)
  notes: list[str] = []
  sets = scored_sets(data, options, notes)
  sizes["max_examples"] = max_examples
  found = accuracies(run.system, run.variables, dataset, sets, **sizes)
  steps_an_epoch = len(dataset.splits["train"].labels) / run.settings.train.batch_size
  return {
    "accuracy": found,
    "notes": notes,
    "seconds_an_epoch": seconds_a_step(workdir) * steps_an_epoch,
    **many_runs.facts_of(run),
  }


def seconds_a_step(workdir: pathlib.Path) -> float:
  """Median over the lines of training metrics, without compilation and evaluation."""
  lines = read_lines(workdir / "metrics.jsonl")
  speeds = [line["timing"]["steps_per_second"] for line in lines if line["split"] == "train"]
  return 1 / statistics.median(speeds)


def table(data: str, results: Results) -> str:
  """Markdown: a row for each system, way of training and way of scoring."""
  names = [f"turned by {angle}" if angle else "upright" for angle in SHOWN_ANGLES] + ["affine"]
  last = ["parameters", "seconds an epoch, as trained"]
  rows = [["system", "trained", "scored by", *names, *last]]
  for name, result in results.items():
    system, _, way = name.rpartition("-")
    for kind, by_set in result["accuracy"].items():
      # affNIST's own files or maps like them: its notes say which.
      (affine,) = (name for name in by_set if not name.startswith("rotated_"))
      shown = [*(rotated_set(data, angle) for angle in SHOWN_ANGLES), affine]
      shares = (f"{100 * statistics.mean(by_set[one].values()):.1f}" for one in shown)
      cells = [system, way, kind, *shares]
      cells += [f"{result['parameters']:,}", f"{result['seconds_an_epoch']:.2f}"]
      rows.append(cells)
  return markdown(rows)


def curves(data: str, results: Results) -> dict[str, dict[str, np.ndarray]]:
  """Accuracy by angle for the figure: of every way of training and of every system."""
  found = {}
  for name, result in results.items():
    system, _, way = name.rpartition("-")
    title = f"trained {way}" + (f", up to {WAYS[way]:g} degrees" if WAYS[way] else "")
    for kind, by_set in result["accuracy"].items():
      line = NAMES[system] if kind == ACCURACY else f"{NAMES[system]}, {kind}"
      values = [statistics.mean(by_set[rotated_set(data, angle)].values()) for angle in ANGLES]
      found.setdefault(title, {})[line] = np.array(values)
  return found


def remarks(results: Results, seeds: int) -> list[str]:
  """What the table was measured on: training, and the scored sets."""
  return [
    f"Accuracy in percent, mean over {seeds} seed(s). `turned` saw training images rotated by up to"
    f" {TRAINED_ROTATION:g} degrees either way. Clusters and probes, of systems that know no"
    " labels, are fitted to upright training images all the same.",
    f"Seconds an epoch are those of each run's own log, the median of its lines: of steps alone, of"
    f" all {seeds} seed(s) at once, and longer where the machine did other work beside them. They"
    " compare systems only where each trained alone.",
    *many_runs.notes_of(results),
  ]


def draw(data: str, results: Results) -> Figure:
  """Accuracy by angle; lines of clusters and probes are dashed, the article's angles marked."""
  lines = curves(data, results)
  return FIGURES["viewpoint"](
    np.array(ANGLES),
    lines,
    1 / NUM_CLASSES,
    f"Turned {data}",
    dashed={name for by_name in lines.values() for name in by_name} - set(NAMES.values()),
    marked=[angle for angle in SHOWN_ANGLES if angle],
  )


def main() -> None:
  """Trains, scores, writes and prints."""
  parser = many_runs.make_parser(__doc__, SYSTEMS)
  parser.add_argument("--systems", default="", help="names with commas between them; '' is all")
  options = parser.parse_args()

  def score(_: Row, run: Run, workdir: pathlib.Path) -> dict[str, Any]:
    return score_run(options.data, run, workdir, options.max_examples)

  def describe(results: Results) -> Findings:
    paragraphs = [table(options.data, results), *remarks(results, options.seeds)]
    drawer = functools.partial(draw, options.data, results)
    return Findings({"angles": ANGLES}, paragraphs, drawer)

  rows = functools.partial(make_rows, options)
  many_runs.run_command("viewpoint", options, rows, score, describe)


if __name__ == "__main__":
  main()
