"""One trained model on the same test images from many viewpoints."""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from scae_jax.data.batches import evaluation_batch
from scae_jax.data.dataset import Dataset, EvalDataset
from scae_jax.evaluation.classification import classify
from scae_jax.evaluation.clustering import FittedClusters, fit_clusters, lin_match
from scae_jax.evaluation.collect import answer_collector, feature_collector
from scae_jax.evaluation.examples import flat_pixels, load_split
from scae_jax.evaluation.linear_probe import FittedProbe, fit_probe, lin_pred
from scae_jax.evaluation.scorers import MAX_PIXEL_EXAMPLES
from scae_jax.models.system import System

# What a model that was trained with labels is scored by.
ACCURACY = "accuracy"


def accuracies(
  system: System,
  variables: Mapping[int, Any],
  dataset: Dataset,
  scored: Iterable[EvalDataset],
  *,
  canvas: int,
  batch_size: int,
  max_examples: int = 0,
) -> dict[str, dict[str, dict[int, float]]]:
  """Share of test examples that are classified rightly, of every data set and seed.

  A model that classifies does so. Of the others clusters and a linear probe are fitted, once a
  seed, to the features of the training images as they are, unmoved, as in a report.

  Args:
    system: the model.
    variables: what its module applies, by seed.
    dataset: what it was trained on.
    scored: with a split "test" each; an iterator serves, one set is held at a time.
    canvas: side of the square that images are padded to, pixels.
    batch_size: examples a pass.
    max_examples: use at most so many examples of each split, always the same; 0 is all.

  Returns:
    `{way of scoring: {data set: {seed: accuracy}}}`; the ways are `ACCURACY`, or `LIN-MATCH` and
    `LIN-PRED` of each kind of features, and `LIN-PRED` of each of readings.
  """
  if system.classify is None:
    score = _clusters(system, variables, dataset, canvas, batch_size, max_examples)
  else:
    score = _answers(system, canvas, batch_size, dataset.num_classes)
  results: dict[str, dict[str, dict[int, float]]] = {}
  for one in scored:
    split = load_split(one, "test", max_examples)
    for seed, own in variables.items():
      for way, accuracy in score(seed, own, split).items():
        results.setdefault(way, {}).setdefault(one.name, {})[seed] = accuracy
  return results


def pixel_accuracies(
  dataset: Dataset, scored: EvalDataset, *, max_examples: int = 0
) -> dict[str, float]:
  """What the images' own pixels give where a model's features would stand, in [0, 1].

  Args:
    dataset: to whose training images clusters and a linear probe are fitted, at most
      `scorers.MAX_PIXEL_EXAMPLES` of them; starts of k-means have the seed 0.
    scored: whose test images are scored.
    max_examples: use at most so many examples of each split, always the same; 0 is all.

  Returns:
    `{"LIN-MATCH": accuracy, "LIN-PRED": accuracy}`.
  """
  fitted = load_split(dataset, "train", min(max_examples or MAX_PIXEL_EXAMPLES, MAX_PIXEL_EXAMPLES))
  split = load_split(scored, "test", max_examples)
  train, test = flat_pixels([fitted, split])
  data = (train, fitted["label"], test, split["label"])
  options: dict[str, Any] = {"num_classes": dataset.num_classes, "name": "raw pixels"}
  return {
    "LIN-MATCH": lin_match(*data, seed=0, **options).accuracy,
    "LIN-PRED": lin_pred(*data, **options).accuracy,
  }


def _answers(system: System, canvas: int, batch_size: int, num_classes: int) -> Any:
  make_batch = functools.partial(evaluation_batch, canvas=canvas)
  sizes = {"num_classes": num_classes, "batch_size": batch_size}
  collect = answer_collector(system, make_batch, **sizes)

  def score(_: int, variables: Any, split: Mapping[str, np.ndarray]) -> dict[str, float]:
    found = collect(variables, split)
    return {ACCURACY: float(np.mean(classify(found["scores"], split["label"]).is_right))}

  return score


def _clusters(
  system: System,
  variables: Mapping[int, Any],
  dataset: Dataset,
  canvas: int,
  batch_size: int,
  max_examples: int,
) -> Any:
  collect = feature_collector(system, canvas=canvas, batch_size=batch_size)
  train = load_split(dataset, "train", max_examples)
  fitted = {}
  for seed, own in variables.items():
    found = collect(own, train)
    fitted[seed] = _fit(found, train["label"], num_classes=dataset.num_classes, seed=seed)

  def score(seed: int, own: Any, split: Mapping[str, np.ndarray]) -> dict[str, float]:
    scored = collect(own, split)
    values = scored["features"] | scored["readings"]
    return {
      f"{way}, {name}": one.accuracy(values[name], split["label"])
      for (way, name), one in fitted[seed].items()
    }

  return score


def _fit(
  found: dict[str, Any], labels: np.ndarray, *, num_classes: int, seed: int
) -> dict[tuple[str, str], FittedClusters | FittedProbe]:
  """Clusters and probe of each kind of features, and a probe of each of readings."""
  fitted: dict[tuple[str, str], FittedClusters | FittedProbe] = {}
  for name, values in found["features"].items():
    options: dict[str, Any] = {"num_classes": num_classes, "name": name}
    fitted["LIN-MATCH", name] = fit_clusters(values, labels, seed=seed, **options)
    fitted["LIN-PRED", name] = fit_probe(values, labels, **options)
  for name, values in found["readings"].items():
    fitted["LIN-PRED", name] = fit_probe(values, labels, num_classes=num_classes, name=name)
  return fitted
