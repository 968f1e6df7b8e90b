"""One scorer for each kind of model: what is measured of one seed, and what is drawn of it.

A scorer is made once for all seeds. Making it checks what it is given and computes nothing.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from scae_jax.data.batches import evaluation_batch
from scae_jax.data.dataset import Dataset, EvalDataset
from scae_jax.data.scenes import NUM_TEST, Scenes
from scae_jax.evaluation.classification import classify, classify_pairs
from scae_jax.evaluation.collect import (
  MakeBatch,
  answer_collector,
  feature_collector,
  mean_measures,
  num_examples,
  segment_collector,
)
from scae_jax.evaluation.examples import (
  NUM_PICTURED,
  check_transfer,
  choose,
  flat_pixels,
  load_split,
  one_of_each_class,
)
from scae_jax.evaluation.pictures import answer_figures, feature_figures
from scae_jax.evaluation.ransac import ransac
from scae_jax.evaluation.report import Evaluated, Scored, Scorer
from scae_jax.evaluation.scores import Labelled, Scores, labelled, read_each, score, score_each
from scae_jax.evaluation.segmentation import segmentation

# Of the baselines on raw pixels only, which would take minutes on 60,000 x 784 numbers and two
# cores. k-means gives the same figure, the linear one a lower one: the report says how many it was.
MAX_PIXEL_EXAMPLES = 10_000
# Standard deviations of the points, in units of the patterns, whose side is 2.
JITTERS = (0.0, 0.1, 0.25)
NUM_SCENES_PICTURED = 8


def feature_scorer(
  evaluated: Evaluated, dataset: Dataset, scored: EvalDataset, split: str, canvas: int
) -> Scorer:
  """Scores capsule features of images by clusters and linear probes, beside raw pixels.

  Both are always fitted to the training split of the data set that the model was trained on.

  Args:
    evaluated: the model.
    dataset: what it was trained on.
    scored: the data set that is scored.
    split: of it.
    canvas: side of the square that images are padded to, pixels.

  Raises:
    ValueError: an unknown split or a data set that does not fit; from the scorer, features or
      measures that are not finite, or fewer training examples than classes.
  """
  check_transfer(dataset, scored, canvas)
  train_split = load_split(dataset, "train", evaluated.max_examples)
  test_split = load_split(scored, split, evaluated.max_examples)
  train_labels, test_labels = train_split["label"], test_split["label"]
  sizes = {"canvas": canvas, "batch_size": evaluated.batch_size}
  collect = feature_collector(evaluated.system, **sizes)

  def scorer(variables: Any, seed: int) -> Scored:
    train, test = collect(variables, train_split), collect(variables, test_split)
    tests, count = labelled(test["features"], test_labels), dataset.num_classes
    trains = labelled(train["features"], train_labels)
    features = score_each(trains, tests, num_classes=count, seed=seed)
    read_from = labelled(train["readings"], train_labels)
    readings = read_each(read_from, labelled(test["readings"], test_labels), num_classes=count)
    pixels = _score_pixels(train_split, test_split, num_classes=count, seed=seed)
    of_readings = {name: one.entries for name, one in readings.items()}
    every = (*features.values(), *readings.values(), pixels)
    drawers = {}
    for name, one in tests.items():
      drawers |= dict(feature_figures(name, one, features[name], dataset.class_names, seed=seed))
    shown = one_of_each_class(test_labels, NUM_PICTURED)
    pictured = {name: jnp.asarray(values[shown]) for name, values in test_split.items()}
    return Scored(
      sources={
        "fitted_on": _source(dataset, "train", len(train_labels)),
        "scored_on": _source(scored, split, len(test_labels)),
      },
      entries={
        "features": {name: one.entries for name, one in features.items()},
        **({"readings": of_readings} if of_readings else {}),
        "pixels": pixels.entries,
        "measures": mean_measures(test["measures"]),
      },
      notes=(*scored.notes, *(note for one in every for note in one.notes)),
      pictured=evaluation_batch(pictured, jnp.arange(len(shown)), canvas=canvas),
      drawers=drawers,
    )

  return scorer


def answer_scorer(
  evaluated: Evaluated,
  scored: EvalDataset,
  split: str,
  examples: Mapping[str, np.ndarray],
  make_batch: MakeBatch,
) -> Scorer:
  """Scores the answers of a model that classifies by itself: how often right, and how sure.

  Args:
    evaluated: the model; it must have `classify`.
    scored: the data set that the examples are of: its name, classes and notes.
    split: what the split is called.
    examples: its arrays, on the host, one entry an example each.
    make_batch: `(examples, indices) -> batch` with `label` [b], and `other_label` [b] where
      examples have pairs of labels; jittable.

  Raises:
    ValueError: the system does not classify; no examples, or arrays that are not of one length; a
      negative limit; from the scorer, scores or measures that are not finite or of another shape.
  """
  rows = choose(num_examples(examples), evaluated.max_examples)
  sizes = {"num_classes": scored.num_classes, "batch_size": evaluated.batch_size}
  collect = answer_collector(evaluated.system, make_batch, **sizes)
  on_device = {name: jnp.asarray(array) for name, array in examples.items()}

  def scorer(variables: Any, _: int) -> Scored:
    found = collect(variables, on_device, rows)
    scores, labels = found["scores"], found["labels"]
    are_pairs = labels.shape[1] == 2
    answers = classify_pairs(scores, labels) if are_pairs else classify(scores, labels[:, 0])
    measures = mean_measures(found["measures"])
    shown = rows[one_of_each_class(labels[:, 0], NUM_PICTURED)]
    return Scored(
      sources={"scored_on": _source(scored, split, len(rows))},
      entries={"classification": answers.entries(), "measures": measures},
      notes=scored.notes,
      pictured=make_batch(on_device, jnp.asarray(shown)),
      drawers=dict(answer_figures(answers, scored.class_names)),
      class_names=scored.class_names,
    )

  return scorer


def scene_scorer(evaluated: Evaluated, dataset: Scenes) -> Scorer:
  """Scores how well capsules tell the patterns of points apart, by jitter.

  RANSAC, which knows the patterns, stands beside them as the ceiling.

  Args:
    evaluated: the model; it must have `segment`.
    dataset: the scenes that it was trained on; their test scenes are scored.

  Raises:
    ValueError: the system does not segment points, or a negative limit.
  """
  collect = segment_collector(evaluated.system, batch_size=evaluated.batch_size)
  count = len(choose(NUM_TEST, evaluated.max_examples))

  scenes = {jitter: dataset.test_scenes(jitter, count) for jitter in JITTERS}

  @functools.cache  # the same for all seeds
  def ceiling(jitter: float) -> dict[str, float]:
    options = dataclasses.replace(dataset.options, jitter=jitter)
    found = ransac(scenes[jitter]["points"], scenes[jitter]["presence"], options)
    return _agreement(dataset, scenes[jitter], found)

  def scorer(variables: Any, _: int) -> Scored:
    by_jitter = {}
    for jitter, batch in scenes.items():
      found = collect(variables, batch)
      scores = {name: _agreement(dataset, batch, capsule) for name, capsule in found.items()}
      by_jitter[f"{jitter:g}"] = scores | {"ransac": ceiling(jitter)}
    shown = {name: array[:NUM_SCENES_PICTURED] for name, array in scenes[JITTERS[0]].items()}
    return Scored(
      sources={"scored_on": {"dataset": dataset.name, "split": "test", "examples": count}},
      entries={"segmentation": by_jitter},
      notes=("ransac knows the patterns, the ranges of their poses and the jitter.",),
      pictured={name: jnp.asarray(array) for name, array in shown.items()},
    )

  return scorer


def _score_pixels(
  train: Mapping[str, np.ndarray], test: Mapping[str, np.ndarray], *, num_classes: int, seed: int
) -> Scores:
  """`score` of the images' own pixels, fitted to at most `MAX_PIXEL_EXAMPLES` images."""
  rows = choose(len(train["label"]), MAX_PIXEL_EXAMPLES)
  fitted, tested = flat_pixels([{"image": train["image"][rows]}, test])
  pairs = (Labelled(fitted, train["label"][rows]), Labelled(tested, test["label"]))
  found = score("raw pixels", *pairs, num_classes=num_classes, seed=seed, are_capsules=False)
  if len(rows) == len(train["label"]):
    return found
  note = f"raw pixels: fitted on {len(rows):,} of the training images."
  return dataclasses.replace(found, notes=(*found.notes, note))


def _agreement(
  dataset: Scenes, scenes: Mapping[str, np.ndarray], capsule: np.ndarray
) -> dict[str, float]:
  return segmentation(
    scenes["points"],
    scenes["presence"],
    scenes["pattern"],
    capsule,
    num_patterns=len(dataset.options.patterns),
    num_capsules=max(int(capsule.max()) + 1, 1),
  ).means()


def _source(dataset: EvalDataset, split: str, count: int) -> dict[str, Any]:
  return {"dataset": dataset.name, "split": split, "examples": count}
