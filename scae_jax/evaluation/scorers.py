"""One scorer for each kind of model: the scores and figures of one seed.

A scorer is made once for all seeds. Making it checks the arguments and computes nothing.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from scae_jax.data.batches import evaluation_batch
from scae_jax.data.constellations import NUM_TEST, Scenes
from scae_jax.data.dataset import Dataset, EvalDataset
from scae_jax.data.feed import MakeBatch
from scae_jax.evaluation.checks import check_enough_to_fit
from scae_jax.evaluation.classification import classify
from scae_jax.evaluation.collect import (
  feature_collector,
  make_collector,
  mean_metrics,
  output_collector,
)
from scae_jax.evaluation.examples import (
  NUM_PICTURED,
  check_transfer,
  choose,
  load_split,
  one_of_each_class,
  what_is_scored,
)
from scae_jax.evaluation.ransac import MAX_POINTS, ransac
from scae_jax.evaluation.report import Evaluated, Scored, Scorer
from scae_jax.evaluation.report_figures import answer_figures, feature_figures
from scae_jax.evaluation.scores import (
  PIXELS,
  Features,
  Scores,
  pixel_features,
  score,
  score_linear_probe,
  score_pixels,
)
from scae_jax.evaluation.segmentation import segmentation
from scae_jax.waiting import waiting

# Standard deviations of the points, in units of the patterns, whose side is 2.
JITTERS = (0.0, 0.1, 0.25)
NUM_SCENES_PICTURED = 8


def feature_scorer(
  evaluated: Evaluated, dataset: Dataset, scored: EvalDataset, split: str, canvas: int
) -> Scorer:
  """Scores capsule features of images by clusters and linear probes, beside raw pixels.

  Both are fitted to the training split of `dataset`, which the model was trained on, and scored on
  `split` of `scored`. Raises ValueError for an unknown split, a data set that does not fit the
  model, fewer training examples than classes and, in the scorer, numbers that are not finite.
  """
  check_transfer(dataset, scored, canvas)
  train_split = load_split(dataset, "train", evaluated.max_examples)
  test_split = load_split(scored, split, evaluated.max_examples)
  labels = train_split["label"], test_split["label"]
  check_enough_to_fit(labels[0], dataset.num_classes)
  count, names = dataset.num_classes, dataset.class_names
  collect = feature_collector(evaluated.system, canvas=canvas, batch_size=evaluated.batch_size)

  @functools.cache
  def pixel_probe() -> Scores:
    return score_linear_probe(PIXELS, *pixel_features(train_split, test_split), count)

  def scorer(variables: Any, seed: int) -> Scored:
    outputs = collect(variables, train_split), collect(variables, test_split)

    def pair(kind: str, name: str) -> tuple[Features, Features]:
      train, test = (
        (split_outputs[kind][name], split_labels)
        for split_outputs, split_labels in zip(outputs, labels, strict=True)
      )
      return train, test

    with waiting("fitting clusters and linear classifiers"):
      features = {
        name: score(name, *pair("features", name), count, seed=seed)
        for name in outputs[0]["features"]
      }
      probe_features = {
        name: score_linear_probe(name, *pair("probe_features", name), count)
        for name in outputs[0]["probe_features"]
      }
      pixels = score_pixels(train_split, test_split, count, seed=seed, probe=pixel_probe())
    probe_entries = {name: scores.entries for name, scores in probe_features.items()}
    all_scores = (*features.values(), *probe_features.values(), pixels)
    drawers = {}
    for name, scores in features.items():
      drawers |= feature_figures(name, *pair("features", name)[1], scores, names, seed=seed)
    rows = one_of_each_class(labels[1], NUM_PICTURED)
    pictured = {name: jnp.asarray(values[rows]) for name, values in test_split.items()}
    return Scored(
      sources={
        "fitted_on": what_is_scored(dataset, "train", len(labels[0])),
        "scored_on": what_is_scored(scored, split, len(labels[1])),
      },
      entries={
        "features": {name: scores.entries for name, scores in features.items()},
        **({"readings": probe_entries} if probe_entries else {}),
        "pixels": pixels.entries,
        "metrics": mean_metrics(outputs[1]["metrics"]),
      },
      notes=(*scored.notes, *(note for scores in all_scores for note in scores.notes)),
      pictured=evaluation_batch(pictured, jnp.arange(len(rows)), canvas=canvas),
      drawers=drawers,
      clusters={name: scores.clusters for name, scores in features.items() if scores.clusters},
    )

  return scorer


def answer_scorer(
  evaluated: Evaluated,
  scored: EvalDataset,
  split: str,
  examples: Mapping[str, np.ndarray],
  make_batch: MakeBatch,
) -> Scorer:
  """Scores the answers of a model that classifies by itself: accuracy and calibration.

  `examples` are the arrays of `split` of `scored`, on the host. `make_batch` makes batches of them,
  with `label` [b] and, for pairs, `other_label` [b]. Raises ValueError for a negative limit and, in
  the scorer, for scores and metrics that are not finite.
  """
  rows = choose(len(examples["label"]), evaluated.max_examples)
  collect = output_collector(evaluated.system, make_batch, batch_size=evaluated.batch_size)
  on_device = {name: jnp.asarray(array) for name, array in examples.items()}

  def scorer(variables: Any, _: int) -> Scored:
    outputs = collect(variables, on_device, rows)
    answers = classify(outputs["scores"], outputs["labels"])
    pictured_rows = rows[one_of_each_class(outputs["labels"][:, 0], NUM_PICTURED)]
    return Scored(
      sources={"scored_on": what_is_scored(scored, split, len(rows))},
      entries={"classification": answers.entries(), "metrics": mean_metrics(outputs["metrics"])},
      notes=scored.notes,
      pictured=make_batch(on_device, jnp.asarray(pictured_rows)),
      drawers=answer_figures(answers, scored.class_names),
      class_names=scored.class_names,
    )

  return scorer


def scene_scorer(evaluated: Evaluated, dataset: Scenes) -> Scorer:
  """Scores how well capsules segment points into patterns, at each jitter.

  RANSAC, which knows the patterns, is scored too as the ceiling, unless scenes have too many points
  for it. A system that does not segment points and a negative limit raise ValueError.
  """
  module, segment = evaluated.system.module, evaluated.system.segment
  if segment is None:
    raise ValueError(
      "scenes of points score the segmentation of a system, and this one has no `segment`."
    )
  collect = make_collector(
    lambda variables, batch: segment(module.apply(variables, batch, train=False)),
    lambda scenes, rows: {name: array[rows] for name, array in scenes.items()},
    evaluated.batch_size,
  )
  count = len(choose(NUM_TEST, evaluated.max_examples))
  with waiting("drawing scenes"):
    scenes = {jitter: dataset.test_scenes(jitter, count) for jitter in JITTERS}
  has_ceiling = dataset.slots <= MAX_POINTS
  note = "ransac knows the patterns, the ranges of their poses and the jitter."
  if not has_ceiling:
    note = f"ransac is left out: it takes scenes of at most {MAX_POINTS} points."

  @functools.cache  # the same for all seeds
  def ceiling(jitter: float) -> dict[str, float]:
    options = dataclasses.replace(dataset, jitter=jitter)
    with waiting(f"RANSAC at a jitter of {jitter:g}"):
      groups = ransac(scenes[jitter]["points"], scenes[jitter]["presence"], options)
    return agreement(jitter, groups)

  def agreement(jitter: float, capsule: np.ndarray) -> dict[str, float]:
    presence, pattern = scenes[jitter]["presence"], scenes[jitter]["pattern"]
    return mean_metrics(segmentation(presence, pattern, capsule))

  def scorer(variables: Any, _: int) -> Scored:
    by_jitter = {}
    for jitter, batch in scenes.items():
      capsules = collect(variables, batch)
      scores = {name: agreement(jitter, capsule) for name, capsule in capsules.items()}
      by_jitter[f"{jitter:g}"] = scores | ({"ransac": ceiling(jitter)} if has_ceiling else {})
    pictured = {name: array[:NUM_SCENES_PICTURED] for name, array in scenes[JITTERS[0]].items()}
    return Scored(
      sources={"scored_on": {"dataset": dataset.name, "split": "test", "examples": count}},
      entries={"segmentation": by_jitter},
      notes=(note,),
      pictured={name: jnp.asarray(array) for name, array in pictured.items()},
    )

  return scorer
