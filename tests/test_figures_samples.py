"""Figures of what a generative model draws by itself, and of parts by identity."""

import numpy as np

from scae_jax.figures import object_samples, part_identity, prior_samples
from scae_jax.figures.mosaics import describe, in_colour, middles, mosaic
from scae_jax.figures.style import palette
from tests.test_figures_pictures import drawn, rendered

RNG = np.random.RandomState(0)


def turn(degrees):
  cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
  return np.array([[cos, sin, 0], [-sin, cos, 0]])  # counter-clockwise: y runs down


def test_middles_are_those_of_the_pictures():
  table = np.zeros((1, 3, 5, 5, 1))
  table[:, :, 2, 2] = 1  # the pixel in the middle
  bright = np.argwhere(mosaic(table)[..., 0] == 1)
  np.testing.assert_array_equal(bright[:, 1], middles(3, 5))
  np.testing.assert_array_equal(bright[:, 0], np.full(3, middles(1, 5)))


def test_samples_of_the_prior_stand_ten_a_row():
  samples = RNG.uniform(size=(12, 4, 4, 1))
  (cell,) = drawn(prior_samples(samples)).values()
  table = np.concatenate([samples, np.zeros((8, 4, 4, 1))]).reshape(2, 10, 4, 4, 1)
  np.testing.assert_allclose(cell, mosaic(table)[..., 0], rtol=1e-6)
  (few,) = drawn(prior_samples(samples[:3])).values()
  assert few.shape == (6, 16)
  (many,) = drawn(prior_samples(np.zeros((104, 4, 4, 3)))).values()
  assert many.shape == (51, 51, 3)


def test_objects_stand_in_rows_and_columns_say_what_moved_them():
  shift = np.array([[0, 0, 0.3], [0, 0, -0.2]])
  poses = [turn(0), turn(30), 0.75 * turn(0), turn(0) + shift]
  samples = RNG.uniform(size=(3, 4, 5, 5, 1))
  figure = object_samples(samples, np.stack(poses))
  (cell,) = drawn(figure).values()
  np.testing.assert_allclose(cell, mosaic(samples)[..., 0], rtol=1e-6)
  (axes,) = figure.axes
  labels = [text.get_text() for text in axes.get_xticklabels()]
  assert labels == ["identity", "+30°", "× 0.75", "right 0.3\nup 0.2"]
  np.testing.assert_array_equal(axes.get_xticks(), middles(4, 5))
  assert [text.get_text() for text in axes.get_yticklabels()] == ["0", "1", "2"]
  assert rendered(figure).std() > 0.1
  faint = np.concatenate([samples[:1], 0.19 * samples[:2], samples[1:]])
  figure = object_samples(faint, np.stack(poses))
  (cell,) = drawn(figure).values()
  np.testing.assert_allclose(cell, mosaic(samples)[..., 0], rtol=1e-6)
  assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["0", "3", "4"]
  assert figure.get_suptitle() == "What each object draws, without the 2 of 5 that draw nothing"
  (cell,) = drawn(object_samples(np.zeros((40, 1, 4, 4, 1)), np.eye(2, 3)[None])).values()
  assert cell.shape == (32 * 5 + 1, 6)


def test_poses_in_words():
  assert describe(1.25 * turn(-30) + [[0, 0, -0.3], [0, 0, 0.1]]) == (
    "-30°\n× 1.25\nleft 0.3\ndown 0.1"
  )


def test_parts_have_colours_of_their_own_at_every_angle():
  image = RNG.uniform(size=(2, 3, 4, 4, 1))
  mixing = np.zeros((2, 3, 5, 4, 4))
  mixing[0, 1, 3, 0, 1] = 1.0  # wholly part 3
  mixing[0, 2, 4, 0, 1] = 0.5  # part 4, half bright
  mixing[1, 0, :2, 2, 2] = 0.5  # parts 0 and 1
  figure = part_identity(image, mixing, np.array([0.0, 30.0, 60.0]))
  cells = drawn(figure)
  assert set(cells) == {(0, 0), (1, 0)}
  first, second = (cells[row, 0] for row in range(2))
  grey = mosaic(np.repeat(image[:1, :], 3, axis=-1))
  np.testing.assert_allclose(first[:6], grey[:6], rtol=1e-6)
  colours = palette(5)
  # Pictures of 4 pixels with a line of one between: row 1 starts at 6, column 1 at 6.
  np.testing.assert_allclose(first[6 + 0, 6 + 1], colours[3], rtol=1e-6)
  np.testing.assert_allclose(first[6 + 0, 11 + 1], colours[4] / 2, rtol=1e-6)
  np.testing.assert_allclose(second[6 + 2, 1 + 2], (colours[0] + colours[1]) / 2, rtol=1e-6)
  assert not first[6:10, 1:5].any()
  top, bottom = figure.axes
  assert [text.get_text() for text in top.get_xticklabels()] == ["0°", "30°", "60°"]
  assert [text.get_text() for text in bottom.get_yticklabels()] == ["image", "parts"]
  assert rendered(figure).std() > 0.1
  many = [np.concatenate([x] * 5) for x in (image, mixing)]
  assert len(drawn(part_identity(*many, np.arange(3.0)))) == 8


def test_pictures_of_any_number_of_channels_become_colours():
  colour = RNG.uniform(size=(2, 4, 4, 3))
  assert in_colour(colour) is colour
  two = RNG.uniform(size=(2, 4, 4, 2))
  np.testing.assert_allclose(in_colour(two), np.repeat(two.mean(-1)[..., None], 3, axis=-1))
