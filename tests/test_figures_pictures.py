"""Figures of images: what is drawn where, in which grey or colour."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from scae_jax.figures import object_reconstructions, reconstructions, templates
from scae_jax.figures.reconstructions import colour_parts
from scae_jax.figures.style import NO_OBJECT, palette


def drawn(figure):
  """The picture in every axes that has one, by row of the grid and column."""
  cells = {}
  for axes in figure.axes:
    if axes.get_images():
      spec = axes.get_subplotspec()
      cells[spec.rowspan.start, spec.colspan.start] = np.asarray(axes.get_images()[0].get_array())
  return cells


def rendered(figure):
  """Pixels as saved, float [height, width, 3]: draws everything, so that warnings show."""
  canvas = FigureCanvasAgg(figure)
  canvas.draw()
  return np.asarray(canvas.buffer_rgba())[..., :3] / 255


def test_pixels_take_the_colour_of_the_object_that_won_their_part():
  mixing = np.zeros((2, 3, 2, 2))
  mixing[0, 0, 0, 0] = 1.0  # wholly part 0
  mixing[0, 1, 0, 1] = 0.5  # part 1 in a half-bright pixel
  mixing[0, :2, 1, 0] = 0.5  # shared by parts 0 and 1
  mixing[1, 2, 1, 1] = 1.0  # part 2, which no object won
  winner = np.array([[3, 1, 0], [0, 0, 4]])
  coloured = colour_parts(mixing, winner, 4)
  colours = palette(4)
  np.testing.assert_allclose(coloured[0, 0, 0], colours[3])
  np.testing.assert_allclose(coloured[0, 0, 1], 0.5 * colours[1])
  np.testing.assert_allclose(coloured[0, 1, 0], 0.5 * colours[3] + 0.5 * colours[1])
  np.testing.assert_allclose(coloured[0, 1, 1], 0.0)
  np.testing.assert_allclose(coloured[1, 1, 1], NO_OBJECT)


@pytest.mark.parametrize(("count", "apart"), [(3, 0.25), (10, 0.25), (24, 0.2), (64, 0.03)])
def test_objects_have_distinct_colours_that_do_not_depend_on_how_many_there_are(count, apart):
  colours = palette(count)
  assert colours.shape == (count, 3)
  assert colours.min() >= 0
  assert colours.max() <= 1
  np.testing.assert_array_equal(palette(64)[:count], colours)
  against = np.concatenate([colours, [NO_OBJECT]])
  distances = np.linalg.norm(against[:, None] - against[None], axis=-1)
  assert distances[~np.eye(count + 1, dtype=bool)].min() > apart


def reconstruction_arguments(n=3, c=1):
  rng = np.random.RandomState(0)
  mixing = np.zeros((n, 2, 4, 4))
  mixing[:, 0, :2] = 1.0
  mixing[:, 1, 2:] = 1.0
  return {
    "image": rng.uniform(size=(n, 4, 4, c)),
    "bottom_up": rng.uniform(size=(n, 4, 4, c)),
    "top_down": rng.uniform(size=(n, 4, 4, c)),
    "part_mixing": mixing,
    "part_winner": np.tile([5, 2], (n, 1)),
    "object_presence": rng.uniform(size=(n, 6)),
  }


def test_reconstructions_stand_in_labelled_rows():
  arguments = reconstruction_arguments()
  figure = reconstructions(**arguments)
  cells = drawn(figure)
  assert set(cells) == {(row, column) for row in range(4) for column in range(3)}
  for row, name in enumerate(("image", "bottom_up", "top_down")):
    for column in range(3):
      np.testing.assert_allclose(
        cells[row, column], np.float32(arguments[name][column, ..., 0]), rtol=1e-6
      )
  first, second = np.float32(palette(2))  # objects 2 and 5 win as much
  np.testing.assert_allclose(cells[3, 0][0], np.tile(second, (4, 1)), rtol=1e-6)
  np.testing.assert_allclose(cells[3, 0][3], np.tile(first, (4, 1)), rtol=1e-6)
  labels = [axes.get_ylabel() for axes in figure.axes if axes.get_ylabel()]
  assert labels == ["target", "from parts", "from objects", "parts by\nobject"]


def test_the_legend_names_the_objects_that_can_be_seen():
  arguments = reconstruction_arguments()
  assert legend_of(arguments) == ["object 2", "object 5"]
  arguments["part_winner"][0, 0] = -1
  assert legend_of(arguments) == ["object 2", "no object", "object 5"]  # by column
  arguments["part_mixing"][:] = 0
  assert not reconstructions(**arguments).legends


def legend_of(arguments):
  (legend,) = reconstructions(**arguments).legends
  return [text.get_text() for text in legend.get_texts()]


def test_an_object_has_the_colour_of_its_rank_among_the_winners_in_every_column():
  arguments = reconstruction_arguments()
  arguments["part_winner"][:] = [[5, 2], [4, 5], [5, 4]]  # 5 wins 3 of 6, 4 wins 2, 2 wins 1
  figure = reconstructions(**arguments)
  colours = np.float32(palette(3))
  shown = [drawn(figure)[3, column][[0, 3], 0] for column in range(3)]
  np.testing.assert_allclose(shown, colours[[[0, 2], [1, 0], [0, 1]]], rtol=1e-6)
  (legend,) = figure.legends
  faces = [patch.get_facecolor()[:3] for patch in legend.get_patches()]
  # Two columns, of two and of one: along the rows they are 5, 4 and 2.
  assert [text.get_text() for text in legend.get_texts()] == ["object 5", "object 2", "object 4"]
  np.testing.assert_allclose(faces, colours[[0, 2, 1]], rtol=1e-6)


def test_colours_and_legend_are_those_of_the_examples_that_are_drawn():
  arguments = reconstruction_arguments(14)
  arguments["part_winner"][:10] = 3
  assert legend_of(arguments) == ["object 3"]


@pytest.mark.parametrize(
  ("num_winners", "grey", "entries"),
  [
    (8, False, [f"object {k}" for k in range(8)]),
    (9, False, [*[f"object {k}" for k in range(7)], "and 2 others"]),
    (8, True, [*[f"object {k}" for k in range(6)], "and 2 others", "no object"]),
  ],
)
def test_a_legend_without_room_for_all_says_how_many_it_leaves_out(num_winners, grey, entries):
  """Three columns of pictures give a legend four rows of two."""
  parts = num_winners + grey
  arguments = reconstruction_arguments()
  arguments["part_mixing"] = np.full((3, parts, 4, 4), 1 / parts)
  winner = np.arange(parts)
  arguments["part_winner"] = np.tile(np.where(winner < num_winners, winner, 99), (3, 1))
  arguments["object_presence"] = np.zeros((3, 12))
  assert legend_of(arguments) == [*entries[::2], *entries[1::2]]


def test_the_winners_colours_reach_the_saved_pixels():
  arguments = reconstruction_arguments()
  arguments["part_winner"][:] = 5
  pixels = rendered(reconstructions(**arguments)).reshape(-1, 3)
  near = np.abs(pixels - palette(6)[0]).max(axis=1) < 0.01  # eight bits a channel
  assert near.mean() > 0.05
  assert not (np.abs(pixels - palette(6)[2]).max(axis=1) < 0.01).any()


def test_one_channel_is_grey_between_zero_and_one_and_three_are_colours(caplog):
  arguments = reconstruction_arguments(n=1)
  arguments["image"] = np.full((1, 4, 4, 1), 0.25)  # autoscaled, it would be black or white
  figure = reconstructions(**arguments)
  image = figure.axes[0].get_images()[0]
  assert image.get_clim() == (0.0, 1.0)
  np.testing.assert_allclose(image.to_rgba(image.get_array())[0, 0, :3], 0.25, atol=0.005)

  arguments = reconstruction_arguments(n=1, c=3)
  arguments["image"][0, 0, 0] = [2.0, 0.5, -1.0]  # as a reconstruction may be
  cells = drawn(reconstructions(**arguments))
  np.testing.assert_allclose(cells[0, 0][0, 0], [1.0, 0.5, 0.0])
  assert caplog.messages == []  # matplotlib would clip too, and complain


def test_more_examples_than_fit_are_cut():
  assert max(column for _, column in drawn(reconstructions(**reconstruction_arguments(14)))) == 9


def test_objects_are_drawn_most_present_first():
  n, k = 2, 7
  drawings = np.zeros((n, k, 4, 4, 1)) + np.arange(k)[:, None, None, None] / 10
  presence = np.array([[0.1, 0.9, 0.2, 0.3, 0.4, 0.0, 0.8], [0.65, 0.1, 0.0, 0.55, 0.2, 0.9, 0.15]])
  figure = object_reconstructions(np.ones((n, 4, 4, 1)), drawings, presence)
  cells = drawn(figure)
  assert set(cells) == {(row, column) for row in range(2) for column in range(6)}
  order = [[round(float(cells[row, j].max()) * 10) for j in range(1, 6)] for row in range(2)]
  assert order == [[1, 6, 4, 3, 2], [5, 0, 3, 4, 6]]
  labels = [axes.get_xlabel() for axes in figure.axes if axes.get_xlabel()]
  assert labels[:2] == ["object 1: 0.90", "object 6: 0.80"]
  assert labels[5] == "object 5: 0.90"


def test_templates_stand_above_their_alphas_and_those_above_their_product():
  pictures = np.arange(12)[:, None, None, None] / 20 * np.ones((12, 3, 3, 1))
  cells = drawn(templates(pictures, 1 - pictures))
  assert len(cells) == 36
  for part in range(12):
    row, column = part // 10 * 3, part % 10
    np.testing.assert_allclose(cells[row, column], part / 20, rtol=1e-6)
    np.testing.assert_allclose(cells[row + 1, column], 1 - part / 20, rtol=1e-6)
    np.testing.assert_allclose(cells[row + 2, column], part / 20 * (1 - part / 20), rtol=1e-6)


def test_templates_without_alphas_and_more_than_fit():
  figure = templates(np.random.RandomState(0).uniform(size=(70, 3, 3, 3)))
  assert len(drawn(figure)) == 64
  assert figure.get_suptitle() == "Templates of the 70 parts (first 64)"


@pytest.mark.parametrize(
  "change",
  [
    {"top_down": np.zeros((2, 4, 4, 1))},
    {"top_down": np.zeros((3, 4, 4))},
    {"part_winner": np.zeros((3, 2))},
  ],
)
def test_arrays_that_do_not_fit_are_named(change):
  """By `@typed`, as of all figures."""
  with pytest.raises(TypeError, match=next(iter(change))):
    reconstructions(**(reconstruction_arguments() | change))


def test_no_object_has_its_own_grey():
  assert to_rgb("0.5") == NO_OBJECT
