"""LIN-MATCH against brute force, LIN-PRED and capsules in use on hand-made features."""

import functools
import itertools

import numpy as np
import pytest

from scae_jax.evaluation.probes import capsules_in_use, fit_clusters, fit_probe, match_clusters
from scae_jax.evaluation.scores import cluster_entries, pixel_features

CENTRES = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])


def blobs(counts, seed=0):
  """Points around `CENTRES`: `counts[i]` around centre i; returns features and centre indices."""
  centres = np.repeat(np.arange(len(counts)), counts)
  noise = np.random.RandomState(seed).uniform(-0.5, 0.5, (len(centres), 2))
  return (CENTRES[centres] + noise).astype(np.float32), centres


def test_accuracy_equals_the_best_permutation_of_labels():
  train, train_centres = blobs([20, 20, 20, 20])
  test, test_centres = blobs([20, 20, 20, 20], seed=1)
  rng = np.random.RandomState(0)
  # Labels that follow the centres 60 % of the time, so that no permutation is perfect.
  label_of_centre = np.array([2, 0, 3, 1])
  train_labels, test_labels = (
    np.where(rng.uniform(size=80) < 0.6, label_of_centre[centres], rng.randint(0, 4, 80))
    for centres in (train_centres, test_centres)
  )

  permutations = [np.array(p) for p in itertools.permutations(range(4))]
  best = max(permutations, key=lambda names: np.mean(names[train_centres] == train_labels))
  expected = np.mean(best[test_centres] == test_labels)
  assert 0.4 < expected < 0.95

  fit = fit_clusters(train, train_labels, num_classes=4, seed=0)
  assert (fit.num_clusters, fit.num_examples) == (4, 80)
  assert fit.accuracy(test, test_labels) == pytest.approx(expected, abs=1e-12)
  assert fit.train_accuracy == pytest.approx(np.mean(best[train_centres] == train_labels))
  confusion = fit.confusion(test, test_labels)
  np.testing.assert_array_equal(confusion.sum(axis=1), np.bincount(test_labels, minlength=4))


def test_matching_is_optimal_and_not_greedy():
  # Greedy would take the 10 first and be left with 0: 10 right. The best is 9 + 8.
  counts = np.array([[10, 9], [8, 0]])
  clusters = np.repeat([0, 0, 1, 1], counts.reshape(-1))
  labels = np.repeat([0, 1, 0, 1], counts.reshape(-1))
  np.testing.assert_array_equal(match_clusters(clusters, labels, 2), [1, 0])


def test_clusters_that_few_starts_find_are_found():
  # Each class is shared by two capsules, mostly by one of them, as digits by the objects of a run.
  labels, examples = np.arange(500) % 10, np.arange(500)
  share = np.random.RandomState(0).beta(0.4, 0.4, 500)
  features = np.zeros((500, 20), np.float32)
  features[examples, 2 * labels], features[examples, 2 * labels + 1] = share, 1 - share
  split = features, labels
  for seed in range(8):
    clusters = fit_clusters(*split, num_classes=10, seed=seed)
    assert cluster_entries(clusters, split)["lin_match"] == 1.0


def test_clusters_are_found_and_named_on_the_training_set_only():
  train, train_centres = blobs([10, 10])  # centres differ in x
  fit = fit_clusters(train, train_centres, num_classes=2, seed=0)
  test, test_centres = blobs([7, 4], seed=1)
  # Naming the clusters on the test set instead would give an accuracy of 1.
  np.testing.assert_array_equal(fit.confusion(test, 1 - test_centres), [[0, 4], [7, 0]])
  # These differ in y, and would make two clusters of their own; all are nearest to centre 0.
  test = np.array([[0.0, -10.0], [0.0, 10.0], [1.0, -9.0], [1.0, 9.0]], np.float32)
  np.testing.assert_array_equal(fit.confusion(test, np.array([0, 1, 0, 1])), [[2, 0], [2, 0]])


def test_dead_capsules_give_the_share_of_the_most_frequent_class():
  dead = np.full((30, 5), 0.25, np.float32)
  train_labels = np.array([1] * 16 + [0] * 8 + [2] * 6)
  test_labels = np.array([1] * 3 + [0] * 9 + [2] * 8)
  clusters = fit_clusters(dead, train_labels, num_classes=3, seed=0)
  probe = fit_probe(dead, train_labels, num_classes=3)
  assert (clusters.num_clusters, probe.converged) == (1, True)
  for fit in (clusters, probe):
    assert fit.train_accuracy == pytest.approx(16 / 30)
    assert fit.accuracy(dead[:20], test_labels) == pytest.approx(3 / 20)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"train": np.array([[0.0], [np.nan], [1.0]])}, r"\b1 of 3\b.*: 1\b"),
    ({"test": np.array([[np.inf], [0.0]])}, r"'rows'.*\b1 of 2\b.*: 0\b"),
    ({"train_labels": np.array([1, 1, 1])}, "class 1"),
    ({"num_classes": 4}, r"\b4\b.* 3\b"),
  ],
)
def test_what_cannot_be_fitted_or_scored_is_refused(change, message):
  arguments = {
    "train": np.array([[0.0], [1.0], [1.0]]),
    "train_labels": np.array([0, 1, 1]),
    "test": np.array([[0.0], [1.0]]),
    "test_labels": np.array([0, 1]),
    "num_classes": 2,
  }

  def accuracy(fit, train, train_labels, test, test_labels, num_classes):
    fitted = fit(train, train_labels, num_classes=num_classes, name="rows")
    return fitted.accuracy(test, test_labels)

  for fit in (functools.partial(fit_clusters, seed=0), fit_probe):
    assert accuracy(fit, **arguments) == 1.0
    with pytest.raises(ValueError, match=message):
      accuracy(fit, **(arguments | change))


def test_features_are_standardised_with_training_statistics():
  # One useful column a million times smaller than a useless one. Unstandardised, its weight would
  # have to be so large that the penalty forbids it.
  rng = np.random.RandomState(0)
  labels = np.arange(200) % 2
  features = np.stack([1e-6 * labels, rng.uniform(-1, 1, 200)], axis=1)
  probe = fit_probe(features, labels, num_classes=2)
  assert probe.accuracy(features, labels) == 1.0
  # Standardised by their own mean, a shift of the test features would not matter.
  assert probe.accuracy(features + np.array([0.6e-6, 0.0]), labels) == 0.5


def test_a_capsule_is_in_use_by_its_share_of_enough_examples():
  activations = np.zeros((200, 5))
  activations[:, 0] = 0.9  # most of every example
  activations[:, 1] = 0.09  # a share of at most 0.09 / 0.99
  activations[:2, 2] = 0.9  # a large share of 1 % of the examples
  activations[0, 3] = 0.9  # of half a per cent
  # capsule 4 is dead
  np.testing.assert_array_equal(capsules_in_use(activations), [True, False, True, False, False])
  # Shares do not depend on an example's total.
  assert capsules_in_use(np.array([[1e-6, 9e-6], [2.0, 18.0]])).all()
  assert not capsules_in_use(np.zeros((10, 3))).any()
  assert not capsules_in_use(np.full((10, 11), 0.7)).any()
  assert capsules_in_use(np.full((10, 9), 0.7)).all()
  with pytest.raises(ValueError, match=r"-0\.5"):
    capsules_in_use(np.array([[1.0, -0.5]]))


def test_smaller_images_are_centred_among_pixels():
  small = {"image": np.full((1, 1, 1, 1), 255, np.uint8), "label": np.zeros(1, int)}
  large = {"image": np.full((2, 3, 4, 1), 51, np.uint8), "label": np.ones(2, int)}
  (pixels, _), (others, labels) = pixel_features(small, large)
  assert pixels.dtype == np.float32
  np.testing.assert_array_equal(pixels.reshape(3, 4), np.eye(1, 12, 5).reshape(3, 4))
  np.testing.assert_allclose(others, np.full((2, 12), 0.2))
  np.testing.assert_array_equal(labels, [1, 1])
  (others, _), (pixels, _) = pixel_features(large, small)
  np.testing.assert_array_equal(pixels.reshape(3, 4), np.eye(1, 12, 5).reshape(3, 4))
