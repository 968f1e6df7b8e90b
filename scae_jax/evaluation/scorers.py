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
  read,
  score,
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

  Both are fitted to the training split of `dataset`, which the model was trained on; `split` of
  `scored` is scored. An unknown split and a data set that does not fit raise ValueError; so
  do fewer training examples than classes and, in the scorer, numbers that are not finite.
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
    return read(PIXELS, *pixel_features(train_split, test_split), count)

  def scorer(variables: Any, seed: int) -> Scored:
    found = collect(variables, train_split), collect(variables, test_split)

    def pair(kind: str, name: str) -> tuple[Features, Features]:
      train, test = ((one[kind][name], own) for one, own in zip(found, labels, strict=True))
      return train, test

    with waiting("fitting clusters and linear classifiers"):
      features = {n: score(n, *pair("features", n), count, seed=seed) for n in found[0]["features"]}
      probe_features = {
        n: read(n, *pair("probe_features", n), count) for n in found[0]["probe_features"]
      }
      pixels = score_pixels(train_split, test_split, count, seed=seed, probe=pixel_probe())
    probe_entries = {name: one.entries for name, one in probe_features.items()}
    every = (*features.values(), *probe_features.values(), pixels)
    drawers = {}
    for name, one in features.items():
      drawers |= feature_figures(name, *pair("features", name)[1], one, names, seed=seed)
    shown = one_of_each_class(labels[1], NUM_PICTURED)
    pictured = {name: jnp.asarray(values[shown]) for name, values in test_split.items()}
    return Scored(
      sources={
        "fitted_on": what_is_scored(dataset, "train", len(labels[0])),
        "scored_on": what_is_scored(scored, split, len(labels[1])),
      },
      entries={
        "features": {name: one.entries for name, one in features.items()},
        **({"readings": probe_entries} if probe_entries else {}),
        "pixels": pixels.entries,
        "metrics": mean_metrics(found[1]["metrics"]),
      },
      notes=(*scored.notes, *(note for one in every for note in one.notes)),
      pictured=evaluation_batch(pictured, jnp.arange(len(shown)), canvas=canvas),
      drawers=drawers,
      clusters={name: one.clusters for name, one in features.items() if one.clusters},
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

  `scored` and `split` give names, classes and notes of `examples`, arrays on the host, of which
  `make_batch` makes batches with `label` [b] and, of pairs, `other_label` [b]. A negative limit
  raises ValueError, and in the scorer scores and metrics that are not finite.
  """
  rows = choose(len(examples["label"]), evaluated.max_examples)
  collect = output_collector(evaluated.system, make_batch, batch_size=evaluated.batch_size)
  on_device = {name: jnp.asarray(array) for name, array in examples.items()}

  def scorer(variables: Any, _: int) -> Scored:
    found = collect(variables, on_device, rows)
    answers = classify(found["scores"], found["labels"])
    shown = rows[one_of_each_class(found["labels"][:, 0], NUM_PICTURED)]
    return Scored(
      sources={"scored_on": what_is_scored(scored, split, len(rows))},
      entries={"classification": answers.entries(), "metrics": mean_metrics(found["metrics"])},
      notes=scored.notes,
      pictured=make_batch(on_device, jnp.asarray(shown)),
      drawers=answer_figures(answers, scored.class_names),
      class_names=scored.class_names,
    )

  return scorer


def scene_scorer(evaluated: Evaluated, dataset: Scenes) -> Scorer:
  """Scores how well capsules tell the patterns of points apart, by jitter.

  RANSAC, which knows the patterns, stands beside them as the ceiling, unless scenes have too many
  points for it. A system that does not segment points and a negative limit raise ValueError.
  """
  module, segment = evaluated.system.module, evaluated.system.segment
  if segment is None:
    raise ValueError("the system has no `segment`, so scenes of points cannot score it.")
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
      found = collect(variables, batch)
      scores = {name: agreement(jitter, capsule) for name, capsule in found.items()}
      by_jitter[f"{jitter:g}"] = scores | ({"ransac": ceiling(jitter)} if has_ceiling else {})
    shown = {name: array[:NUM_SCENES_PICTURED] for name, array in scenes[JITTERS[0]].items()}
    return Scored(
      sources={"scored_on": {"dataset": dataset.name, "split": "test", "examples": count}},
      entries={"segmentation": by_jitter},
      notes=(note,),
      pictured={name: jnp.asarray(array) for name, array in shown.items()},
    )

  return scorer
