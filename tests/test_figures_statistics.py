"""Figures of numbers: order, cells, points, bars and curves."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from scae_jax.evaluation.classification import by_confidence
from scae_jax.figures import FIGURES
from scae_jax.figures.coupling import coupling, mean_of_groups
from scae_jax.figures.curves import training_curves
from scae_jax.figures.statistics import (
  confusion,
  embedding,
  mean_by_class,
  presences_by_class,
  reliability,
)
from scae_jax.figures.style import palette
from tests.stand_ins import rendered, texts

NAMES = ("cat", "dog", "ox")
RNG = np.random.RandomState(0)
IMAGE = np.ones((4, 4, 1))


def test_capsules_stand_in_the_order_of_their_preferred_class():
  features = np.array([[1.0, 0.0], [3.0, 0.5], [0.0, 4.0]])
  means = mean_by_class(features, np.array([0, 0, 2]), 3)
  np.testing.assert_allclose(means, [[2.0, 0.25], [0.0, 0.0], [0.0, 4.0]])
  #                     capsule 0    1    2    3
  means = np.array([[0.1, 0.9, 0.0, 0.5], [0.0, 0.0, 0.8, 0.2], [0.6, 0.3, 0.1, 0.0]])
  axes = presences_by_class(means, np.arange(3), NAMES, "mass").axes[0]
  assert texts(axes.get_xticklabels()) == ["1", "3", "2", "0"]
  assert texts(axes.get_yticklabels()) == list(NAMES)
  np.testing.assert_allclose(axes.get_images()[0].get_array(), means[:, [1, 3, 2, 0]])
  assert axes.get_images()[0].get_clim()[0] == 0.0
  assert "mass" in axes.get_title()
  features = np.random.RandomState(0).uniform(0.1, 0.2, (6, 100))
  features[:, 37] = 0.01
  axes = presences_by_class(features, np.array([0, 1, 2] * 2), NAMES).axes[0]
  tick_labels = texts(axes.get_xticklabels())
  assert len(set(tick_labels)) == 64  # the most present ones
  assert "37" not in tick_labels


def test_confusion_writes_counts_and_colours_shares_of_a_label():
  matrix = np.array([[3, 1, 0], [0, 0, 5], [0, 0, 0]])
  axes = confusion(matrix, NAMES, "LIN-MATCH of mass", "cluster").axes[0]
  shares = [[0.75, 0.25, 0], [0, 0, 1], [0, 0, 0]]
  np.testing.assert_allclose(axes.get_images()[0].get_array(), shares)
  written = {text.get_position(): text.get_text() for text in axes.texts}
  assert written == {(0, 0): "3", (1, 0): "1", (2, 1): "5"}
  assert axes.get_title() == "LIN-MATCH of mass"
  assert (axes.get_ylabel(), axes.get_xlabel()) == ("label", "cluster")


def test_points_have_the_colour_of_their_class():
  from matplotlib import pyplot

  points = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
  figure = embedding(points, np.array([2, 0, 2]), NAMES, "t-SNE")
  (scatter,) = figure.axes[0].collections
  np.testing.assert_array_equal(scatter.get_offsets(), points)
  np.testing.assert_allclose(scatter.get_facecolors()[:, :3], palette(3)[[2, 0, 2]])
  assert texts(figure.legends[0].get_texts()) == list(NAMES)
  assert pyplot.get_fignums() == []  # figures leave it alone


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
  assert texts(figure.legends[0].get_texts()) == ["train", "test"]


def test_children_are_averaged_in_groups_of_neighbours():
  shares = RNG.uniform(size=(2, 130, 3))
  rows = mean_of_groups(shares)
  assert rows.shape == (2, 64, 3)
  # 130 = 2 x 3 + 62 x 2, the larger groups first.
  for row, children in ((1, slice(3, 6)), (2, slice(6, 8)), (63, slice(128, None))):
    np.testing.assert_allclose(rows[:, row], shares[:, children].mean(axis=1))
  np.testing.assert_array_equal(mean_of_groups(shares[:, :5]), shares[:, :5])


def maps_and_bars(*arguments):
  figure = coupling(IMAGE, *arguments)
  rendered(figure)
  maps = [axes for axes in figure.axes if axes.get_title().startswith("iteration")]
  bars = [axes for axes in figure.axes if axes.patches and axes.get_xlabel() == "parent capsule"]
  ends = [[(bar.get_y(), bar.get_y() + bar.get_height()) for bar in a.patches] for a in bars]
  return maps, bars, ends


def test_every_iteration_has_a_map_and_the_weighted_agreement_below_it():
  shares = np.array([[[0.5, 0.5], [0.5, 0.5]], [[0.9, 0.1], [0.6, 0.4]]])
  agreement = np.array([[[1.0, -2.0], [3.0, 0.0]], [[-5.0, 0.5], [-1.0, 0.5]]])
  maps, bars, ends = maps_and_bars(shares, agreement, ("cat", "dog"))
  for axes, expected in zip(maps, shares, strict=True):
    picture = axes.get_images()[0]
    np.testing.assert_array_equal(picture.get_array(), expected)
    # The furthest from an even share is 0.9; colours reach as far to the other side.
    limits = (picture.norm.vmin, picture.norm.vcenter, picture.norm.vmax)
    np.testing.assert_allclose(limits, (0.1, 0.5, 0.9))
  assert maps[0].get_ylabel() == "2 child capsules"
  # Of both signs: all stand on a tenth less than the least, which is -3.4.
  np.testing.assert_allclose(ends, [[(-3.74, 2), (-3.74, -1)], [(-3.74, -3.4), (-3.74, 0.5)]])
  dark = [[bar.get_facecolor()[:3] == to_rgb("0.2") for bar in axes.patches] for axes in bars]
  assert dark == [[True, False], [False, True]]
  assert texts(bars[1].get_xticklabels()) == ["cat", "dog"]


@pytest.mark.parametrize(
  ("shares", "agreement", "expected"),
  [
    # A parent without children has the mean of all agreements.
    ([[[1.0, 0.0], [1.0, 0.0]]], [[[1.0, 2.0], [3.0, 5.0]]], [[(0, 2), (0, 3.5)]]),
    # Log densities stand on less than the least of them.
    (
      np.full((2, 1, 2), 0.5),
      [[[-10.0, -20.0]], [[-15.0, -5.0]]],
      [[(-22, -10), (-22, -20)], [(-22, -15), (-22, -5)]],
    ),
  ],
)
def test_where_bars_stand(shares, agreement, expected):
  _, bars, ends = maps_and_bars(np.array(shares), np.array(agreement))
  np.testing.assert_allclose(ends, expected)
  assert texts(bars[0].get_xticklabels()) == ["0", "1"]


def test_one_iteration_of_even_shares_and_of_sure_ones():
  sure = np.zeros((1, 66, 4))
  sure[..., 2] = 1
  for shares, limits, label in (
    (np.full((1, 128, 4), 0.25), (0.225, 0.275), "128 child capsules, 2 a row"),
    (sure, (0, 1), "66 child capsules, about 1 a row"),
  ):
    (axes,), _, _ = maps_and_bars(shares, np.zeros(shares.shape))
    norm = axes.get_images()[0].norm
    np.testing.assert_allclose((norm.vmin, norm.vmax), limits)
    assert axes.get_ylabel() == label
  with pytest.raises(ValueError, match=r"\b4\b.*\b3 names"):
    coupling(IMAGE, sure, sure, ("a", "b", "c"))


def test_reliability_draws_the_bins_that_have_examples():
  confidence = np.array([0.45, 0.41, 0.95, 0.99, 0.97])
  bins = by_confidence(confidence, np.array([True, False, True, True, True]))
  figure = reliability(*bins, "ours")
  rendered(figure)
  above, below = figure.axes
  assert above.get_title() == "ours"
  boxes = [(bar.get_x() * 15, bar.get_height()) for bar in above.patches]
  np.testing.assert_allclose(boxes, [(6, 0.5), (14, 1.0)])
  np.testing.assert_allclose([bar.get_height() for bar in below.patches], [0.4, 0.6])
  np.testing.assert_allclose(above.lines[-1].get_xydata(), [(0.43, 0.5), (0.97, 1.0)])
  assert above.patches[0].get_width() == pytest.approx(1 / 15)


def test_rows_of_panels_have_baselines_without_colour():
  angles = np.array([0, 90])
  accuracy = {
    "one": {"pixels": np.array([0.7, 0.6]), "a": np.array([0.9, np.nan])},
    "two": {"b": np.array([0.5, 0.4])},
    "three": {"a": np.array([0.3, 0.2])},
  }
  looks = {"across": "range", "num_columns": 2, "baselines": ("pixels",)}
  figure = FIGURES["viewpoint"](angles, accuracy, 0.1, **looks)
  first, second, third, empty = figure.axes
  assert [axes.get_title() for axes in (first, second, third)] == list(accuracy)
  assert [axes.get_xlabel() for axes in (first, second, third)] == ["range"] * 3
  assert (empty.get_visible(), third.get_visible()) == (False, True)
  assert first.get_position().y0 == second.get_position().y0 > third.get_position().y0
  pixels, a, chance = first.lines
  np.testing.assert_allclose(a.get_ydata(), [90, np.nan])
  np.testing.assert_allclose(chance.get_ydata(), 10)
  assert (pixels.get_color(), pixels.get_linestyle(), a.get_linestyle()) == ("0.5", "--", "-")
  assert a.get_color() == pytest.approx(third.lines[0].get_color())
  assert list(a.get_color()) != list(second.lines[0].get_color())
  assert texts(figure.legends[0].texts) == ["a", "b", "pixels"]
  assert first.get_xticks().tolist() == [0, 90]
  with pytest.raises(TypeError, match="accuracy"):
    FIGURES["viewpoint"](angles, {"upright": {"a": np.zeros(3)}}, 0.1)
