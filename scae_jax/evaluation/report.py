"""The report on one set of parameters: figures to quote, figures to look at, a table to read.

Clusters and probes are always fitted on the training split of the data set that the model was
trained on; what is scored may be another split or another data set.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from scae_jax.data.batches import evaluation_batch
from scae_jax.data.dataset import Dataset, ScoredSet
from scae_jax.evaluation.examples import (
  NUM_PICTURED,
  check_transfer,
  choose,
  flat_pixels,
  load_split,
  one_of_each_class,
)
from scae_jax.evaluation.features import Forward, collect, make_forward, mean_measures
from scae_jax.evaluation.files import make_writable, seed_folders, write_json
from scae_jax.evaluation.pictures import (
  curve_figures,
  feature_figures,
  model_figures,
  save_figures,
)
from scae_jax.evaluation.provenance import measured_with
from scae_jax.evaluation.scores import Labelled, labelled, read_each, score, score_each
from scae_jax.evaluation.summary import write_summary
from scae_jax.evaluation.table import print_table
from scae_jax.models.system import System

# Of the baselines on raw pixels only, which would take minutes on 60,000 x 784 numbers and two
# cores. k-means gives the same figure, the linear one a lower one: the report says how many it was.
MAX_PIXEL_EXAMPLES = 10_000


def write_reports(
  directory: str | pathlib.Path,
  system: System,
  variables: Mapping[int, Any],
  dataset: Dataset,
  *,
  canvas: int,
  **options: Any,
) -> dict[int, dict[str, Any]]:
  """`write_report` of every seed of a run; of several, each in `seed-<number>` and one summary.

  Args:
    directory: where to write; made if need be.
    system: the model.
    variables: what its module applies, by seed.
    dataset: as for `write_report`.
    canvas: as for `write_report`.
    **options: its other arguments.

  Returns:
    The content of each seed's `metrics.json`.
  """
  directory = pathlib.Path(directory)
  forward = make_forward(system, canvas=canvas)  # compiled once for all seeds
  reports = {}
  for seed, folder in seed_folders(directory, variables).items():
    own = variables[seed]
    reports[seed] = write_report(
      folder, system, own, dataset, canvas=canvas, seed=seed, forward=forward, **options
    )
  if len(reports) > 1:
    write_summary(directory, reports)
  return reports


def write_report(
  directory: str | pathlib.Path,
  system: System,
  variables: Any,
  dataset: Dataset,
  *,
  canvas: int,
  batch_size: int,
  seed: int,
  step: int,
  split: str = "test",
  max_examples: int = 0,
  provenance: dict[str, Any] | None = None,
  scored_dataset: ScoredSet | None = None,
  history: str | pathlib.Path | None = None,
  forward: Forward | None = None,
) -> dict[str, Any]:
  """Evaluates a model, writes `metrics.json` and PNG figures, and prints a table to stdout.

  `metrics.json` is written as soon as the numbers are there, before the figures are drawn, and is
  at every moment whole. Features stand in alphabetical order, and so do readings, if the system has
  any.

  Args:
    directory: where to write; made if need be.
    system: the model.
    variables: what its module applies.
    dataset: what the model was trained on; its split "train" is fitted to.
    canvas: side of the square that images are padded to, pixels.
    batch_size: examples a pass.
    seed: of the run, of k-means' starts and of t-SNE.
    step: training step of the parameters.
    split: which split is scored.
    max_examples: use at most so many examples to fit and so many to score, always the same; 0 is
      all.
    provenance: more entries for `metrics.json`, such as the config's name.
    scored_dataset: what to score on when it is not `dataset`.
    history: `metrics.jsonl` of the training run; drawn as curves if the file is there.
    forward: `make_forward(system, canvas=canvas)`, if it is shared.

  Returns:
    The content of `metrics.json`.

  Raises:
    ValueError: an unknown split, a data set that does not fit, features or measures that are not
      finite, fewer training examples than classes.
    OSError: the directory cannot be written to; found before anything is computed.
  """
  directory = pathlib.Path(directory)
  scored_dataset = scored_dataset or dataset
  check_transfer(dataset, scored_dataset, canvas)
  train_split = load_split(dataset, "train", max_examples)
  test_split = load_split(scored_dataset, split, max_examples)
  make_writable(directory)

  forward = forward or make_forward(system, canvas=canvas)
  sizes = {"canvas": canvas, "batch_size": batch_size, "forward": forward}
  train = collect(system, variables, train_split, **sizes)
  test = collect(system, variables, test_split, **sizes)
  num_classes = dataset.num_classes
  tests = labelled(test.features, test_split["label"])
  trains = labelled(train.features, train_split["label"])
  scores = score_each(trains, tests, num_classes=num_classes, seed=seed)
  readings = read_each(
    labelled(train.readings, train_split["label"]),
    labelled(test.readings, test_split["label"]),
    num_classes=num_classes,
  )
  rows = choose(len(train_split["label"]), MAX_PIXEL_EXAMPLES)
  pixels, test_pixels = flat_pixels([{"image": train_split["image"][rows]}, test_split])
  pixel_scores = score(
    "raw pixels",
    Labelled(pixels, train_split["label"][rows]),
    Labelled(test_pixels, test_split["label"]),
    num_classes=num_classes,
    seed=seed,
    are_capsules=False,
  )
  notes = list(scored_dataset.notes)
  notes += [
    note for one in (*scores.values(), *readings.values(), pixel_scores) for note in one.notes
  ]
  if len(rows) < len(train_split["label"]):
    notes.append(f"raw pixels: fitted on {len(rows):,} of the training images.")
  metrics = {
    "fitted_on": _source(dataset, "train", train_split),
    "scored_on": _source(scored_dataset, split, test_split),
    "max_examples": max_examples,
    "step": int(step),
    "seed": int(seed),
    "features": {name: one.entries for name, one in scores.items()},
    **({"readings": {name: one.entries for name, one in readings.items()}} if readings else {}),
    "pixels": pixel_scores.entries,
    "measures": mean_measures(test.measures),
    "notes": notes,
    **measured_with(),
    "provenance": provenance or {},
  }
  write_json(directory / "metrics.json", metrics)
  print_table(metrics)

  shown = one_of_each_class(test_split["label"], NUM_PICTURED)
  pictured = {name: jnp.asarray(values[shown]) for name, values in test_split.items()}
  batch = evaluation_batch(pictured, jnp.arange(len(shown)), canvas=canvas)
  drawers = dict(model_figures(system, variables, batch))
  for name, test in tests.items():
    drawers |= feature_figures(name, test, scores[name], dataset.class_names, seed=seed)
  drawers |= dict(curve_figures(history, seed))
  save_figures(directory, drawers)
  return metrics


def _source(dataset: ScoredSet, split: str, examples: dict[str, np.ndarray]) -> dict[str, Any]:
  return {"dataset": dataset.name, "split": split, "examples": len(examples["label"])}
