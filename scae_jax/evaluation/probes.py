"""LIN-MATCH and LIN-PRED: scores of features by clusters and by a linear classifier.

LIN-MATCH tells how well clusters found without labels agree with the labels. k-means finds as many
clusters in the training features as there are classes. Each cluster is given one label, and each
label one cluster, so that most training examples are classified correctly (Hungarian matching).
Kosiorek et al. 2019, section 3.1. The authors' release refits the clusters on the test split; here
nothing is fitted there.

LIN-PRED: multinomial logistic regression on standardised training features, fitted to convergence
with L-BFGS from zero. The probes that are trained along with a model lag behind it.
"""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import confusion_matrix
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from scae_jax.evaluation.checks import check_enough_to_fit, check_finite
from scae_jax.evaluation.clusters import Clusters
from scae_jax.models.system import Encoding

# k-means runs, of which the one with the least sum of squares within clusters counts. On the object
# presences of an MNIST run one start in eight ends there. The LIN-MATCH of the best of 10 starts
# has a standard deviation of 1.8 points; that of the best of 50 hardly varies (results/mnist).
NUM_STARTS = 50
INVERSE_L2 = 1.0  # weight of the summed cross-entropy against half the squared weights
MAX_STEPS = 2000
TOLERANCE = 1e-4  # the fit ends when no gradient of the mean loss is larger
MIN_SHARE = 0.1  # of an example's activation, for the example to count
MIN_EXAMPLES = 0.01  # share of the examples that must count, for the capsule to be in use


@dataclasses.dataclass(frozen=True)
class Fit:
  """Clusters or a linear classifier, fitted to training features; scores any number of sets."""

  name: str  # of the features, in messages
  num_classes: int
  num_examples: int  # in training
  predict: Callable[[np.ndarray], np.ndarray]  # `features [n, d] -> labels int [n]`
  train_accuracy: float  # share of the training examples that are classified correctly
  # Clusters with any training example; 0 of a linear classifier. Fewer than the classes if the
  # features have fewer distinct values, as with dead capsules.
  num_clusters: int = 0
  clusters: Clusters | None = None  # those of `predict`; None of a linear classifier
  converged: bool = True  # False if cut at `MAX_STEPS`: the accuracy is then a lower bound

  def confusion(self, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Examples by label (row) and by predicted label (column), int [num_classes, num_classes]."""
    check_finite(f"Features '{self.name}'", features)
    return confusion_matrix(labels, self.predict(features), labels=np.arange(self.num_classes))

  def accuracy(self, features: np.ndarray, labels: np.ndarray) -> float:
    """Share of examples that are classified correctly; see `confusion`."""
    return float(np.trace(self.confusion(features, labels)) / len(labels))


def fit_clusters(
  features: np.ndarray,
  labels: np.ndarray,
  *,
  num_classes: int,
  seed: int,
  name: str = "features",
  num_starts: int = NUM_STARTS,
) -> Fit:
  """Clusters features [n, d] by k-means and names the clusters by labels int [n]: LIN-MATCH.

  `seed` seeds k-means, and the best of `num_starts` counts. `name` is that of the features in
  messages. Raises ValueError as the functions of `checks` do.
  """
  kmeans = KMeans(num_classes, random_state=seed).set_params(n_init=num_starts)
  clusters = _checked_fit(kmeans.fit_predict, name, features, labels, num_classes)
  label_of_cluster = match_clusters(clusters, labels, num_classes)
  accuracy = float(np.mean(label_of_cluster[clusters] == labels))
  centres, names = kmeans.cluster_centers_.astype(np.float32), label_of_cluster.astype(np.int32)
  return Fit(
    name=name,
    num_classes=num_classes,
    num_examples=len(features),
    predict=lambda features: label_of_cluster[kmeans.predict(features)],
    train_accuracy=accuracy,
    num_clusters=len(np.unique(clusters)),
    clusters=Clusters(centres, names, accuracy),
  )


def fit_encoding(
  encoding: Encoding, labels: np.ndarray, *, num_classes: int, seed: int
) -> tuple[dict[str, Fit], dict[str, Fit]]:
  """Clusters of each kind of features, and linear probes of these and of the probe features.

  Both by the name of the features; see `fit_clusters` and `fit_probe`.
  """
  clusters = {
    name: fit_clusters(np.asarray(values), labels, num_classes=num_classes, seed=seed, name=name)
    for name, values in encoding.features.items()
  }
  probes = {
    name: fit_probe(np.asarray(values), labels, num_classes=num_classes, name=name)
    for name, values in {**encoding.features, **encoding.probe_features}.items()
  }
  return clusters, probes


def match_clusters(clusters: np.ndarray, labels: np.ndarray, num_classes: int) -> np.ndarray:
  """The label of each cluster: the permutation that classifies most examples [n] correctly."""
  counts = confusion_matrix(clusters, labels, labels=np.arange(num_classes))
  _, label_of_cluster = linear_sum_assignment(counts, maximize=True)
  return label_of_cluster


def fit_probe(
  features: np.ndarray, labels: np.ndarray, *, num_classes: int, name: str = "features"
) -> Fit:
  """Fits a linear classifier: LIN-PRED. Arguments and errors are those of `fit_clusters`.

  Features that are the same in all examples carry no weight.
  """
  classifier = LogisticRegression(C=INVERSE_L2, tol=TOLERANCE, max_iter=MAX_STEPS)
  pipeline = make_pipeline(StandardScaler(), classifier)
  _checked_fit(pipeline.fit, name, features, labels, num_classes)
  return Fit(
    name=name,
    num_classes=num_classes,
    num_examples=len(features),
    predict=pipeline.predict,
    train_accuracy=float(pipeline.score(features, labels)),
    converged=int(np.max(classifier.n_iter_)) < MAX_STEPS,
  )


def capsules_in_use(activations: np.ndarray, *, name: str = "features") -> np.ndarray:
  """Which capsules are in use, bool [k], by their non-negative activations [n, k].

  A capsule's share of an example is its activation (presence or posterior mass) divided by the sum
  over all capsules. It is in use if its share is at least 0.1 on at least 1 % of the examples. Of
  more than ten capsules that are always equally active, none is in use. Activations that are
  negative or not finite raise ValueError.
  """
  check_finite(f"Features '{name}'", activations)
  if activations.min() < 0:
    raise ValueError(
      f"Features '{name}' must be non-negative to be shares of an example, got a minimum of "
      f"{activations.min():.3g}. Return presences or masses as `Encoding.features`, not logits."
    )
  totals = activations.sum(axis=1, keepdims=True)
  shares = activations / np.where(totals > 0, totals, 1)
  return np.mean(shares >= MIN_SHARE, axis=0) >= MIN_EXAMPLES


def _checked_fit(
  fit: Callable[..., Any], name: str, features: np.ndarray, labels: np.ndarray, num_classes: int
) -> Any:
  """Checks features and labels, then fits; `Fit.converged` replaces scikit-learn's warning."""
  check_finite(f"Features '{name}'", features)
  check_enough_to_fit(labels, num_classes)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", ConvergenceWarning)
    return fit(features, labels)
