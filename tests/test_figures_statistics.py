"""Figures of numbers: order, cells, points and curves."""

import numpy as np
import pytest

from scae_jax.figures import confusion, embedding, presences_by_class, training_curves
from scae_jax.figures.statistics import mean_by_class
from scae_jax.figures.style import palette

NAMES = ("cat", "dog", "ox")


def test_means_by_class():
  features = np.array([[1.0, 0.0], [3.0, 0.5], [0.0, 4.0]])
  means = mean_by_class(features, np.array([0, 0, 2]), 3)
  np.testing.assert_allclose(means, [[2.0, 0.25], [0.0, 0.0], [0.0, 4.0]])


def test_capsules_stand_in_the_order_of_their_preferred_class():
  #                     capsule 0    1    2    3
  means = np.array([[0.1, 0.9, 0.0, 0.5], [0.0, 0.0, 0.8, 0.2], [0.6, 0.3, 0.1, 0.0]])
  figure = presences_by_class(means, np.arange(3), NAMES, "mass")
  axes = figure.axes[0]
  assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "3", "2", "0"]
  assert [tick.get_text() for tick in axes.get_yticklabels()] == list(NAMES)
  np.testing.assert_allclose(axes.get_images()[0].get_array(), means[:, [1, 3, 2, 0]])
  assert axes.get_images()[0].get_clim()[0] == 0.0
  assert "mass" in axes.get_title()


def test_of_many_capsules_the_most_present_are_drawn():
  features = np.random.RandomState(0).uniform(0.1, 0.2, (6, 100))
  features[:, 37] = 0.01
  figure = presences_by_class(features, np.array([0, 1, 2] * 2), NAMES)
  drawn = [tick.get_text() for tick in figure.axes[0].get_xticklabels()]
  assert len(set(drawn)) == 64
  assert "37" not in drawn


def test_confusion_writes_counts_and_colours_shares_of_a_label():
  matrix = np.array([[3, 1, 0], [0, 0, 5], [0, 0, 0]])
  axes = confusion(matrix, NAMES, "LIN-MATCH of mass", "cluster").axes[0]
  shares = [[0.75, 0.25, 0], [0, 0, 1], [0, 0, 0]]
  np.testing.assert_allclose(axes.get_images()[0].get_array(), shares)
  written = {text.get_position(): text.get_text() for text in axes.texts}
  assert written == {(0, 0): "3", (1, 0): "1", (2, 1): "5"}
  assert axes.get_title() == "LIN-MATCH of mass"
  assert (axes.get_ylabel(), axes.get_xlabel()) == ("label", "cluster")


def test_confusion_of_more_classes_than_names_is_refused():
  with pytest.raises(ValueError, match="2 classes were counted, and 3 have names"):
    confusion(np.eye(2), NAMES)


def test_points_have_the_colour_of_their_class():
  points = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
  figure = embedding(points, np.array([2, 0, 2]), NAMES, "t-SNE")
  (scatter,) = figure.axes[0].collections
  np.testing.assert_array_equal(scatter.get_offsets(), points)
  np.testing.assert_allclose(scatter.get_facecolors()[:, :3], palette(3)[[2, 0, 2]])
  assert [text.get_text() for text in figure.legends[0].get_texts()] == list(NAMES)


def test_curves_of_both_splits_share_a_panel_and_skip_what_was_not_measured():
  steps = np.array([10, 20, 30])
  values = {
    "train/total": np.array([3.0, 2.0, 1.0]),
    "train/lr": np.array([np.nan, 0.5, np.nan]),
    "test/total": np.array([4.0, np.nan, 2.0]),
  }
  figure = training_curves(steps, values)
  panels = {axes.get_title(): axes for axes in figure.axes if axes.get_visible()}
  assert set(panels) == {"total", "lr"}
  train, test = panels["total"].lines
  np.testing.assert_array_equal(train.get_xydata(), [[10, 3], [20, 2], [30, 1]])
  np.testing.assert_array_equal(test.get_xydata(), [[10, 4], [30, 2]])
  (rate,) = panels["lr"].lines
  np.testing.assert_array_equal(rate.get_xydata(), [[20, 0.5]])
  assert rate.get_marker() == "o"  # a line of one point would not be seen
  assert [text.get_text() for text in figure.legends[0].get_texts()] == ["train", "test"]
  with pytest.raises(ValueError, match="at least one quantity"):
    training_curves(steps, {})


def test_figures_leave_pyplot_alone():
  from matplotlib import pyplot

  embedding(np.zeros((2, 2)), np.array([0, 1]), NAMES)
  assert pyplot.get_fignums() == []
