"""Accuracy and calibration of a classifier's answers.

The answer is the class of the largest score, which is also the confidence. Where an image has a
pair of labels, as two overlaid digits have, the classes of the two largest scores are the answers
(Sabour et al. 2017, section 6), each with its own confidence.
"""

import dataclasses
from typing import Any

import numpy as np
from sklearn.metrics import confusion_matrix

from scae_jax.evaluation.checks import check_finite

NUM_BINS = 15  # Guo et al. 2017
_INNER_EDGES = np.arange(1, NUM_BINS) / NUM_BINS
# A score may be the length of a vector, which float32 rounds to either side of 1.
_ROUNDING = 1e-5


@dataclasses.dataclass(frozen=True)
class Classification:
  """Answers to n examples of p labels each, 1 or 2."""

  answer: np.ndarray  # int [n, p], classes of the largest scores; of equal scores the first
  confidence: np.ndarray  # [n, p] in [0, 1], these scores, the largest first
  is_right: np.ndarray  # bool [n, p], whether each answer is one of the labels
  is_found: np.ndarray  # bool [n, p], whether each label is one of the answers
  # [classes, classes], number of examples by label (row) and answer (column). For pairs, a label
  # among the answers counts on the diagonal, a missed one at the wrong answer. If both are missed,
  # each counts half at either answer, since nothing says which answer is meant for which label.
  confusion: np.ndarray
  calibration_error: float  # expected calibration error of all answers, in [0, 1]

  def entries(self) -> dict[str, Any]:
    """Entries of `metrics.json`; all but the confusion matrix are shares in [0, 1].

    `accuracy` and `error` are the shares of labels found and missed. For pairs, `both_right` is
    the share of examples whose labels are both found.
    """
    both_right = {"both_right": float(np.mean(self.is_found.all(axis=1)))}
    return {
      "accuracy": float(np.mean(self.is_found)),
      "error": float(np.mean(~self.is_found)),
      **(both_right if self.is_found.shape[1] == 2 else {}),
      "expected_calibration_error": self.calibration_error,
      "mean_confidence": float(np.mean(self.confidence, dtype=np.float64)),
      "confusion": self.confusion.tolist(),
    }


def classify(scores: np.ndarray, labels: np.ndarray) -> Classification:
  """Compares scores [n, classes] with labels int [n, 1] or [n, 2]; ValueError if not in [0, 1]."""
  check_finite("Scores", scores)
  if scores.min() < 0 or scores.max() > 1 + _ROUNDING:
    raise ValueError(
      f"Scores must be in [0, 1], got {scores.min():.6g} ... {scores.max():.6g}. Return "
      "probabilities or lengths as `Encoding.scores`, not logits."
    )
  num_labels = labels.shape[1]
  answer = np.argsort(-scores, axis=1, kind="stable")[:, :num_labels]
  confidence = np.take_along_axis(scores, answer, axis=1)
  matches = labels[:, :, None] == answer[:, None, :]
  is_right, is_found = matches.any(axis=1), matches.any(axis=2)
  if num_labels == 1:
    confusion = confusion_matrix(labels, answer, labels=np.arange(scores.shape[1]))
  else:  # scikit-learn takes one label an example
    confusion = np.diag(np.bincount(labels[is_found], minlength=scores.shape[1]).astype(float))
    # Pairs of a missed label and a wrong answer: one of an example, or all four.
    example, missed, wrong = np.nonzero(~is_found[:, :, None] & ~is_right[:, None, :])
    weight = 1 / (~is_found).sum(axis=1)[example]
    np.add.at(confusion, (labels[example, missed], answer[example, wrong]), weight)
  calibration = calibration_error(confidence.reshape(-1), is_right.reshape(-1))
  return Classification(answer, confidence, is_right, is_found, confusion, calibration)


def by_confidence(
  confidence: np.ndarray, is_right: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Sorts answers by their confidence [n] in [0, 1] into 15 equal bins.

  Bin i holds confidences above i / 15 and up to (i + 1) / 15. Returns for each bin, [15], the
  number of answers, their mean confidence and the share of right ones; the last two are 0 for an
  empty bin.
  """
  bins = np.digitize(confidence, _INNER_EDGES, right=True)
  count = np.bincount(bins, minlength=NUM_BINS)
  divisor = np.maximum(count, 1)
  mean_confidence = np.bincount(bins, confidence, minlength=NUM_BINS) / divisor
  accuracy = np.bincount(bins, is_right, minlength=NUM_BINS) / divisor
  return count, mean_confidence, accuracy


def calibration_error(confidence: np.ndarray, is_right: np.ndarray) -> float:
  """Expected calibration error: mean over answers of |accuracy - confidence| of their bin.

  Guo et al. 2017, arXiv 1706.04599, equation 3, with 15 equal bins; arguments as `by_confidence`.
  """
  count, mean_confidence, accuracy = by_confidence(confidence, is_right)
  return float(np.sum(count * np.abs(accuracy - mean_confidence)) / len(confidence))
