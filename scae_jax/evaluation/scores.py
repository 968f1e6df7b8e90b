"""All figures of one set of features, and what is to be said beside them."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from scae_jax.evaluation.clustering import lin_match
from scae_jax.evaluation.linear_probe import MAX_STEPS, Probe, lin_pred
from scae_jax.evaluation.usage import capsules_in_use


@dataclasses.dataclass(frozen=True)
class Labelled:
  """Features of some examples and their labels.

  Attributes:
    features: float32 [n, d].
    labels: int [n].
  """

  features: np.ndarray
  labels: np.ndarray


@dataclasses.dataclass(frozen=True)
class Scores:
  """Figures of one set of features.

  Attributes:
    entries: for `metrics.json`: `lin_match` and `lin_pred` on the scored examples, the same on the
      training examples, `fitted_examples`, `confusion`, and for capsules how many are in use; of
      readings, those of `lin_pred` alone.
    notes: sentences on what makes a figure less than it seems.
  """

  entries: dict[str, Any]
  notes: tuple[str, ...]

  @property
  def confusion(self) -> np.ndarray:
    """Int [classes, classes], scored examples by label and by label of their cluster."""
    return np.asarray(self.entries["confusion"])


def labelled(features: Mapping[str, np.ndarray], labels: np.ndarray) -> dict[str, Labelled]:
  """Every kind of features, [n, d] each, with the labels [n] of their examples."""
  return {name: Labelled(values, labels) for name, values in features.items()}


def score_each(
  train: Mapping[str, Labelled], test: Mapping[str, Labelled], *, num_classes: int, seed: int
) -> dict[str, Scores]:
  """`score` of every kind of capsule features."""
  options: dict[str, Any] = {"num_classes": num_classes, "seed": seed, "are_capsules": True}
  return {name: score(name, train[name], test[name], **options) for name in train}


def score(
  name: str, train: Labelled, test: Labelled, *, num_classes: int, seed: int, are_capsules: bool
) -> Scores:
  """Fits clusters and a probe on `train` and scores both on `test`.

  Args:
    name: what the features are called.
    train: examples to fit to.
    test: examples to score.
    num_classes: number of labels and of clusters.
    seed: of k-means' starts.
    are_capsules: whether each feature is the activation of a capsule, so that those in use count.

  Raises:
    ValueError: features that are not finite or, of capsules, negative; labels outside the classes;
      too few training examples.
  """
  data = (train.features, train.labels, test.features, test.labels)
  clusters = lin_match(*data, num_classes=num_classes, seed=seed, name=name)
  probe = lin_pred(*data, num_classes=num_classes, name=name)
  entries = {
    "lin_match": clusters.accuracy,
    "lin_pred": probe.accuracy,
    "lin_match_train": clusters.train_accuracy,
    "lin_pred_train": probe.train_accuracy,
    "lin_pred_converged": probe.converged,
    "fitted_examples": len(train.labels),
    "clusters": clusters.num_distinct,
    "confusion": clusters.confusion.tolist(),
  }
  notes = []
  if clusters.num_distinct < num_classes:
    notes.append(
      f"{name.replace('_', ' ')}: only {clusters.num_distinct} distinct cluster(s) for "
      f"{num_classes} classes, as with dead capsules; LIN-MATCH can be no better than that allows."
    )
  notes += _notes_on_probe(name, probe)
  if are_capsules:
    used = capsules_in_use(test.features, name=name)
    entries |= {
      "capsules": len(used),
      "capsules_in_use": int(used.sum()),
      "indices_in_use": np.flatnonzero(used).tolist(),
    }
  return Scores(entries, tuple(notes))


def read_each(
  train: Mapping[str, Labelled], test: Mapping[str, Labelled], *, num_classes: int
) -> dict[str, Scores]:
  """`read` of every kind of readings."""
  return {name: read(name, train[name], test[name], num_classes=num_classes) for name in train}


def read(name: str, train: Labelled, test: Labelled, *, num_classes: int) -> Scores:
  """Fits a probe alone on `train` and scores it on `test`: of numbers that may be negative.

  Args:
    name: what the readings are called.
    train: examples to fit to.
    test: examples to score.
    num_classes: number of labels.

  Raises:
    ValueError: as of `score`, but for negative numbers.
  """
  data = (train.features, train.labels, test.features, test.labels)
  probe = lin_pred(*data, num_classes=num_classes, name=name)
  entries = {
    "lin_pred": probe.accuracy,
    "lin_pred_train": probe.train_accuracy,
    "lin_pred_converged": probe.converged,
    "fitted_examples": len(train.labels),
  }
  return Scores(entries, tuple(_notes_on_probe(name, probe)))


def _notes_on_probe(name: str, probe: Probe) -> list[str]:
  if probe.converged:
    return []
  return [
    f"{name.replace('_', ' ')}: the linear probe was cut after {MAX_STEPS} steps; LIN-PRED is a "
    "lower bound."
  ]
