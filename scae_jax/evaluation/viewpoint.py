"""Accuracies of one trained model on several data sets, such as images from many viewpoints."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scae_jax.data.batches import evaluation_batch
from scae_jax.data.dataset import Dataset, EvalDataset
from scae_jax.evaluation.classification import classify
from scae_jax.evaluation.encode import encode_dataset
from scae_jax.evaluation.examples import load_split
from scae_jax.evaluation.probes import Fit, fit_clusters, fit_probe
from scae_jax.models.system import Encoding, System

ACCURACY = "accuracy"  # of a model that was trained with labels


def accuracies(
  system: System,
  variables: Mapping[int, Any],
  dataset: Dataset,
  scored: Sequence[EvalDataset],
  *,
  canvas: int,
  batch_size: int,
  max_examples: int = 0,
) -> dict[str, dict[str, dict[int, float]]]:
  """Share of held-out examples that are classified correctly, for every data set and seed.

  For a model without scores of classes, clusters and a linear probe are fitted to the features of
  the training images of `dataset`, once a seed. `max_examples` of each split are used, 0 for all.

  Returns `{way of scoring: {data set: {seed: accuracy}}}`; the ways are `ACCURACY`, or
  `LIN-MATCH` and `LIN-PRED` of each kind of features, and `LIN-PRED` of the probe features.
  """
  make_batch = functools.partial(evaluation_batch, canvas=canvas)
  encode = functools.partial(encode_dataset, make_batch=make_batch, batch_size=batch_size)
  train = load_split(dataset, "train", max_examples)
  fitted: dict[int, dict[str, Fit]] = {}
  results: dict[str, dict[str, dict[int, float]]] = {}
  for scored_set in scored:
    split = load_split(scored_set, scored_set.held_out, max_examples)
    labels = split["label"]
    for seed, seed_variables in variables.items():
      encoding = encode(system, seed_variables, split)
      if encoding.scores is not None:
        answers = classify(np.asarray(encoding.scores), labels[:, None])
        shares = {ACCURACY: answers.entries()["accuracy"]}
      else:
        if seed not in fitted:
          train_encoding = encode(system, seed_variables, train)
          fitted[seed] = _fit(train_encoding, train["label"], dataset.num_classes, seed)
        values = _features(encoding)
        shares = {way: fit.accuracy(values[fit.name], labels) for way, fit in fitted[seed].items()}
      for way, share in shares.items():
        results.setdefault(way, {}).setdefault(scored_set.name, {})[seed] = share
  return results


def _features(encoding: Encoding) -> dict[str, np.ndarray]:
  """Features and probe features by name."""
  features = {**encoding.features, **encoding.probe_features}
  return {name: np.asarray(values) for name, values in features.items()}


def _fit(encoding: Encoding, labels: np.ndarray, num_classes: int, seed: int) -> dict[str, Fit]:
  """Clusters and linear probes of training images, by way of scoring."""
  fits = {}
  for name, values in _features(encoding).items():
    options: dict[str, Any] = {"num_classes": num_classes, "name": name}
    if name in encoding.features:
      fits[f"LIN-MATCH, {name}"] = fit_clusters(values, labels, seed=seed, **options)
    fits[f"LIN-PRED, {name}"] = fit_probe(values, labels, **options)
  return fits
