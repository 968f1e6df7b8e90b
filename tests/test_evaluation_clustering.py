"""LIN-MATCH: matching against brute force, fitted on the training split, degenerate features."""

import itertools

import numpy as np
import pytest

from scae_jax.evaluation.clustering import confusion_matrix, lin_match, match_clusters

CENTRES = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])


def blobs(counts, seed=0):
  """Points around `CENTRES`: `counts[i]` around centre i; returns features and centre indices."""
  centres = np.repeat(np.arange(len(counts)), counts)
  noise = np.random.RandomState(seed).uniform(-0.5, 0.5, (len(centres), 2))
  return (CENTRES[centres] + noise).astype(np.float32), centres


def test_blobs_that_are_the_classes_are_matched_exactly():
  train, train_centres = blobs([12, 9, 15, 10])
  test, test_centres = blobs([5, 3, 4, 6], seed=1)
  label_of_centre = np.array([2, 0, 3, 1])
  result = lin_match(
    train,
    label_of_centre[train_centres],
    test,
    label_of_centre[test_centres],
    num_classes=4,
    seed=0,
  )
  assert result.accuracy == 1.0
  assert result.train_accuracy == 1.0
  assert result.num_distinct == 4
  # Class i has as many test examples as the centre that bears its label.
  np.testing.assert_array_equal(result.confusion, np.diag([3, 6, 5, 4]))
  assert sorted(result.label_of_cluster) == [0, 1, 2, 3]


def test_accuracy_equals_the_best_permutation_of_labels():
  train, train_centres = blobs([20, 20, 20, 20])
  test, test_centres = blobs([20, 20, 20, 20], seed=1)
  rng = np.random.RandomState(0)
  # Labels that agree with the centres 60 % of the time, so that no permutation is perfect.
  train_labels = np.where(rng.uniform(size=80) < 0.6, train_centres, rng.randint(0, 4, 80))
  test_labels = np.where(rng.uniform(size=80) < 0.6, test_centres, rng.randint(0, 4, 80))

  permutations = [np.array(p) for p in itertools.permutations(range(4))]
  best = max(permutations, key=lambda names: np.mean(names[train_centres] == train_labels))
  expected = np.mean(best[test_centres] == test_labels)
  assert 0.4 < expected < 0.95

  result = lin_match(train, train_labels, test, test_labels, num_classes=4, seed=0)
  assert result.accuracy == pytest.approx(expected, abs=1e-12)
  assert result.train_accuracy == pytest.approx(np.mean(best[train_centres] == train_labels))
  assert np.trace(result.confusion) == round(expected * 80)
  np.testing.assert_array_equal(result.confusion.sum(axis=1), np.bincount(test_labels, minlength=4))


def test_matching_is_optimal_and_not_greedy():
  # Greedy would take the 10 first and be left with 0: 10 right. The best is 9 + 8.
  counts = np.array([[10, 9], [8, 0]])
  clusters = np.repeat([0, 0, 1, 1], counts.reshape(-1))
  labels = np.repeat([0, 1, 0, 1], counts.reshape(-1))
  np.testing.assert_array_equal(match_clusters(clusters, labels, 2), [1, 0])


def test_clusters_are_named_on_the_training_set_only():
  train, train_centres = blobs([10, 10])
  test, test_centres = blobs([7, 4], seed=1)
  # Naming the clusters on the test set instead would give 1.
  result = lin_match(train, train_centres, test, 1 - test_centres, num_classes=2, seed=0)
  assert result.accuracy == 0.0
  assert result.train_accuracy == 1.0
  np.testing.assert_array_equal(result.confusion, [[0, 4], [7, 0]])


def test_clusters_are_found_on_the_training_set_only():
  train, train_centres = blobs([10, 10])  # centres differ in x
  # These differ in y, and would make two clusters of their own; all are nearest to centre 0.
  test = np.array([[0.0, -10.0], [0.0, 10.0], [1.0, -9.0], [1.0, 9.0]], np.float32)
  result = lin_match(train, train_centres, test, np.array([0, 1, 0, 1]), num_classes=2, seed=0)
  np.testing.assert_array_equal(result.confusion, [[2, 0], [2, 0]])


def test_confusion_counts_pairs():
  matrix = confusion_matrix(np.array([0, 0, 2, 1]), np.array([1, 1, 2, 0]), 3)
  np.testing.assert_array_equal(matrix, [[0, 2, 0], [1, 0, 0], [0, 0, 1]])


def test_dead_capsules_give_the_share_of_the_most_frequent_class():
  dead = np.full((30, 5), 0.25, np.float32)
  train_labels = np.array([1] * 16 + [0] * 8 + [2] * 6)
  test_labels = np.array([1] * 3 + [0] * 9 + [2] * 8)
  result = lin_match(dead, train_labels, dead[:20], test_labels, num_classes=3, seed=0)
  assert result.num_distinct == 1
  assert result.train_accuracy == pytest.approx(16 / 30)
  assert result.accuracy == pytest.approx(3 / 20)


def test_fewer_distinct_values_than_classes_still_score_what_they_separate():
  features = np.repeat([[0.0], [1.0]], 10, axis=0).astype(np.float32)
  labels = np.array([0] * 10 + [1] * 6 + [2] * 4)
  result = lin_match(features, labels, features, labels, num_classes=3, seed=0)
  assert result.num_distinct == 2
  assert result.accuracy == pytest.approx(16 / 20)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"train_features": np.array([[0.0], [np.nan], [1.0]])}, "1 of 3 examples.*number 1"),
    ({"test_features": np.array([[np.inf], [0.0]])}, "1 of 2 examples.*number 0"),
    ({"train_features": np.zeros((3, 2, 1))}, r"\(3, 2, 1\)"),
    ({"test_features": np.zeros((2, 4))}, "1 columns in training and 4"),
    ({"train_labels": np.array([0, 1, 5])}, r"0 \.\.\. 1, got 0 \.\.\. 5"),
    ({"test_labels": np.array([-1, 0])}, r"got -1 \.\.\. 0"),
    ({"train_labels": np.array([0, 1])}, "3 rows"),
    ({"train_labels": np.array([0.0, 1.0, 1.0])}, "float64"),
    ({"train_labels": np.array([1, 1, 1])}, "only class 1"),
    ({"num_classes": 4}, "at least 4 training examples, got 3"),
  ],
)
def test_what_cannot_be_clustered_is_refused(change, message):
  arguments = {
    "train_features": np.array([[0.0], [1.0], [1.0]]),
    "train_labels": np.array([0, 1, 1]),
    "test_features": np.array([[0.0], [1.0]]),
    "test_labels": np.array([0, 1]),
    "num_classes": 2,
    "seed": 0,
  }
  assert lin_match(**arguments).accuracy == 1.0
  with pytest.raises(ValueError, match=message):
    lin_match(**(arguments | change))
