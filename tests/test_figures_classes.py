"""Figures of capsules of classes: what is drawn where, in which order and colour."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from scae_jax.evaluation.classification import by_confidence
from scae_jax.figures import (
  capsule_dimensions,
  class_reconstructions,
  coupling,
  overlaid_reconstructions,
  reliability,
)
from scae_jax.figures.coupling import mean_of_groups
from scae_jax.figures.mosaics import mosaic
from scae_jax.figures.reconstructions import WRONG, red_and_green
from tests.test_figures_pictures import drawn, rendered

RNG = np.random.RandomState(0)


def answers(figure):
  """Texts below pictures, and whether each is in the colour of a wrong answer."""
  labels = [axes.xaxis.label for axes in figure.axes if axes.get_xlabel()]
  return [(label.get_text(), label.get_color() == WRONG) for label in labels]


def class_arguments(n=3):
  return {
    "image": RNG.uniform(size=(n, 4, 4, 1)),
    "reconstruction": RNG.uniform(size=(n, 4, 4, 1)),
    "label": np.arange(n) + 2,
    "predicted": np.where(np.arange(n) == 1, 7, np.arange(n) + 2),
  }


def test_reconstructions_stand_below_images_and_wrong_answers_are_red():
  arguments = class_arguments()
  figure = class_reconstructions(**arguments)
  cells = drawn(figure)
  assert set(cells) == {(row, column) for row in range(2) for column in range(3)}
  for (row, column), picture in cells.items():
    expected = arguments[("image", "reconstruction")[row]][column, ..., 0]
    np.testing.assert_array_equal(picture, np.float32(expected))
  assert answers(figure) == [("2 → 2", False), ("3 → 7", True), ("4 → 4", False)]
  rendered(figure)


def test_ten_examples_are_drawn():
  assert len(answers(class_reconstructions(**class_arguments(12)))) == 10


def test_the_first_picture_of_a_pair_is_red_and_the_second_green():
  pairs = np.zeros((1, 2, 2, 2, 3))
  pairs[0, 0, 0] = 0.5  # the upper row
  pairs[0, 1, :, 0] = [0.3, 0.6, 0.9]  # the left column, in a colour whose mean is 0.6
  expected = [[[0.5, 0.6, 0], [0.5, 0, 0]], [[0, 0.6, 0], [0, 0, 0]]]
  np.testing.assert_allclose(red_and_green(pairs)[0], expected)


def test_overlays_have_sources_and_reconstructions_in_the_same_colours():
  arguments = {
    "image": RNG.uniform(size=(2, 4, 4, 1)),
    "sources": RNG.uniform(size=(2, 2, 4, 4, 1)),
    "reconstructions": RNG.uniform(size=(2, 2, 4, 4, 1)),
    "label": np.array([[3, 8], [0, 1]]),
    "predicted": np.array([[3, 8], [0, 5]]),
  }
  figure = overlaid_reconstructions(**arguments)
  cells = drawn(figure)
  np.testing.assert_array_equal(cells[0, 1], np.float32(arguments["image"][1, ..., 0]))
  for column in range(2):
    sources, made = arguments["sources"][column], arguments["reconstructions"][column]
    np.testing.assert_array_equal(cells[1, column][..., 0], np.float32(sources[0, ..., 0]))
    np.testing.assert_array_equal(cells[1, column][..., 1], np.float32(sources[1, ..., 0]))
    np.testing.assert_array_equal(cells[2, column][..., 0], np.float32(made[0, ..., 0]))
    np.testing.assert_array_equal(cells[2, column][..., 1], np.float32(made[1, ..., 0]))
    assert not cells[2, column][..., 2].any()
  assert answers(figure) == [("3, 8 → 3, 8", False), ("0, 1 → 0, 5", True)]


def test_a_mosaic_has_lines_around_pictures():
  grey = 0.35
  pictures = np.array([[0.1, 0.2], [0.3, 2.0]])[:, :, None, None, None] * np.ones((2, 2, 1, 2, 1))
  expected = [
    [grey] * 7,
    [grey, 0.1, 0.1, grey, 0.2, 0.2, grey],
    [grey] * 7,
    [grey, 0.3, 0.3, grey, 1.0, 1.0, grey],
    [grey] * 7,
  ]
  np.testing.assert_allclose(mosaic(pictures)[..., 0], expected)


def test_dimensions_stand_in_rows_and_offsets_in_columns():
  perturbed = RNG.uniform(size=(8, 18, 3, 2, 2, 1))
  figure = capsule_dimensions(perturbed, np.array([-0.25, 0.0, 0.25]))
  blocks = [axes for axes in figure.axes if axes.get_images()]
  assert len(blocks) == 6
  for block, example in zip(blocks, perturbed[:6], strict=True):
    expected = mosaic(example[:16])[..., 0]
    np.testing.assert_array_equal(block.get_images()[0].get_array(), np.float32(expected))
  ticks = [
    (tick, text.get_text())
    for tick, text in zip(blocks[0].get_xticks(), blocks[0].get_xticklabels(), strict=True)
  ]
  assert ticks == [(1.5, "-0.25"), (4.5, "+0.00"), (7.5, "+0.25")]
  np.testing.assert_array_equal(blocks[0].get_yticks(), 1.5 + 3 * np.arange(16))


def test_children_are_averaged_in_groups_of_neighbours():
  shares = RNG.uniform(size=(2, 130, 3))
  rows = mean_of_groups(shares)
  assert rows.shape == (2, 64, 3)
  # 130 = 2 x 3 + 62 x 2, the larger groups first.
  np.testing.assert_allclose(rows[:, 1], shares[:, 3:6].mean(axis=1))
  np.testing.assert_allclose(rows[:, 2], shares[:, 6:8].mean(axis=1))
  np.testing.assert_allclose(rows[:, 63], shares[:, 128:].mean(axis=1))
  np.testing.assert_array_equal(mean_of_groups(shares[:, :5]), shares[:, :5])


def test_every_iteration_has_a_map_and_the_weighted_agreement_below_it():
  shares = np.array([[[0.5, 0.5], [0.5, 0.5]], [[0.9, 0.1], [0.6, 0.4]]])
  agreement = np.array([[[1.0, -2.0], [3.0, 0.0]], [[-5.0, 0.5], [-1.0, 0.5]]])
  figure = coupling(np.ones((4, 4, 1)), shares, agreement, ("cat", "dog"))
  rendered(figure)
  maps = [axes for axes in figure.axes if axes.get_title().startswith("iteration")]
  for axes, expected in zip(maps, shares, strict=True):
    picture = axes.get_images()[0]
    np.testing.assert_array_equal(picture.get_array(), expected)
    # The furthest from an even share is 0.9; colours reach as far to the other side.
    limits = (picture.norm.vmin, picture.norm.vcenter, picture.norm.vmax)
    np.testing.assert_allclose(limits, (0.1, 0.5, 0.9))
  assert maps[0].get_ylabel() == "2 child capsules"
  bars = [axes for axes in figure.axes if axes.patches and axes.get_xlabel() == "parent capsule"]
  # Of both signs: all stand on a tenth less than the least, which is -3.4.
  found = [[(bar.get_y(), bar.get_y() + bar.get_height()) for bar in a.patches] for a in bars]
  np.testing.assert_allclose(found, [[(-3.74, 2), (-3.74, -1)], [(-3.74, -3.4), (-3.74, 0.5)]])
  dark = [[bar.get_facecolor()[:3] == to_rgb("0.2") for bar in axes.patches] for axes in bars]
  assert dark == [[True, False], [False, True]]
  assert [text.get_text() for text in bars[1].get_xticklabels()] == ["cat", "dog"]


def test_a_parent_without_children_has_the_mean_of_all_agreements():
  shares = np.array([[[1.0, 0.0], [1.0, 0.0]]])
  figure = coupling(np.ones((4, 4, 1)), shares, np.array([[[1.0, 2.0], [3.0, 5.0]]]))
  (bars,) = (axes for axes in figure.axes if axes.patches and axes.get_xlabel() == "parent capsule")
  assert [text.get_text() for text in bars.get_xticklabels()] == ["0", "1"]
  assert {bar.get_y() for bar in bars.patches} == {0.0}
  np.testing.assert_allclose([bar.get_height() for bar in bars.patches], [2.0, 3.5])


def test_log_densities_stand_on_less_than_the_least_of_them():
  agreement = np.array([[[-10.0, -20.0]], [[-15.0, -5.0]]])
  figure = coupling(np.ones((4, 4, 1)), np.full((2, 1, 2), 0.5), agreement)
  bars = [axes for axes in figure.axes if axes.patches and axes.get_xlabel() == "parent capsule"]
  found = [[(bar.get_y(), bar.get_y() + bar.get_height()) for bar in a.patches] for a in bars]
  np.testing.assert_allclose(found, [[(-22, -10), (-22, -20)], [(-22, -15), (-22, -5)]])


def test_one_iteration_of_even_shares_and_of_sure_ones():
  figure = coupling(np.ones((4, 4, 1)), np.full((1, 128, 4), 0.25), np.zeros((1, 128, 4)))
  (axes,) = (axes for axes in figure.axes if axes.get_title() == "iteration 1")
  norm = axes.get_images()[0].norm
  np.testing.assert_allclose((norm.vmin, norm.vmax), (0.225, 0.275))
  assert axes.get_ylabel() == "128 child capsules, 2 a row"
  sure = np.zeros((1, 66, 4))
  sure[..., 2] = 1
  figure = coupling(np.ones((4, 4, 1)), sure, sure)
  (axes,) = (axes for axes in figure.axes if axes.get_title() == "iteration 1")
  assert (axes.get_images()[0].norm.vmin, axes.get_images()[0].norm.vmax) == (0, 1)
  assert axes.get_ylabel() == "66 child capsules, about 1 a row"


def test_every_parent_has_a_name():
  shares = np.full((2, 5, 4), 0.25)
  with pytest.raises(ValueError, match="each of 4 parents, got 3 names"):
    coupling(np.ones((4, 4, 1)), shares, shares, ("a", "b", "c"))


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
  dots = above.lines[-1].get_xydata()
  np.testing.assert_allclose(dots, [(0.43, 0.5), (0.97, 1.0)])
  assert above.patches[0].get_width() == pytest.approx(1 / 15)
