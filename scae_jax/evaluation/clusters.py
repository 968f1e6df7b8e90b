"""Clusters with a label each, which classify capsule features without the fitted estimator."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.cluster.vq import vq

from scae_jax.files import read_json

FILE = "clusters.json"


@dataclasses.dataclass(frozen=True, eq=False)
class Clusters:
  """Clusters of one kind of features, each named by one label; see `probes.fit_clusters`."""

  centres: np.ndarray  # float32 [c, d]
  labels: np.ndarray  # int32 [c], the name of each cluster
  train_accuracy: float  # LIN-MATCH on the training examples, in [0, 1]

  def predict(self, features: np.ndarray) -> np.ndarray:
    """The label of the nearest centre, int32 [n], of features [n, d]."""
    nearest, _ = vq(np.asarray(features, np.float32), self.centres)
    return self.labels[nearest]

  def to_json(self) -> dict[str, Any]:
    """Centres and labels as lists."""
    return {"centres": self.centres.tolist(), "labels": self.labels.tolist()}


def clusters_json(clusters: Mapping[str, Clusters], step: int, seed: int) -> bytes:
  """Content of `clusters.json`: clusters of each kind of features, at a step, of one seed."""
  entries = {
    name: kind_clusters.to_json() | {"lin_match_train": kind_clusters.train_accuracy}
    for name, kind_clusters in clusters.items()
  }
  content = {"step": int(step), "seed": int(seed), "clusters": entries}
  return (json.dumps(content) + "\n").encode()


def read_clusters(path: pathlib.Path, step: int, seed: int) -> dict[str, Clusters]:
  """Reads the file of `clusters_json`: {} if of another step or seed, ValueError if damaged."""
  content = read_json(path, "step", "seed", "clusters")
  if (content["step"], content["seed"]) != (step, seed):
    return {}
  try:
    return {name: _from_json(entry) for name, entry in content["clusters"].items()}
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise ValueError(f"{path} is damaged: {error!r}. Evaluate the run again.") from error


def _from_json(entry: Mapping[str, Any]) -> Clusters:
  centres, labels = np.array(entry["centres"], np.float32), np.array(entry["labels"], np.int32)
  if centres.ndim != 2 or labels.shape != centres.shape[:1]:
    raise ValueError(f"{len(centres)} centres and {len(labels)} labels")
  return Clusters(centres, labels, float(entry["lin_match_train"]))
