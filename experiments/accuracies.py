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
from scae_jax.evaluation.probes import Fit, fit_encoding
from scae_jax.models.system import System

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
  fitted: dict[int, tuple[dict[str, Fit], dict[str, Fit]]] = {}
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
          fitted[seed] = fit_encoding(
            train_encoding, train["label"], num_classes=dataset.num_classes, seed=seed
          )
        values = {**encoding.features, **encoding.probe_features}
        shares = {
          f"{way}, {name}": fit.accuracy(np.asarray(values[name]), labels)
          for way, fits in zip(("LIN-MATCH", "LIN-PRED"), fitted[seed], strict=True)
          for name, fit in fits.items()
        }
      for way, share in shares.items():
        results.setdefault(way, {}).setdefault(scored_set.name, {})[seed] = share
  return results
