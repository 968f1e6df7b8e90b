"""One trained model on the same test images from many viewpoints."""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from scae_jax.data.batches import evaluation_batch
from scae_jax.data.dataset import Dataset, EvalDataset
from scae_jax.evaluation.classification import classify
from scae_jax.evaluation.collect import answer_collector, feature_collector
from scae_jax.evaluation.examples import load_split
from scae_jax.evaluation.probes import Fit, fit_clusters, fit_probe
from scae_jax.models.system import System

ACCURACY = "accuracy"  # of a model that was trained with labels


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
  """Share of test examples that are classified correctly, of every data set and seed.

  Of a model without `classify`, clusters and a linear probe are fitted to the features of the
  training images of `dataset`, once a seed. `scored` may be an iterator, of which one set is held
  at a time. Of each split `max_examples` are used, 0 for all.

  Returned is `{way of scoring: {data set: {seed: accuracy}}}`; the ways are `ACCURACY`, or
  `LIN-MATCH` and `LIN-PRED` of each kind of features, and `LIN-PRED` of each of readings.
  """
  fitted = {}
  if system.classify is None:
    collect = feature_collector(system, canvas=canvas, batch_size=batch_size)
    train = load_split(dataset, "train", max_examples)
    for seed, own in variables.items():
      fitted[seed] = _fit(collect(own, train), train["label"], dataset.num_classes, seed)
  else:
    make_batch = functools.partial(evaluation_batch, canvas=canvas)
    collect = answer_collector(system, make_batch, batch_size=batch_size)
  results: dict[str, dict[str, dict[int, float]]] = {}
  for one in scored:
    split = load_split(one, "test", max_examples)
    for seed, own in variables.items():
      found = collect(own, split)
      if fitted:
        values = found["features"] | found["readings"]
        shares = {
          f"{way}, {name}": fit.accuracy(values[name], split["label"])
          for (way, name), fit in fitted[seed].items()
        }
      else:
        shares = {ACCURACY: classify(found["scores"], found["labels"]).entries()["accuracy"]}
      for way, share in shares.items():
        results.setdefault(way, {}).setdefault(one.name, {})[seed] = share
  return results


def _fit(
  found: dict[str, Any], labels: np.ndarray, num_classes: int, seed: int
) -> dict[tuple[str, str], Fit]:
  """Clusters and probe of each kind of features, and a probe of each of readings."""
  fitted = {}
  for name, values in (found["features"] | found["readings"]).items():
    options: dict[str, Any] = {"num_classes": num_classes, "name": name}
    if name in found["features"]:
      fitted["LIN-MATCH", name] = fit_clusters(values, labels, seed=seed, **options)
    fitted["LIN-PRED", name] = fit_probe(values, labels, **options)
  return fitted
