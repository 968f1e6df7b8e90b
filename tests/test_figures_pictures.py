"""Figures of images: what is drawn where, in which order, grey or colour."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from scae_jax.figures import FIGURES
from scae_jax.figures.mosaics import describe, in_colour, middles, mosaic
from scae_jax.figures.reconstructions import WRONG, colour_parts, red_and_green
from scae_jax.figures.style import NO_OBJECT, palette
from tests.stand_ins import drawn, rendered, texts, turn

RNG = np.random.RandomState(0)


def uniform(*shape):
  return RNG.uniform(size=shape)


def reconstruction_arguments(n=3, c=1):
  """Part 0 draws the upper half and belongs to object 5, part 1 the lower and to object 2."""
  mixing = np.zeros((n, 2, 4, 4))
  mixing[:, 0, :2] = mixing[:, 1, 2:] = 1.0
  return {
    **{name: uniform(n, 4, 4, c) for name in ("image", "bottom_up", "top_down")},
    "part_mixing": mixing,
    "part_winner": np.tile([5, 2], (n, 1)),
    "object_presence": uniform(n, 6),
  }


def class_arguments(n=3):
  label = np.arange(n) + 2
  pictures = {name: uniform(n, 4, 4, 1) for name in ("image", "reconstruction")}
  return {**pictures, "label": label, "predicted": np.where(label == 3, 7, label)}


def overlay_arguments():
  pairs = {name: uniform(2, 2, 4, 4, 1) for name in ("sources", "reconstructions")}
  label, predicted = np.array([[3, 8], [0, 1]]), np.array([[3, 8], [0, 5]])
  return {"image": uniform(2, 4, 4, 1), **pairs, "label": label, "predicted": predicted}


def free_form_arguments(n=12):
  pictures = {name: uniform(n, 4, 4, 1) for name in ("image", "before", "after")}
  bounds = {"bound_before": -np.arange(n) - 0.4, "bound_after": np.arange(n) + 0.0}
  return {**pictures, **bounds, "title": "Turned"}


def object_arguments(n=2, k=7):
  drawings = np.zeros((n, k, 4, 4, 1)) + np.arange(k)[:, None, None, None] / 10
  presence = [[0.1, 0.9, 0.2, 0.3, 0.4, 0.0, 0.8], [0.65, 0.1, 0.0, 0.55, 0.2, 0.9, 0.15]]
  fields = {"object_reconstruction": drawings, "object_presence": np.array(presence)}
  return {"image": np.ones((n, 4, 4, 1)), **fields}


def identity_arguments(n=2):
  mixing = np.zeros((n, 3, 5, 4, 4))
  mixing[0, 1, 3, 0, 1] = 1.0  # wholly part 3
  mixing[0, 2, 4, 0, 1] = 0.5  # part 4, half bright
  mixing[1, 0, :2, 2, 2] = 0.5  # parts 0 and 1
  angles = np.array([0.0, 30.0, 60.0])
  return {"image": uniform(n, 3, 4, 4, 1), "part_mixing": mixing, "degrees": angles}


def dimension_arguments(n=8):
  return {"perturbed": uniform(n, 18, 3, 2, 2, 1), "offsets": np.array([-0.25, 0.0, 0.25])}


def object_sample_arguments(k=3):
  shift = np.array([[0, 0, 0.3], [0, 0, -0.2]])
  poses = [turn(0), turn(30), 0.75 * turn(0), turn(0) + shift]
  return {"samples": uniform(k, 4, 5, 5, 1), "poses": np.stack(poses)}


def draw(name, arguments):
  return FIGURES[name](**arguments)


@pytest.mark.parametrize(
  ("name", "arguments", "shape"),
  [
    ("reconstructions", reconstruction_arguments(14), (4, 10)),
    ("class_reconstructions", class_arguments(12), (2, 10)),
    ("overlaid_reconstructions", overlay_arguments(), (3, 2)),
    ("free_form", free_form_arguments(), (3, 10)),
    ("object_reconstructions", object_arguments(), (2, 6)),
    ("capsule_dimensions", dimension_arguments(), (2, 3)),
    ("part_identity", identity_arguments(12), (8, 1)),
    ("prior_samples", {"samples": uniform(5, 4, 4, 1)}, (1, 1)),
    ("object_samples", object_sample_arguments(), (1, 1)),
  ],
)
def test_a_figure_has_rows_and_columns_of_pictures_and_cuts_what_does_not_fit(
  name, arguments, shape
):
  """And is rendered without a warning."""
  figure = draw(name, arguments)
  rows, columns = shape
  assert set(drawn(figure)) == {(row, column) for row in range(rows) for column in range(columns)}
  assert rendered(figure).std() > 0.05


def test_pixels_take_the_colour_of_the_object_that_won_their_part():
  mixing = np.zeros((2, 3, 2, 2))
  mixing[0, 0, 0, 0] = 1.0  # wholly part 0
  mixing[0, 1, 0, 1] = 0.5  # part 1 in a half-bright pixel
  mixing[0, :2, 1, 0] = 0.5  # shared by parts 0 and 1
  mixing[1, 2, 1, 1] = 1.0  # part 2, which no object won
  coloured = colour_parts(mixing, np.array([[3, 1, 0], [0, 0, 4]]), 4)
  colours = palette(4)
  expected = [colours[3], 0.5 * colours[1], 0.5 * colours[3] + 0.5 * colours[1], np.zeros(3)]
  np.testing.assert_allclose(coloured[0].reshape(4, 3), expected)
  np.testing.assert_allclose(coloured[1, 1, 1], NO_OBJECT)
  assert to_rgb("0.5") == NO_OBJECT


@pytest.mark.parametrize(("count", "apart"), [(3, 0.25), (10, 0.25), (24, 0.2), (64, 0.03)])
def test_objects_have_distinct_colours_that_do_not_depend_on_how_many_there_are(count, apart):
  colours = palette(count)
  assert colours.shape == (count, 3)
  assert 0 <= colours.min() <= colours.max() <= 1
  np.testing.assert_array_equal(palette(64)[:count], colours)
  against = np.concatenate([colours, [NO_OBJECT]])
  distances = np.linalg.norm(against[:, None] - against[None], axis=-1)
  assert distances[~np.eye(count + 1, dtype=bool)].min() > apart


def assert_rows(figure, arguments, *names):
  """Rows of grey pictures, an example a column."""
  cells = drawn(figure)
  columns = max(column for _, column in cells) + 1
  for row, name in enumerate(names):
    row_pictures = np.stack([cells[row, column] for column in range(columns)])
    np.testing.assert_array_equal(row_pictures, np.float32(arguments[name][:columns, ..., 0]))


def test_reconstructions_stand_in_rows():
  arguments = reconstruction_arguments()
  figure = draw("reconstructions", arguments)
  assert_rows(figure, arguments, "image", "bottom_up", "top_down")
  with pytest.raises(TypeError, match="top_down"):  # by `@typed`, as of all figures
    draw("reconstructions", arguments | {"top_down": np.zeros((2, 4, 4, 1))})


def test_an_object_has_the_colour_of_its_rank_among_the_winners_in_every_column():
  arguments = reconstruction_arguments()
  arguments["part_winner"][:] = [[5, 2], [4, 5], [5, 4]]  # 5 wins 3 of 6, 4 wins 2, 2 wins 1
  figure = draw("reconstructions", arguments)
  colours = np.float32(palette(3))
  owner_colours = [drawn(figure)[3, column][[0, 3], 0] for column in range(3)]
  np.testing.assert_allclose(owner_colours, colours[[[0, 2], [1, 0], [0, 1]]], rtol=1e-6)
  (legend,) = figure.legends
  faces = [patch.get_facecolor()[:3] for patch in legend.get_patches()]
  named = dict(zip(texts(legend.get_texts()), faces, strict=True))
  assert named.keys() == {"object 2", "object 4", "object 5"}
  for rank, winner in enumerate((5, 4, 2)):
    np.testing.assert_allclose(named[f"object {winner}"], colours[rank], rtol=1e-6)


def test_one_channel_is_grey_between_zero_and_one_and_three_are_colours(caplog):
  arguments = reconstruction_arguments(n=1)
  arguments["image"] = np.full((1, 4, 4, 1), 0.25)  # autoscaled, it would be black or white
  image = draw("reconstructions", arguments).axes[0].get_images()[0]
  assert image.get_clim() == (0.0, 1.0)
  np.testing.assert_allclose(image.to_rgba(image.get_array())[0, 0, :3], 0.25, atol=0.005)
  arguments = reconstruction_arguments(n=1, c=3)
  arguments["image"][0, 0, 0] = [2.0, 0.5, -1.0]  # as a reconstruction may be
  cells = drawn(draw("reconstructions", arguments))
  np.testing.assert_allclose(cells[0, 0][0, 0], [1.0, 0.5, 0.0])
  assert caplog.messages == []  # matplotlib would clip too, and complain
  colour, two = uniform(2, 4, 4, 3), uniform(2, 4, 4, 2)
  assert in_colour(colour) is colour
  np.testing.assert_allclose(in_colour(two), np.repeat(two.mean(-1)[..., None], 3, axis=-1))


def test_objects_are_drawn_most_present_first():
  cells = drawn(draw("object_reconstructions", object_arguments()))
  order = [[round(float(cells[row, j].max()) * 10) for j in range(1, 6)] for row in range(2)]
  assert order == [[1, 6, 4, 3, 2], [5, 0, 3, 4, 6]]


def test_templates_stand_above_their_alphas_and_those_above_their_product():
  pictures = np.arange(12)[:, None, None, None] / 20 * np.ones((12, 3, 3, 1))
  cells = drawn(draw("templates", {"templates": pictures, "alphas": 1 - pictures}))
  assert len(cells) == 36
  for part in range(12):
    row, column, value = part // 10 * 3, part % 10, part / 20
    column_means = [cells[row + i, column].mean() for i in range(3)]
    np.testing.assert_allclose(column_means, [value, 1 - value, value * (1 - value)], rtol=1e-6)
  figure = draw("templates", {"templates": uniform(70, 3, 3, 3)})
  assert len(drawn(figure)) == 64


def answers(figure):
  """Texts below pictures, and whether each is in the colour of a wrong answer."""
  labels = [axes.xaxis.label for axes in figure.axes if axes.get_xlabel()]
  return [(label.get_text(), label.get_color() == WRONG) for label in labels]


def test_reconstructions_stand_below_images_and_wrong_answers_are_red():
  arguments = class_arguments()
  figure = draw("class_reconstructions", arguments)
  assert_rows(figure, arguments, "image", "reconstruction")
  assert answers(figure) == [("2 → 2", False), ("3 → 7", True), ("4 → 4", False)]


def test_overlays_have_sources_and_reconstructions_in_the_same_colours():
  pairs = np.zeros((1, 2, 2, 2, 3))
  pairs[0, 0, 0] = 0.5  # of the first, red, the upper row
  pairs[0, 1, :, 0] = [0.3, 0.6, 0.9]  # of the second the left column, in a colour of mean 0.6
  expected = [[[0.5, 0.6, 0], [0.5, 0, 0]], [[0, 0.6, 0], [0, 0, 0]]]
  np.testing.assert_allclose(red_and_green(pairs)[0], expected)
  arguments = overlay_arguments()
  figure = draw("overlaid_reconstructions", arguments)
  assert_rows(figure, arguments, "image")
  for row, name in ((1, "sources"), (2, "reconstructions")):
    row_pictures = np.stack([drawn(figure)[row, column] for column in range(2)])
    np.testing.assert_array_equal(row_pictures, np.float32(red_and_green(arguments[name])))
  assert answers(figure) == [("3, 8 → 3, 8", False), ("0, 1 → 0, 5", True)]


def test_images_stand_above_what_is_believed_of_them():
  arguments = free_form_arguments()
  figure = draw("free_form", arguments)
  assert_rows(figure, arguments, "image", "before", "after")


def test_a_mosaic_has_lines_around_pictures_and_ticks_in_their_middles():
  pictures = np.array([[0.1, 0.2], [0.3, 2.0]])[:, :, None, None, None] * np.ones((2, 2, 3, 3, 1))
  picture, grey = mosaic(pictures)[..., 0], 0.35
  assert picture.shape == (9, 9)
  np.testing.assert_allclose((picture[::4], picture[:, ::4].T), grey)
  for row, column in np.ndindex(2, 2):
    y, x = (int(middles(2, 3)[place]) for place in (row, column))
    expected = np.minimum(pictures[row, column, ..., 0], 1)
    np.testing.assert_allclose(picture[y - 1 : y + 2, x - 1 : x + 2], expected)


def test_dimensions_stand_in_rows_and_offsets_in_columns():
  arguments = dimension_arguments()
  blocks = draw("capsule_dimensions", arguments).axes
  for block, example in zip(blocks, arguments["perturbed"][:6], strict=True):
    expected = np.float32(mosaic(example[:16])[..., 0])
    np.testing.assert_array_equal(block.get_images()[0].get_array(), expected)


def test_samples_of_the_prior_stand_ten_a_row():
  samples = uniform(12, 4, 4, 1)
  (cell,) = drawn(draw("prior_samples", {"samples": samples})).values()
  table = np.concatenate([samples, np.zeros((8, 4, 4, 1))]).reshape(2, 10, 4, 4, 1)
  np.testing.assert_allclose(cell, mosaic(table)[..., 0], rtol=1e-6)
  (cell,) = drawn(draw("prior_samples", {"samples": np.zeros((104, 4, 4, 1))})).values()
  assert cell.shape == (51, 51)  # a hundred of them


def test_objects_stand_in_rows_and_columns_say_what_moved_them():
  arguments = object_sample_arguments()
  samples = arguments["samples"]
  (axes,) = draw("object_samples", arguments).axes
  assert texts(axes.get_xticklabels()) == ["identity", "+30°", "× 0.75", "right 0.3\nup 0.2"]
  assert texts(axes.get_yticklabels()) == ["0", "1", "2"]
  faint = np.concatenate([samples[:1], 0.19 * samples[:2], samples[1:]])
  figure = draw("object_samples", arguments | {"samples": faint})
  (cell,) = drawn(figure).values()
  np.testing.assert_allclose(cell, mosaic(samples)[..., 0], rtol=1e-6)
  assert texts(figure.axes[0].get_yticklabels()) == ["0", "3", "4"]
  black = {"samples": np.zeros((40, 1, 4, 4, 1)), "poses": np.eye(2, 3)[None]}
  (cell,) = drawn(draw("object_samples", black)).values()
  assert cell.shape == (32 * 5 + 1, 6)
  pose = 1.25 * turn(-30) + [[0, 0, -0.3], [0, 0, 0.1]]
  assert describe(pose) == "-30°\n× 1.25\nleft 0.3\ndown 0.1"


def test_parts_have_colours_of_their_own_at_every_angle():
  arguments = identity_arguments()
  figure = draw("part_identity", arguments)
  for picture, image, mixing in zip(
    drawn(figure).values(), arguments["image"], arguments["part_mixing"], strict=True
  ):
    rows = [image.repeat(3, axis=-1), colour_parts(mixing, np.tile(np.arange(5), (3, 1)), 5)]
    np.testing.assert_allclose(picture, mosaic(np.stack(rows)), rtol=1e-6)
