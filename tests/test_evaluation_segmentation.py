"""Segmentation figures against scikit-learn, SciPy and brute force; points of no capsule."""

import itertools

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import adjusted_rand_score, mutual_info_score

from scae_jax.evaluation.encode import mean_metrics
from scae_jax.evaluation.segmentation import segmentation

PATTERNS, CAPSULES = 3, 4


def score(presence, pattern, capsule):
  return segmentation(*(np.atleast_2d(x) for x in (presence, pattern, capsule)))


def random_scenes(count=60, num_points=9, agreement=0.6, seed=0):
  """Patterns, capsules that follow them so often, and absent points and points of no capsule."""
  rng = np.random.RandomState(seed)
  pattern = rng.randint(0, PATTERNS, (count, num_points))
  follows = rng.uniform(size=pattern.shape) < agreement
  capsule = np.where(follows, (pattern + 1) % CAPSULES, rng.randint(-1, CAPSULES, pattern.shape))
  presence = (rng.uniform(size=pattern.shape) < 0.7).astype(np.float32)
  presence[:, 0] = 1
  return presence, pattern, capsule


def groups(presence, pattern, capsule):
  """Labels of the present points of one scene; each point of no capsule is a group of its own."""
  there = presence > 0
  alone = CAPSULES + np.arange(len(capsule))
  return pattern[there], np.where(capsule < 0, alone, capsule)[there]


def test_accuracy_is_that_of_the_best_matching():
  presence, pattern, capsule = random_scenes()
  expected = []
  for there, true, predicted in zip(presence > 0, pattern, capsule, strict=True):
    matchings = itertools.permutations(range(CAPSULES), PATTERNS)
    right = max(sum(predicted[there] == np.array(m)[true[there]]) for m in matchings)
    expected.append(right / there.sum())
  result = score(presence, pattern, capsule)
  np.testing.assert_allclose(result["accuracy"], expected, rtol=1e-12)
  assert 0.4 < np.mean(expected) < 0.9


def test_index_and_variation_are_those_of_scikit_learn_and_of_entropies():
  for agreement in (0.0, 0.6, 1.0):
    scenes = random_scenes(agreement=agreement, num_points=7)
    expected = [adjusted_rand_score(*groups(*scene)) for scene in zip(*scenes, strict=True)]
    np.testing.assert_allclose(score(*scenes)["adjusted_rand_index"], expected, atol=1e-12)
  scenes = random_scenes()
  expected = []
  for scene in zip(*scenes, strict=True):
    true, predicted = groups(*scene)
    entropy = [stats.entropy(np.unique(x, return_counts=True)[1]) for x in (true, predicted)]
    expected.append(sum(entropy) - 2 * mutual_info_score(true, predicted))
  np.testing.assert_allclose(score(*scenes)["variation_of_information"], expected, atol=1e-12)


def test_small_scenes_and_perfect_groups():
  """Of sizes 4, 6 and 4 in this order, sums of float64 differ by -7e-15."""
  capsule, pattern = (np.repeat(order, [4, 6, 4]) for order in ([0, 2, 1], [0, 1, 2]))
  result = score(np.ones(14), pattern, capsule)
  assert 0 <= result["variation_of_information"][0] < 1e-12
  assert result["accuracy"][0] == 1
  one_group = score(np.ones(3), np.zeros(3, int), np.ones(3, int))
  assert one_group["adjusted_rand_index"][0] == 1
  # One point; means over scenes and not over points; more patterns than capsules.
  alone = mean_metrics(score(np.array([1, 0, 0]), np.array([1, 0, 0]), np.array([2, 2, 2])))
  assert list(alone.values()) == [1.0, 1.0, 0.0]
  presence = np.array([[1, 0, 0, 0], [1, 1, 1, 1]])
  capsule = np.array([[0, 0, 0, 0], [0, 1, 2, 3]])
  means = mean_metrics(score(presence, np.zeros((2, 4), int), capsule))
  assert means["accuracy"] == pytest.approx((1 + 1 / 4) / 2)
  result = score(np.ones(3), np.array([0, 1, 2]), np.array([0, 0, 0]))
  assert result["accuracy"][0] == pytest.approx(1 / 3)
