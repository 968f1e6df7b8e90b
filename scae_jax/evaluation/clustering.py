"""LIN-MATCH: how well clusters that never saw a label agree with the labels.

k-means finds as many clusters as there are classes in the features of the training set. Each
cluster is then named by one label, so that as many training examples as possible are right
(Hungarian matching: one label a cluster, one cluster a label). The figure is the share of test
examples that fall into the cluster of their label. Kosiorek et al. 2019, section 3.1.

The authors' release refits the clusters on the test split; here nothing is fitted there.
"""

import dataclasses
import warnings

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from scae_jax.evaluation.checks import check_to_fit, check_to_score

NUM_STARTS = 10  # the best of so many k-means runs, by the sum of squares within clusters


@dataclasses.dataclass(frozen=True)
class Clustering:
  """What LIN-MATCH found.

  Attributes:
    accuracy: share of test examples whose cluster bears their label, in [0, 1].
    train_accuracy: the same on the training examples that were clustered.
    confusion: int [num_classes, num_classes], test examples by label (row) and by label of their
      cluster (column).
    label_of_cluster: int [num_classes].
    num_distinct: clusters that have any training example; fewer than the classes when the features
      take fewer values than that, as with dead capsules.
  """

  accuracy: float
  train_accuracy: float
  confusion: np.ndarray
  label_of_cluster: np.ndarray
  num_distinct: int


@dataclasses.dataclass(frozen=True)
class FittedClusters:
  """Clusters that have been found and named, and score any number of sets.

  Attributes:
    name: what the features are called in messages.
    num_classes: number of labels and of clusters.
    num_features: columns.
    kmeans: the clusters.
    label_of_cluster: int [num_classes].
    train_accuracy: as of `Clustering`.
    num_distinct: as of `Clustering`.
  """

  name: str
  num_classes: int
  num_features: int
  kmeans: KMeans
  label_of_cluster: np.ndarray
  train_accuracy: float
  num_distinct: int

  def predict(self, features: np.ndarray) -> np.ndarray:
    """The labels, int [n], of the clusters that features [n, d] fall into."""
    return self.label_of_cluster[self.kmeans.predict(features)]

  def accuracy(self, features: np.ndarray, labels: np.ndarray) -> float:
    """Share of examples, features [n, d] and labels int [n], whose cluster bears their label.

    Raises:
      ValueError: what `check_to_score` says.
    """
    check_to_score(self.name, self.num_features, features, labels, self.num_classes)
    return float(np.mean(self.predict(features) == labels))


def fit_clusters(
  features: np.ndarray,
  labels: np.ndarray,
  *,
  num_classes: int,
  seed: int,
  name: str = "features",
) -> FittedClusters:
  """Clusters features, and names the clusters.

  Args:
    features: [n, d].
    labels: int [n], used only to name the clusters.
    num_classes: number of labels and of clusters.
    seed: of k-means' starts.
    name: what the features are called in messages.

  Raises:
    ValueError: what `check_to_fit` says.
  """
  check_to_fit(name, features, labels, num_classes)
  kmeans = KMeans(num_classes, random_state=seed).set_params(n_init=NUM_STARTS)
  with warnings.catch_warnings():
    # Said of features with fewer values than clusters; `num_distinct` says it in the result.
    warnings.simplefilter("ignore", ConvergenceWarning)
    clusters = kmeans.fit_predict(features)
  label_of_cluster = match_clusters(clusters, labels, num_classes)
  return FittedClusters(
    name=name,
    num_classes=num_classes,
    num_features=features.shape[1],
    kmeans=kmeans,
    label_of_cluster=label_of_cluster,
    train_accuracy=float(np.mean(label_of_cluster[clusters] == labels)),
    num_distinct=len(np.unique(clusters)),
  )


def match_clusters(clusters: np.ndarray, labels: np.ndarray, num_classes: int) -> np.ndarray:
  """Names each cluster by one label so that as many examples as possible are right.

  Args:
    clusters: int [n] in [0, num_classes).
    labels: int [n] in [0, num_classes).
    num_classes: number of labels and of clusters.

  Returns:
    int [num_classes], the label of each cluster; a permutation.
  """
  counts = confusion_matrix(clusters, labels, num_classes)
  _, label_of_cluster = linear_sum_assignment(counts, maximize=True)
  return label_of_cluster


def confusion_matrix(rows: np.ndarray, columns: np.ndarray, num_classes: int) -> np.ndarray:
  """Counts pairs: int [num_classes, num_classes] from two int [n] in [0, num_classes)."""
  pairs = np.bincount(rows * num_classes + columns, minlength=num_classes**2)
  return pairs.reshape(num_classes, num_classes)


def lin_match(
  train_features: np.ndarray,
  train_labels: np.ndarray,
  test_features: np.ndarray,
  test_labels: np.ndarray,
  *,
  num_classes: int,
  seed: int,
  name: str = "features",
) -> Clustering:
  """Clusters training features, names the clusters there, scores the test features.

  Features that take fewer distinct values than there are classes give fewer clusters. The figure
  is then what that many clusters can reach, chance when there is one; `num_distinct` tells.

  Args:
    train_features: [n, d].
    train_labels: int [n], used only to name the clusters.
    test_features: [n', d].
    test_labels: int [n'].
    num_classes: number of labels and of clusters.
    seed: of k-means' starts.
    name: what the features are called in messages.

  Raises:
    ValueError: what `check_to_fit` and `check_to_score` say.
  """
  fitted = fit_clusters(train_features, train_labels, num_classes=num_classes, seed=seed, name=name)
  check_to_score(name, fitted.num_features, test_features, test_labels, num_classes)
  predicted = fitted.predict(test_features)
  return Clustering(
    accuracy=float(np.mean(predicted == test_labels)),
    train_accuracy=fitted.train_accuracy,
    confusion=confusion_matrix(test_labels, predicted, num_classes),
    label_of_cluster=fitted.label_of_cluster,
    num_distinct=fitted.num_distinct,
  )
