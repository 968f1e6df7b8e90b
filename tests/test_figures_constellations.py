"""Figure of constellations: colours, shapes of votes, and truth beside them."""

import numpy as np
import pytest

from scae_jax.figures.constellations import constellations, outline
from scae_jax.figures.style import NO_OBJECT, palette
from tests.stand_ins import rendered, texts

CAPSULES = 3


def arguments(n=4):
  """Two patterns of three present points each, one slot absent; capsule 1 found both badly.

  Capsule 2 is present by a hair and has other votes that count; 7 is no capsule, as -1 is none.
  """
  rng = np.random.RandomState(0)
  won = np.array([[True, True, True, False]] * 2 + [[True, True, False, True]])
  return {
    "points": rng.uniform(-1, 1, (n, 7, 2)),
    "presence": np.tile([1, 1, 1, 0, 1, 1, 1], (n, 1)).astype(np.float32),
    "pattern": np.tile([0, 0, 0, 0, 1, 1, 1], (n, 1)),
    "capsule": np.tile([2, 7, 1, -1, 1, 1, -1], (n, 1)),
    "votes": rng.uniform(-1, 1, (n, CAPSULES, 4, 2)),
    "vote_won": np.tile(won, (n, 1, 1)),
    "capsule_presence": np.tile([0.1, 0.9, 0.501], (n, 1)),
  }


def cell(figure, row, column):
  places = [(axes.get_subplotspec(), axes) for axes in figure.axes]
  return {(spec.rowspan.start, spec.colspan.start): axes for spec, axes in places}[row, column]


def test_points_have_the_colour_of_their_capsule_and_absent_ones_are_not_drawn():
  scenes = arguments()
  figure = constellations(**scenes)
  for i in range(4):
    (dots,) = cell(figure, 0, i).collections
    there = scenes["presence"][i] > 0
    np.testing.assert_allclose(dots.get_offsets(), scenes["points"][i][there])
    colours = np.concatenate([palette(CAPSULES), [NO_OBJECT]])
    np.testing.assert_allclose(dots.get_facecolors()[:, :3], colours[[2, 3, 1, 1, 1, 3]])
    (truth,) = cell(figure, 1, i).collections
    np.testing.assert_allclose(truth.get_offsets(), scenes["points"][i][there])
    assert len(np.unique(truth.get_facecolors(), axis=0)) == 1
  names = ["capsule 1", "capsule 2", "no capsule", "votes of a present capsule"]
  assert texts(figure.legends[0].get_texts()) == names


def corners(patch):
  """Without the point that closes the polygon; in ascending order."""
  return np.array(sorted(map(tuple, patch.get_xy()[:-1])))


def test_votes_of_present_capsules_and_points_of_a_pattern_are_shapes():
  scenes = arguments()
  figure = constellations(**scenes)
  drawn, truth = cell(figure, 0, 2), cell(figure, 1, 1)
  for k, counted, patch in zip((1, 2), ([0, 1, 2], [0, 1, 3]), drawn.patches, strict=True):
    np.testing.assert_allclose(patch.get_facecolor()[:3], palette(CAPSULES)[k])
    np.testing.assert_allclose(corners(patch), sorted(map(tuple, scenes["votes"][2, k, counted])))
  for slots, patch in zip((slice(0, 3), slice(4, 7)), truth.patches, strict=True):
    np.testing.assert_allclose(corners(patch), sorted(map(tuple, scenes["points"][1, slots])))
  # Corners of a square given crosswise, here and there.
  square = np.array([[1.0, 1], [-1, -1], [1, -1], [-1, 1]])
  for middle in (0, 8):
    drawn = outline(square + middle) - middle
    np.testing.assert_array_equal(drawn, [[-1, -1], [1, -1], [1, 1], [-1, 1]])


def test_the_first_eight_are_drawn_in_the_same_square():
  scenes = arguments(11)
  scenes["capsule"][8:] = 0
  figure = constellations(**scenes)
  assert len(figure.axes) == 16
  for axes in figure.axes:
    assert axes.get_xlim() == axes.get_ylim() == (-1.05, 1.05)
    assert axes.get_aspect() == 1
  assert "capsule 0" not in texts(figure.legends[0].get_texts())
  assert rendered(figure).std() > 0.01


@pytest.mark.parametrize(("name", "value"), [("capsule_presence", 0.5), ("vote_won", False)])
def test_one_scene_with_no_capsule_present(name, value):
  """A half is not there yet, as in the segmentation with predicted presence."""
  scenes = arguments(1)
  scenes[name] = np.full_like(scenes[name], value)
  figure = constellations(**scenes)
  assert not cell(figure, 0, 0).patches
  rendered(figure)
