"""LIN-PRED and capsules in use on hand-made features."""

import numpy as np
import pytest

from scae_jax.evaluation.linear_probe import fit_probe, lin_pred
from scae_jax.evaluation.scores import Labelled, score
from scae_jax.evaluation.usage import capsules_in_use


def separable(n, seed):
  """Three classes on a line, which a linear classifier separates and three means do too."""
  rng = np.random.RandomState(seed)
  labels = rng.randint(0, 3, n)
  features = np.eye(3)[labels] + rng.uniform(-0.3, 0.3, (n, 3))
  return features.astype(np.float32), labels


def test_separable_classes_are_read_and_labels_may_be_in_any_order():
  train, train_labels = separable(90, 0)
  test, test_labels = separable(40, 1)
  assert lin_pred(train, train_labels, test, test_labels, num_classes=3).accuracy == 1.0
  renamed = np.array([2, 0, 1])
  result = lin_pred(train, renamed[train_labels], test, test_labels, num_classes=3)
  assert result.train_accuracy == 1.0
  assert result.accuracy == 0.0  # fitted on the training labels, not on those of the test set


def test_a_fitted_probe_scores_many_sets_and_refuses_other_widths():
  train, labels = separable(90, 0)
  probe = fit_probe(train, labels, num_classes=3, name="rows")
  assert (probe.train_accuracy, probe.converged, probe.num_examples) == (1.0, True, 90)
  for seed in (1, 2):
    test, test_labels = separable(40, seed)
    assert probe.accuracy(test, test_labels) == 1.0
    assert probe.accuracy(test, (test_labels + 1) % 3) == 0.0
  with pytest.raises(ValueError, match=r"'rows' have 3 columns in training and 2 in the examples"):
    probe.accuracy(train[:, :2], labels)
  with pytest.raises(ValueError, match=r"'rows' must be finite"):
    probe.accuracy(np.full((2, 3), np.nan), labels[:2])
  with pytest.raises(ValueError, match="at least 3 training examples, got 2"):
    fit_probe(train[:2], labels[:2], num_classes=3)


def test_exclusive_or_is_not_linear():
  corners = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
  features = np.tile(corners, (10, 1))
  labels = np.tile([0, 1, 1, 0], 10)
  result = lin_pred(features, labels, features, labels, num_classes=2)
  assert result.accuracy <= 0.75  # the best that one line can do
  assert result.converged


def test_features_are_standardised_with_training_statistics():
  # One useful column a million times smaller than a useless one. Unstandardised, its weight would
  # have to be so large that the penalty forbids it.
  rng = np.random.RandomState(0)
  labels = np.arange(200) % 2
  features = np.stack([1e-6 * labels, rng.uniform(-1, 1, 200)], axis=1)
  assert lin_pred(features, labels, features, labels, num_classes=2).accuracy == 1.0
  # Standardised by their own mean, a shift of the test features would not matter.
  shifted = features + np.array([0.6e-6, 0.0])
  result = lin_pred(features, labels, shifted, labels, num_classes=2)
  assert result.accuracy == 0.5


def test_dead_capsules_give_the_most_frequent_class_and_no_warning():
  dead = np.full((20, 4), 0.5, np.float32)
  labels = np.array([0] * 12 + [1] * 8)
  result = lin_pred(dead, labels, dead, labels, num_classes=2)
  assert result.accuracy == pytest.approx(0.6)
  assert result.converged


def test_a_fit_that_is_cut_says_so(monkeypatch):
  monkeypatch.setattr("scae_jax.evaluation.linear_probe.MAX_STEPS", 1)
  train, labels = separable(60, 0)
  assert not lin_pred(train, labels, train, labels, num_classes=3).converged


def test_a_capsule_is_in_use_by_its_share_of_enough_examples():
  activations = np.zeros((200, 5))
  activations[:, 0] = 0.9  # most of every example
  activations[:, 1] = 0.09  # a share of at most 0.09 / 0.99
  activations[:2, 2] = 0.9  # a large share of 1 % of the examples
  activations[0, 3] = 0.9  # of half a per cent
  # capsule 4 is dead
  np.testing.assert_array_equal(capsules_in_use(activations), [True, False, True, False, False])


def test_shares_do_not_depend_on_an_examples_total():
  activations = np.array([[1e-6, 9e-6], [2.0, 18.0]])
  np.testing.assert_array_equal(capsules_in_use(activations), [True, True])


def test_no_capsule_is_in_use_when_all_are_dead_or_all_equally_on():
  assert not capsules_in_use(np.zeros((10, 3))).any()
  assert not capsules_in_use(np.full((10, 11), 0.7)).any()
  assert capsules_in_use(np.full((10, 9), 0.7)).all()


def test_negative_activations_have_no_shares():
  with pytest.raises(ValueError, match=r"non-negative.*minimum of -0\.5"):
    capsules_in_use(np.array([[1.0, -0.5]]))


def test_scores_say_what_is_wrong_with_the_features():
  labels = np.array([0, 0, 0, 1, 2, 2])
  dead = Labelled(np.full((6, 4), 0.25, np.float32), labels)
  scores = score("prior_presence", dead, dead, num_classes=3, seed=0, are_capsules=True)
  assert scores.entries["lin_match"] == 0.5
  assert scores.entries["clusters"] == 1
  assert scores.entries["capsules_in_use"] == 4  # a quarter each
  (note,) = scores.notes
  assert "prior presence: only 1 distinct cluster(s) for 3 classes" in note
  assert np.trace(scores.confusion) == 3


def test_pixels_have_no_capsules():
  features, labels = separable(30, 0)
  one = Labelled(features - 1.0, labels)  # negative, which activations may not be
  scores = score("raw pixels", one, one, num_classes=3, seed=0, are_capsules=False)
  assert scores.entries["lin_match"] == scores.entries["lin_pred"] == 1.0
  assert "capsules_in_use" not in scores.entries
  assert scores.notes == ()
