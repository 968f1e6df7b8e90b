"""The viewpoint report: trains systems on upright and rotated images, scores all on rotated ones.

    python -m experiments.viewpoint digits results/viewpoint

The question is that of an article by Kevin Vu, "Fixing a Major Weakness in Machine Learning of
Images with Hinton's Capsule Networks": does a network that was trained on upright digits recognise
rotated ones? Each system is trained twice, the second time with `data.max_rotation` at
`TRAINED_ROTATION`, and scored on test images rotated by each of `ANGLES`, and under affNIST's maps.
Runs are in `runs/viewpoint-<set>/<system>-upright` and `-turned`; see `many_runs.py`. Writes
`viewpoint-<set>.md`, `.json` and `.png` into the folder, for all systems or, with
`--systems=lenet5,cnn`, for these alone.

`digits` is small enough for two CPU cores. Its baseline has an eighth of the channels and of the
hidden units of configs/cnn.py:baseline, and its matrix capsules are narrow ones.

`mnist` has the images of the expanded set, 40x40 pixels and shifted by up to 6, and needs a GPU.
Layers are as wide as published, but the dense ones see more positions than on 28x28: LeNet-5 has
107,786 parameters (44,426), the CNN baseline 69,704,466 (35,445,522), CapsNet 13,475,648
(8,215,568). Matrix capsules have 68,308 on either, SCAE 3,540,823.

`mnist_small` has MNIST as it is, 28x28 pixels and shifted by up to 2, for two CPU cores: LeNet-5 as
published, and the narrow ones of the others that have labels. Of it LeNet-5 and CapsNet have been
trained (results/viewpoint).
"""

import argparse
import functools
import pathlib
import statistics
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments import many_runs
from experiments.accuracies import ACCURACY, accuracies
from experiments.findings import Findings, images_of
from experiments.many_runs import Results
from scae_jax.data import affnist
from scae_jax.data.dataset import EvalDataset
from scae_jax.data.options import DataOptions
from scae_jax.data.transfer import load_scored
from scae_jax.evaluation.tables import table
from scae_jax.figures import FIGURES
from scae_jax.training.log import read_lines
from scae_jax.training.run import Run
from scae_jax.training.sweep import Row

# Degrees either way, of training images. The test angles of the article, 15 and 35, are within.
TRAINED_ROTATION = 45.0
# Degrees, counter-clockwise.
ANGLES = (0, 5, 10, 15, 20, 25, 30, 35, 45, 60, 75, 90, 105, 120, 135, 150, 165, 180)

# Overrides of all systems, by set.
SHARED = {
  "digits": {"data.name": "digits", "data.canvas": 20, "data.max_shift": 2},
  "mnist": {"data.name": "mnist", "data.canvas": 40, "data.max_shift": 6},
  "mnist_small": {"data.name": "mnist", "data.canvas": 28, "data.max_shift": 2},
}
# Systems by set and name: the config and its overrides.
SYSTEMS = {
  "digits": {
    "lenet5": ("configs/cnn.py:digits", {}),
    "cnn": (
      "configs/cnn.py:digits",
      {
        "model.widths": (32, 32, 16),
        "model.padding": "same",
        "model.pool": 1,
        "model.hidden": (41, 24),
        "model.dropout": 0.5,
        "train.num_steps": 2_000,
      },
    ),
    "capsnet": ("configs/capsnet.py:digits", {}),
    "matrix_capsules": ("configs/matrix_capsules.py:digits_narrow", {}),
    "scae": ("configs/digits.py", {}),
  },
  "mnist": {
    "lenet5": ("configs/cnn.py:lenet5", {}),
    "cnn": ("configs/cnn.py:baseline", {}),
    "capsnet": ("configs/capsnet.py:paper", {}),
    "matrix_capsules": ("configs/matrix_capsules.py:mnist_small", {}),
    "scae": ("configs/mnist.py:official", {}),
  },
  "mnist_small": {
    "lenet5": ("configs/cnn.py:lenet5", {}),
    "cnn": ("configs/cnn.py:small", {}),
    "capsnet": ("configs/capsnet.py:small", {}),
    "matrix_capsules": (
      "configs/matrix_capsules.py:mnist_small",
      {
        # As with coordinate addition in results/supervised, and longer.
        "model.primary_types": 4,
        "model.first_types": 8,
        "model.normalize_poses": True,
        "model.inverse_temperature_limit": 0.03,
        "loss.margin_scale": 200.0,
        "train.num_steps": 5_000,
        "train.batch_size": 32,
        "train.steps_per_dispatch": 20,
        "optimizer.schedule": "cosine",
        "optimizer.decay_steps": 0,
      },
    ),
  },
}
WAYS = {"upright": 0.0, "turned": TRAINED_ROTATION}
# Columns of the table: the two angles of the seed article.
SHOWN_ANGLES = (0, 15, 35)
# Names of systems in the figure.
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
  names = options.systems.split(",") if options.systems else list(systems)
  if unknown := [name for name in names if name not in systems]:
    raise ValueError(
      f"no systems {', '.join(unknown)} in the set {options.data!r}; expected some of "
      f"{', '.join(systems)}, with commas between them"
    )
  chosen = {name: system for name, system in systems.items() if name in names}
  return many_runs.rows_of(chosen, WAYS, SHARED[options.data], options)


def rotated_set(data: str, angle: int) -> str:
  """The name of the test images rotated by an angle."""
  return f"rotated_{SHARED[data]['data.name']}:{angle}"


def scored_sets(data: str, options: DataOptions) -> list[EvalDataset]:
  """Test images rotated by every angle, then those moved by affNIST's maps."""
  source = SHARED[data]["data.name"]
  # affNIST's own files are of 40x40 pixels.
  is_affnist = source == "mnist" and options.canvas >= affnist.SIDE
  affine = "affnist" if is_affnist else f"affine_{source}"
  names = [*(rotated_set(data, angle) for angle in ANGLES), affine]
  return [load_scored(name, options) for name in names]


def score_run(options: argparse.Namespace, run: Run, workdir: pathlib.Path) -> dict[str, Any]:
  """Accuracies of a run, its size, and how long an epoch took."""
  dataset, data_options, sizes = images_of(run)
  sets = scored_sets(options.data, data_options)
  sizes["max_examples"] = options.max_examples
  steps_an_epoch = len(dataset.splits["train"].labels) / run.settings.train.batch_size
  lines = read_lines(workdir / "metrics.jsonl")
  speeds = [line["timing"]["steps_per_second"] for line in lines if line["split"] == "train"]
  return {
    "accuracy": accuracies(run.system, run.variables, dataset, sets, **sizes),
    "notes": [note for scored in sets for note in scored.notes],
    # Of steps alone, without compilation and evaluation.
    "seconds_an_epoch": steps_an_epoch / statistics.median(speeds),
    **many_runs.facts_of(run),
  }


def table_of(data: str, results: Results) -> str:
  """Markdown: a row for each system, way of training and way of scoring."""
  names = [f"turned by {angle}" if angle else "upright" for angle in SHOWN_ANGLES] + ["affine"]
  columns = dict.fromkeys(("system", "trained", "scored by"), "") | dict.fromkeys(names, ".1f")
  columns |= {"parameters": "", "seconds an epoch, as trained": ".2f"}
  rows = []
  for name, result in results.items():
    system, _, way = name.rpartition("-")
    for kind, by_set in result["accuracy"].items():
      # affNIST's official files or maps drawn like them; the notes say which.
      (affine,) = (name for name in by_set if not name.startswith("rotated_"))
      sets = [*(rotated_set(data, angle) for angle in SHOWN_ANGLES), affine]
      shares = (100 * statistics.mean(by_set[name].values()) for name in sets)
      sizes = (result["parameters"], result["seconds_an_epoch"])
      rows.append([system, way, kind, *shares, *sizes])
  return table(columns, rows)


def curves(data: str, results: Results) -> dict[str, dict[str, np.ndarray]]:
  """Accuracy by angle for the figure: of every way of training and of every system."""
  panels = {}
  for name, result in results.items():
    system, _, way = name.rpartition("-")
    title = f"trained {way}" + (f", up to {WAYS[way]:g} degrees" if WAYS[way] else "")
    for kind, by_set in result["accuracy"].items():
      line = NAMES[system] if kind == ACCURACY else f"{NAMES[system]}, {kind}"
      values = [statistics.mean(by_set[rotated_set(data, angle)].values()) for angle in ANGLES]
      panels.setdefault(title, {})[line] = np.array(values)
  return panels


def remarks(results: Results, seeds: int) -> list[str]:
  """Sentences on how the table was measured: training, and the scored sets."""
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

  def describe(results: Results) -> Findings:
    paragraphs = [table_of(options.data, results), *remarks(results, options.seeds)]
    drawer = functools.partial(draw, options.data, results)
    return Findings({"angles": ANGLES}, paragraphs, drawer)

  many_runs.run_command("viewpoint", options, make_rows, score_run, describe)


if __name__ == "__main__":
  main()
