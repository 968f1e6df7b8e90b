"""Accuracy against the range of rotation seen in training: trains, scores, tables and draws.

    python -m experiments.rotation digits results/probabilistic

Tests whether objects still stand for classes when training images are rotated further and further:
Smith et al. 2020, arXiv 2004.03553, section 5.3 and figure 4. Each of `SYSTEMS` is trained once for
each of `RANGES`, with its config and `SHARED`. `digits` is small enough for two CPU cores; `mnist`
needs a GPU. On `mnist` the SCAE has the loss of the authors' release and 24 parts and objects, as
in the article's appendix C: with more, one digit may take several objects, one for each range of
angles.

Runs are in `runs/rotation-<data>/<system>-<n>`, with training images rotated by up to n degrees
either way; see `many_runs.py`. Each run is scored twice: on test images rotated within its range,
by clusters and probes fitted to training images rotated likewise, and on upright test images, by
clusters and probes fitted to upright ones. Writes `rotation-<data>.md`, `.json` and `.png` into the
folder.
"""

import argparse
import functools
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments import many_runs
from experiments.accuracies import accuracies
from experiments.findings import Findings, images_of
from experiments.many_runs import Results
from scae_jax.data.transfer import rotated
from scae_jax.evaluation.examples import load_split
from scae_jax.evaluation.probes import fit_clusters, fit_probe
from scae_jax.evaluation.scores import MAX_PIXEL_EXAMPLES, PIXEL_STARTS, PIXELS, pixel_features
from scae_jax.evaluation.tables import table
from scae_jax.figures import FIGURES
from scae_jax.training.run import Run
from scae_jax.training.sweep import Row

# Degrees either way, of training images, and of the images that a run is fitted to and scored on.
RANGES = (0, 30, 60, 90, 135, 180)

# Overrides of all systems, by data set.
SHARED = {
  # A square of 16x16 pixels is up to 23 wide when it is turned.
  "digits": {"data.canvas": 24, "data.max_shift": 2},
  "mnist": {"data.canvas": 40, "data.max_shift": 6},
}
# Systems by data set and name: the config and its overrides.
SYSTEMS = {
  "digits": {
    "scae": ("configs/digits.py", {}),
    "probabilistic": ("configs/probabilistic.py:digits", {}),
  },
  "mnist": {
    "scae": ("configs/mnist.py:official", {"model.num_parts": 24, "model.num_objects": 24}),
    "probabilistic": ("configs/probabilistic.py:mnist", {}),
  },
}
# Names, in tables and JSON, of the images that are fitted to and scored on.
ROTATED, UPRIGHT = "turned within the range", "upright"
NUM_CLASSES = 10  # of digits and MNIST alike
# {(kind, such as LIN-MATCH; images; system and features): {range of training, degrees: accuracy in
# [0, 1]}}, of finished runs.
Lines = Mapping[tuple[str, str, str], Mapping[int, float]]


def make_rows(options: argparse.Namespace) -> list[Row]:
  """A run of each system for each range of rotation."""
  ranges = {str(degrees): degrees for degrees in options.ranges}
  return many_runs.rows_of(SYSTEMS[options.data], ranges, SHARED[options.data], options)


def system_and_range(row: str) -> tuple[str, int]:
  """System and range, in degrees, of the name of a row."""
  system, _, degrees = row.rpartition("-")
  return system, int(degrees)


def score_run(
  options: argparse.Namespace,
  run: Run,
  workdir: pathlib.Path,
  *,
  pixels: dict[str, dict[str, float]],
) -> dict[str, Any]:
  """Accuracies of a run on rotated and on upright images, those of their pixels, and its size.

  `pixels` caches the accuracies of pixels by data set.
  """
  dataset, _, sizes = images_of(run)
  turned = rotated(dataset, system_and_range(workdir.name)[1], sizes["canvas"])
  sizes["max_examples"] = options.max_examples
  accuracy, pixel_accuracy, notes = {}, {}, []
  for images, image_set in ((ROTATED, turned), (UPRIGHT, dataset)):
    by_kind = accuracies(run.system, run.variables, image_set, [image_set], **sizes)
    accuracy[images] = {kind: by_set[image_set.name] for kind, by_set in by_kind.items()}
    if image_set.name not in pixels:
      train, test = (
        load_split(image_set, name, options.max_examples) for name in ("train", "test")
      )
      fitted, scored = pixel_features(train, test)
      count = image_set.num_classes
      clusters = fit_clusters(*fitted, num_classes=count, seed=0, num_starts=PIXEL_STARTS)
      probe = fit_probe(*fitted, num_classes=count)
      pixels[image_set.name] = {
        "LIN-MATCH": clusters.accuracy(*scored),
        "LIN-PRED": probe.accuracy(*scored),
      }
    pixel_accuracy[images] = pixels[image_set.name]
    notes += image_set.notes
  return {"accuracy": accuracy, "pixels": pixel_accuracy, "notes": notes, **many_runs.facts_of(run)}


def make_lines(results: Results) -> Lines:
  """Means over seeds, in the order of the table: pixels are below the systems."""
  lines: dict[tuple[str, str, str], dict[int, float]] = {}
  for row, result in results.items():
    system, degrees = system_and_range(row)
    for images, by_way in result["accuracy"].items():
      for way, by_seed in by_way.items():
        kind, _, features = way.partition(", ")
        name = f"{system}, {features.replace('_', ' ')}" if features else system
        lines.setdefault((kind, images, name), {})[degrees] = statistics.mean(by_seed.values())
  for row, result in results.items():
    for images, by_kind in result["pixels"].items():
      for kind, accuracy in by_kind.items():
        lines.setdefault((kind, images, PIXELS), {})[system_and_range(row)[1]] = accuracy
  kinds = list(dict.fromkeys(kind for kind, _, _ in lines))
  order = sorted(lines, key=lambda key: (kinds.index(key[0]), key[1] != ROTATED))
  return {key: lines[key] for key in order}


def table_of(lines: Lines, ranges: Sequence[int]) -> str:
  """Markdown: a row for each line, a column for each range; empty if a run is missing."""
  columns = dict.fromkeys(("scored by", "test images", "of"), "")
  columns |= {f"up to {degrees}": ".1f" for degrees in ranges}
  rows = []
  for key, accuracy in lines.items():
    cells = (100 * accuracy[n] if n in accuracy else None for n in ranges)
    rows.append([*key, *cells])
  return table(columns, rows)


def curves(lines: Lines, ranges: Sequence[int]) -> dict[str, dict[str, np.ndarray]]:
  """Accuracy by range, a panel for each kind and images; NaN if a run is missing."""
  panels: dict[str, dict[str, np.ndarray]] = {}
  for (kind, images, name), accuracy in lines.items():
    values = np.array([accuracy.get(degrees, np.nan) for degrees in ranges])
    panels.setdefault(f"{kind}, test images {images}", {})[name] = values
  return panels


def remarks(results: Results, missing: Sequence[str], record: Mapping[str, Any]) -> list[str]:
  """Sentences on how the table was measured; `record` has `seeds` and `max_examples`."""
  sizes: dict[str, set[tuple[int, int]]] = {}
  for row, result in results.items():
    entry = (result["parameters"], result["steps"])
    sizes.setdefault(system_and_range(row)[0], set()).add(entry)
  limit = record["max_examples"]
  return [
    f"Accuracy in percent, mean over {record['seeds']} seed(s). Each column is of runs whose"
    " training images were rotated by up to that angle either way. Clusters and probes are"
    " fitted to training images that are rotated as the test images are. Chance is"
    f" {100 / NUM_CLASSES:g}.",
    f"{PIXELS.capitalize()}: the same clusters and probe of the images themselves, fitted to at"
    f" most {MAX_PIXEL_EXAMPLES:,} of them.",
    *([f"At most {limit:,} examples of each split."] if limit else []),
    *(
      f"{system}: {parameters:,} parameters, {steps:,} steps."
      for system, entries in sizes.items()
      for parameters, steps in sorted(entries)
    ),
    *many_runs.notes_of(results),
    *([f"Not finished: {', '.join(missing)}."] if missing else []),
  ]


def main() -> None:
  """Trains, scores, writes and prints."""
  parser = many_runs.make_parser(__doc__, SYSTEMS)
  parser.add_argument("--ranges", type=int, nargs="+", default=RANGES, help="degrees, 0 to 180")
  options = parser.parse_args()
  ranges = options.ranges = sorted(set(options.ranges))
  score = functools.partial(score_run, pixels={})

  def describe(results: Results) -> Findings:
    entries = {"ranges": ranges, "seeds": options.seeds, "max_examples": options.max_examples}
    lines = make_lines(results)
    rows = (f"{system}-{degrees}" for system in SYSTEMS[options.data] for degrees in ranges)
    missing = [row for row in rows if row not in results]
    draw = functools.partial(
      FIGURES["viewpoint"],
      np.array(ranges),
      curves(lines, ranges),
      1 / NUM_CLASSES,
      f"{options.data}: range of rotation in training (dotted: chance)",
      across="training images rotated by up to, degrees",
      num_columns=2,
      baselines=(PIXELS,),
    )
    return Findings(entries, [table_of(lines, ranges), *remarks(results, missing, entries)], draw)

  many_runs.run_command("rotation", options, make_rows, score, describe)


if __name__ == "__main__":
  main()
