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

from scae_jax.evaluation.checks import check_fit_and_score

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
    ValueError: what `check_fit_and_score` says.
  """
  check_fit_and_score(name, train_features, train_labels, test_features, test_labels, num_classes)
  scaler = StandardScaler().fit(train_features)
  classifier = LogisticRegression(C=INVERSE_L2, tol=TOLERANCE, max_iter=MAX_STEPS)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", ConvergenceWarning)  # `converged` says it in the result
    classifier.fit(scaler.transform(train_features), train_labels)
  train_predicted = classifier.predict(scaler.transform(train_features))
  test_predicted = classifier.predict(scaler.transform(test_features))
  return Probe(
    accuracy=float(np.mean(test_predicted == test_labels)),
    train_accuracy=float(np.mean(train_predicted == train_labels)),
    converged=int(np.max(classifier.n_iter_)) < MAX_STEPS,
  )
