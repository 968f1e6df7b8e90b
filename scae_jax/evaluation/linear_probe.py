"""LIN-PRED: what a linear classifier reads from the features.

Multinomial logistic regression on standardised training features, scored on the test set. It is
fitted to convergence with L-BFGS, from zero and without chance, so that the figure is a property of
the features and not of a schedule; the probes that train along with a model lag behind it.
"""

import dataclasses
import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from scae_jax.evaluation.checks import check_to_fit, check_to_score

INVERSE_L2 = 1.0  # weight of the summed cross-entropy against half the squared weights
MAX_STEPS = 2000
TOLERANCE = 1e-4  # largest gradient of the mean loss at which the fit ends


@dataclasses.dataclass(frozen=True)
class Probe:
  """What LIN-PRED found.

  Attributes:
    accuracy: share of test examples that are classified right, in [0, 1].
    train_accuracy: the same on the examples that the classifier was fitted to.
    converged: False when the fit was cut at `MAX_STEPS`; the figure is then a lower bound.
  """

  accuracy: float
  train_accuracy: float
  converged: bool


@dataclasses.dataclass(frozen=True)
class FittedProbe:
  """A linear classifier that has been fitted, and scores any number of sets.

  Attributes:
    name: what the features are called in messages.
    num_classes: number of labels.
    num_examples: rows that it was fitted to.
    num_features: columns.
    scaler: of the training features.
    classifier: of what it scales.
    train_accuracy: share of the training examples that are classified right, in [0, 1].
    converged: as of `Probe`.
  """

  name: str
  num_classes: int
  num_examples: int
  num_features: int
  scaler: StandardScaler
  classifier: LogisticRegression
  train_accuracy: float
  converged: bool

  def accuracy(self, features: np.ndarray, labels: np.ndarray) -> float:
    """Share of examples, features [n, d] and labels int [n], that are classified right.

    Raises:
      ValueError: what `check_to_score` says.
    """
    check_to_score(self.name, self.num_features, features, labels, self.num_classes)
    return float(np.mean(self.classifier.predict(self.scaler.transform(features)) == labels))


def fit_probe(
  features: np.ndarray, labels: np.ndarray, *, num_classes: int, name: str = "features"
) -> FittedProbe:
  """Fits a linear classifier.

  Args:
    features: [n, d]; columns that never change are left as they are, and carry no weight.
    labels: int [n].
    num_classes: number of labels.
    name: what the features are called in messages.

  Raises:
    ValueError: what `check_to_fit` says.
  """
  check_to_fit(name, features, labels, num_classes)
  scaler = StandardScaler().fit(features)
  classifier = LogisticRegression(C=INVERSE_L2, tol=TOLERANCE, max_iter=MAX_STEPS)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", ConvergenceWarning)  # `converged` says it in the result
    classifier.fit(scaler.transform(features), labels)
  predicted = classifier.predict(scaler.transform(features))
  return FittedProbe(
    name=name,
    num_classes=num_classes,
    num_examples=len(features),
    num_features=features.shape[1],
    scaler=scaler,
    classifier=classifier,
    train_accuracy=float(np.mean(predicted == labels)),
    converged=int(np.max(classifier.n_iter_)) < MAX_STEPS,
  )


def lin_pred(
  train_features: np.ndarray,
  train_labels: np.ndarray,
  test_features: np.ndarray,
  test_labels: np.ndarray,
  *,
  num_classes: int,
  name: str = "features",
) -> Probe:
  """Fits a linear classifier on the training features and scores the test features.

  Args:
    train_features: [n, d]; columns that never change are left as they are, and carry no weight.
    train_labels: int [n].
    test_features: [n', d].
    test_labels: int [n'].
    num_classes: number of labels.
    name: what the features are called in messages.

  Raises:
    ValueError: what `check_to_fit` and `check_to_score` say.
  """
  probe = fit_probe(train_features, train_labels, num_classes=num_classes, name=name)
  return Probe(
    accuracy=probe.accuracy(test_features, test_labels),
    train_accuracy=probe.train_accuracy,
    converged=probe.converged,
  )
