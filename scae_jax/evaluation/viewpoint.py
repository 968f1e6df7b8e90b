"""Accuracies of one trained model on several data sets, such as images from many viewpoints."""

from collections.abc import Mapping, Sequence
from typing import Any

from scae_jax.data.dataset import Dataset, EvalDataset
from scae_jax.evaluation.classification import classify
from scae_jax.evaluation.collect import feature_collector
from scae_jax.evaluation.examples import load_split
from scae_jax.evaluation.probes import Fit, fit_clusters, fit_probe
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

  For a model without `classify`, clusters and a linear probe are fitted to the features of the
  training images of `dataset`, once a seed. `max_examples` of each split are used, 0 for all.

  Returns `{way of scoring: {data set: {seed: accuracy}}}`; the ways are `ACCURACY`, or
  `LIN-MATCH` and `LIN-PRED` of each kind of features, and `LIN-PRED` of the probe features.
  """
  collect = feature_collector(system, canvas=canvas, batch_size=batch_size)
  fitted: dict[int, dict[str, Fit]] = {}
  if system.classify is None:
    train = load_split(dataset, "train", max_examples)
    for seed, seed_variables in variables.items():
      outputs, labels = collect(seed_variables, train), train["label"]
      fitted[seed] = fits = {}
      for name, values in (outputs["features"] | outputs["probe_features"]).items():
        options: dict[str, Any] = {"num_classes": dataset.num_classes, "name": name}
        if name in outputs["features"]:
          fits[f"LIN-MATCH, {name}"] = fit_clusters(values, labels, seed=seed, **options)
        fits[f"LIN-PRED, {name}"] = fit_probe(values, labels, **options)
  results: dict[str, dict[str, dict[int, float]]] = {}
  for scored_set in scored:
    split = load_split(scored_set, scored_set.held_out, max_examples)
    for seed, seed_variables in variables.items():
      outputs = collect(seed_variables, split)
      if fitted:
        values = outputs["features"] | outputs["probe_features"]
        shares = {
          way: fit.accuracy(values[fit.name], split["label"]) for way, fit in fitted[seed].items()
        }
      else:
        shares = {ACCURACY: classify(outputs["scores"], outputs["labels"]).entries()["accuracy"]}
      for way, share in shares.items():
        results.setdefault(way, {}).setdefault(scored_set.name, {})[seed] = share
  return results
