"""Figures of classifiers against loops over examples."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scae_jax.evaluation.classification import calibration_error, classify

SCORES = np.array([[0.9, 0.1, 0.3], [0.2, 0.7, 0.7], [0.5, 0.0, 0.1], [0.1, 0.2, 0.6]], np.float32)


def by_hand(confidence, is_right):
  """Guo et al. 2017, equation 3, bin by bin."""
  total = 0.0
  for m in range(15):
    inside = [
      i for i, value in enumerate(confidence) if m / 15 < value <= (m + 1) / 15 or value == m == 0
    ]
    if inside:
      accuracy = sum(is_right[i] for i in inside) / len(inside)
      mean = sum(float(confidence[i]) for i in inside) / len(inside)
      total += len(inside) / len(confidence) * abs(accuracy - mean)
  return total


def test_the_largest_score_is_answer_and_confidence():
  result = classify(SCORES, np.array([[0], [2], [1], [2]]))
  np.testing.assert_array_equal(result.answer[:, 0], [0, 1, 0, 2])  # of equal scores the first
  np.testing.assert_array_equal(result.confidence[:, 0], np.float32([0.9, 0.7, 0.5, 0.6]))
  np.testing.assert_array_equal(result.is_right[:, 0], [True, False, False, True])
  assert result.entries() == {
    "accuracy": 0.5,
    "error": 0.5,
    "expected_calibration_error": pytest.approx((0.1 + 0.7 + 0.5 + 0.4) / 4),
    "mean_confidence": pytest.approx(0.675),
    "confusion": [[1, 0, 0], [1, 0, 0], [0, 1, 1]],
  }
  result = classify(np.float32([[1 + 1e-6, 0]]), np.array([[0]]))
  assert result.entries()["expected_calibration_error"] == pytest.approx(0, abs=1e-5)


@settings(deadline=None, max_examples=50)
@given(
  st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40),
  st.lists(st.integers(0, 15), max_size=20),
)
def test_calibration_error_is_that_of_a_loop_over_bins(answers, edges):
  """Edges of bins included."""
  confidence = np.array([value for value, _ in answers] + [edge / 15 for edge in edges])
  is_right = np.array([right for _, right in answers] + [True] * len(edges))
  result = calibration_error(confidence, is_right)
  assert result == pytest.approx(by_hand(confidence, is_right), abs=1e-12)


def test_the_two_largest_scores_answer_a_pair_of_labels():
  labels = np.array([[2, 0], [0, 1], [1, 2], [2, 1]])
  result = classify(SCORES, labels)
  np.testing.assert_array_equal(result.answer, [[0, 2], [1, 2], [0, 2], [2, 1]])
  np.testing.assert_array_equal(result.is_found, [[1, 1], [0, 1], [0, 1], [1, 1]])
  np.testing.assert_array_equal(result.is_right, [[1, 1], [1, 0], [0, 1], [1, 1]])
  confidence = [[0.9, 0.3], [0.7, 0.7], [0.5, 0.1], [0.6, 0.2]]
  np.testing.assert_array_equal(result.confidence, np.float32(confidence))
  error = by_hand(np.float32(confidence).reshape(-1), result.is_right.reshape(-1))
  assert error > 0.3
  assert result.entries() == {
    "accuracy": 0.75,
    "error": 0.25,
    "both_right": 0.5,
    "expected_calibration_error": pytest.approx(error),
    "mean_confidence": pytest.approx(0.5),
    "confusion": [[1, 0, 1], [1, 2, 0], [0, 0, 3]],
  }
  np.testing.assert_array_equal(
    classify(SCORES, labels[:, ::-1]).is_found, result.is_found[:, ::-1]
  )
  scores = np.array([[0.9, 0.8, 0.0, 0.1], [0.0, 0.2, 0.9, 0.3]])
  result = classify(scores, np.array([[2, 3], [0, 2]]))
  expected = [[0, 0, 0, 1], [0, 0, 0, 0], [0.5, 0.5, 1, 0], [0.5, 0.5, 0, 0]]
  np.testing.assert_array_equal(result.confusion, expected)


@pytest.mark.parametrize(
  ("scores", "message"),
  [
    (SCORES * np.array([[1], [1], [np.nan], [1]]), r"\b1 of 4\b.*: 2\b"),
    (SCORES - 0.5, r"\[0, 1\].*-0\.5.*0\.4"),
    (SCORES + 0.2, r"\[0, 1\].*0\.2.*1\.1"),
  ],
)
def test_scores_that_are_none_are_refused(scores, message):
  with pytest.raises(ValueError, match=message):
    classify(scores, np.array([[0, 1]] * 4))
