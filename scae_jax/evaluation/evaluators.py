"""One evaluator for each kind of model: yields the numbers and figures of a report.

An evaluator goes through all seeds and yields the items of a report (`items.Item`), each with its
seed. It does nothing before the first item is asked for.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from scae_jax.data.batches import evaluation_batch
from scae_jax.data.constellations import NUM_TEST, Scenes
from scae_jax.data.dataset import Dataset, EvalDataset
from scae_jax.data.feed import MakeBatch
from scae_jax.evaluation.checks import check_enough_to_fit
from scae_jax.evaluation.classification import classify
from scae_jax.evaluation.clusters import FILE as CLUSTERS_FILE
from scae_jax.evaluation.clusters import clusters_json
from scae_jax.evaluation.displacement import accuracies_by_displacement, moves_ink
from scae_jax.evaluation.encode import encode_dataset, mean_metrics, measure_dataset
from scae_jax.evaluation.examples import (
  NUM_PICTURED,
  choose,
  describe_scored,
  load_split,
  one_of_each_class,
)
from scae_jax.evaluation.items import Entry, File, Item, Pictured
from scae_jax.evaluation.moved_parts import (
  named_by_images,
  right_when_parts_move,
  right_winners,
)
from scae_jax.evaluation.probes import fit_clusters, fit_encoding, fit_probe
from scae_jax.evaluation.ransac import MAX_POINTS, ransac
from scae_jax.evaluation.report import Evaluated
from scae_jax.evaluation.report_figures import answer_figures, feature_figures
from scae_jax.evaluation.scores import (
  PIXEL_STARTS,
  PIXELS,
  cluster_entries,
  notes_of,
  pixel_features,
  probe_entries,
  use_entries,
)
from scae_jax.evaluation.segmentation import segmentation
from scae_jax.models.system import Numbers
from scae_jax.waiting import waiting

# Standard deviations of the points, in units of the patterns, whose side is 2.
JITTERS = (0.0, 0.1, 0.25)
NUM_SCENES_PICTURED = 8
MAX_MOVED = 1_000  # images whose parts are moved


def evaluate_features(
  evaluated: Evaluated, dataset: Dataset, scored: EvalDataset, split: str, canvas: int
) -> Iterator[Item]:
  """Scores capsule features of images by clusters and linear probes, beside raw pixels.

  Both are fitted to the training split of `dataset`, which the model was trained on, and scored on
  `split` of `scored`. Raises ValueError for fewer training examples than classes and for numbers
  that are not finite.
  """
  train = load_split(dataset, "train", evaluated.max_examples)
  test = load_split(scored, split, evaluated.max_examples)
  train_labels, test_labels = train["label"], test["label"]
  class_names, num_classes = dataset.class_names, dataset.num_classes
  check_enough_to_fit(train_labels, num_classes)
  shown_rows = one_of_each_class(test_labels, NUM_PICTURED)
  make_batch = functools.partial(evaluation_batch, canvas=canvas)
  passes = {"make_batch": make_batch, "batch_size": evaluated.batch_size}
  train_pixels, test_pixels = pixel_features(train, test)
  pixel_probe = None
  for seed, variables in evaluated.variables.items():
    fitted = encode_dataset(evaluated.system, variables, train, **passes)
    measured = measure_dataset(evaluated.system, variables, test, **passes)
    features, notes = {}, list(scored.notes)
    is_right = {}  # whether each image is named rightly, by each fit
    with waiting("fitting clusters and linear classifiers"):
      clusters, probes = fit_encoding(fitted, train_labels, num_classes=num_classes, seed=seed)
      for name, activations in measured.encoding.features.items():
        test_features = np.asarray(activations), test_labels
        features[name] = {
          **cluster_entries(clusters[name], test_features),
          **probe_entries(probes[name], test_features),
          **use_entries(name, test_features[0]),
        }
        for way, fit in (("LIN-MATCH", clusters[name]), ("LIN-PRED", probes[name])):
          is_right[f"{way}, {name}"] = fit.predict(test_features[0]) == test_labels
      probe_features = {
        name: probe_entries(probes[name], (np.asarray(values), test_labels))
        for name, values in measured.encoding.probe_features.items()
      }
      notes += notes_of(*clusters.values(), *probes.values())
      starts = {"num_starts": PIXEL_STARTS, "name": PIXELS}
      pixel_clusters = fit_clusters(*train_pixels, num_classes=num_classes, seed=seed, **starts)
      pixel_probe = pixel_probe or fit_probe(*train_pixels, num_classes=num_classes, name=PIXELS)
      notes += notes_of(pixel_clusters, pixel_probe)
    if evaluated.system.encode_moved is not None:
      keeps = _keep_their_label(evaluated, variables, test, canvas)
      notes.append(
        f"Objects keep the label of {keeps['kept']:.1%} of images when their parts move by"
        f" {keeps['pixels']:g} pixels, a quarter of the canvas; {keeps['unmoved']:.1%} have it"
        " unmoved."
      )
      yield Entry(seed, "moved_parts", keeps)
    if len(train_pixels[1]) < len(train_labels):
      notes.append(f"{PIXELS}: fitted on {len(train_pixels[1]):,} of the training images.")
    yield Entry(seed, "fitted_on", describe_scored(dataset, "train", len(train_labels)))
    yield Entry(seed, "scored_on", describe_scored(scored, split, len(test_labels)))
    yield Entry(seed, "features", features)
    if probe_features:
      yield Entry(seed, "readings", probe_features)
    pixel_entries = cluster_entries(pixel_clusters, test_pixels)
    yield Entry(seed, "pixels", pixel_entries | probe_entries(pixel_probe, test_pixels))
    yield Entry(seed, "metrics", mean_metrics(measured.metrics))
    if moves_ink(scored.name):
      by_range = accuracies_by_displacement(test["image"], is_right)
      yield Entry(seed, "by_displacement", by_range)
    yield Entry(seed, "notes", notes)
    yield Pictured(seed, make_batch(test, shown_rows))
    kinds = {name: fit.clusters for name, fit in clusters.items() if fit.clusters is not None}
    if kinds:
      yield File(seed, CLUSTERS_FILE, clusters_json(kinds, evaluated.step, seed))
    for name, entries in features.items():
      activations = np.asarray(measured.encoding.features[name])
      yield from feature_figures(seed, name, activations, test_labels, entries, class_names)


def _keep_their_label(
  evaluated: Evaluated, variables: Any, test: Mapping[str, np.ndarray], canvas: int
) -> dict[str, float]:
  """How often the winning object has the image's label when the parts' poses alone are moved.

  By a quarter of the canvas, in four directions; `experiments.equivariance` measures more.
  """
  rows, pixels = choose(len(test["label"]), MAX_MOVED), canvas / 4
  labels = np.asarray(test["label"])[rows]
  encode = functools.partial(
    encode_dataset,
    evaluated.system,
    variables,
    test,
    functools.partial(evaluation_batch, canvas=canvas),
    batch_size=evaluated.batch_size,
    rows=rows,
  )
  before = encode()
  label_of_object = named_by_images(before, labels)
  return {
    "pixels": pixels,
    "unmoved": float(right_winners(before, labels, label_of_object).mean()),
    "kept": right_when_parts_move(encode, labels, label_of_object, "translation", pixels, canvas),
  }


def evaluate_answers(
  evaluated: Evaluated,
  scored: EvalDataset,
  split: str,
  examples: Mapping[str, np.ndarray],
  make_batch: MakeBatch,
) -> Iterator[Item]:
  """Scores the answers of a model that is trained with labels: accuracy and calibration.

  `examples` are the arrays of `split` of `scored`. `make_batch` makes batches of them, with `label`
  [b] and, for pairs, `other_label` [b]; both answers to a pair count. Raises ValueError for scores
  and metrics that are not finite.
  """
  rows = choose(len(examples["label"]), evaluated.max_examples)
  for seed, variables in evaluated.variables.items():
    encoding, metrics, labels = measure_dataset(
      evaluated.system,
      variables,
      examples,
      make_batch,
      batch_size=evaluated.batch_size,
      rows=rows,
    )
    labels = np.asarray(labels)
    answers = classify(np.asarray(encoding.scores), labels)
    yield Entry(seed, "scored_on", describe_scored(scored, split, len(rows)))
    yield Entry(seed, "classification", answers.entries())
    yield Entry(seed, "metrics", mean_metrics(metrics))
    if moves_ink(scored.name):
      is_right = {"accuracy": np.all(answers.is_right, axis=1)}
      by_range = accuracies_by_displacement(examples["image"][rows], is_right)
      yield Entry(seed, "by_displacement", by_range)
    yield Entry(seed, "notes", list(scored.notes))
    shown_rows = rows[one_of_each_class(labels[:, 0], NUM_PICTURED)]
    yield Pictured(seed, make_batch(examples, shown_rows), scored.class_names)
    yield from answer_figures(seed, answers, scored.class_names)


def evaluate_scenes(evaluated: Evaluated, dataset: Scenes) -> Iterator[Item]:
  """Scores how well capsules segment points into patterns, at each jitter.

  Points belong to capsules by `true_presence` and `predicted_presence`, see `segmentation`. RANSAC,
  which knows the patterns, is scored too as the ceiling, unless scenes have too many points for it.
  Raises ValueError for a system that does not segment points.
  """
  count = len(choose(NUM_TEST, evaluated.max_examples))
  with waiting("drawing scenes"):
    scenes = {jitter: dataset.test_scenes(jitter, count) for jitter in JITTERS}
  has_ceiling = dataset.slots <= MAX_POINTS
  note = "ransac knows the patterns, the ranges of their poses and the jitter."
  if not has_ceiling:
    note = f"ransac is left out: it takes scenes of at most {MAX_POINTS} points."
  ceilings: dict[float, dict[str, float]] = {}  # the same for all seeds
  for seed, variables in evaluated.variables.items():
    by_jitter = {}
    for jitter, examples in scenes.items():
      encoding = encode_dataset(
        evaluated.system, variables, examples, _scenes, batch_size=evaluated.batch_size
      )
      if encoding.point_winner is None or encoding.groups is None:
        raise ValueError(
          "scenes of points score the segmentation of a system, and the encoding of this one has no"
          " `groups` and `point_winner`."
        )
      scores = {
        "true_presence": _agreement(examples, encoding.point_winner),
        "predicted_presence": _agreement(examples, encoding.groups),
      }
      if has_ceiling and jitter not in ceilings:
        with waiting(f"RANSAC at a jitter of {jitter:g}"):
          options = dataclasses.replace(dataset, jitter=jitter)
          patterns = ransac(examples["points"], examples["presence"], options)
        ceilings[jitter] = _agreement(examples, patterns)
      by_jitter[f"{jitter:g}"] = scores | ({"ransac": ceilings[jitter]} if has_ceiling else {})
    scored_on = {"dataset": dataset.name, "split": "test", "examples": count}
    yield Entry(seed, "scored_on", scored_on)
    yield Entry(seed, "segmentation", by_jitter)
    yield Entry(seed, "notes", [note])
    yield Pictured(seed, _scenes(scenes[JITTERS[0]], np.arange(min(count, NUM_SCENES_PICTURED))))


def _scenes(examples: Mapping[str, Any], rows: Any) -> dict[str, Any]:
  return {name: array[rows] for name, array in examples.items()}


def _agreement(scenes: Mapping[str, np.ndarray], capsule: Numbers) -> dict[str, float]:
  scores = segmentation(scenes["presence"], scenes["pattern"], np.asarray(capsule))
  return mean_metrics(scores)
