"""Affine maps: drawn within their ranges, carried out as SciPy does, and no ink lost."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage

from scae_jax.data import affine
from scae_jax.data.augmentation import centre_on_canvas
from scae_jax.data.sources import load_dataset
from tests.toy_data import assert_uniform, random_images

CANVAS = 40
RANGES = ((0.8, 1.2), (0.8, 1.2), (-20, 20), (-0.2, 0.2))  # of affNIST's `parameters`


@pytest.fixture(scope="module")
def digits() -> np.ndarray:
  """All embedded digits, 16x16."""
  splits = load_dataset("digits").splits
  return np.concatenate([splits["train"].images, splits["test"].images])


@pytest.fixture(scope="module")
def drawn(digits) -> affine.Drawn:
  return affine.draw_affine(digits, CANVAS, 0)


def parameters(maps: np.ndarray) -> np.ndarray:
  """Scale x, scale y, degrees and shear of each map, [n, 4]; the last row tells the rotation."""
  scale_y = np.linalg.norm(maps[:, 1, :2], axis=1)
  sin, cos = -maps[:, 1, 0] / scale_y, maps[:, 1, 1] / scale_y
  scale_x = maps[:, 0, 0] * cos + maps[:, 0, 1] * sin
  shear = (maps[:, 0, 1] * cos - maps[:, 0, 0] * sin) / scale_y
  return np.stack([scale_x, scale_y, np.degrees(np.arctan2(sin, cos)), shear], axis=1)


def test_parameters_fill_their_ranges_evenly(drawn):
  found = parameters(drawn.maps)
  assert drawn.num_redrawn == 0
  for values, (low, high) in zip(found.T, RANGES, strict=True):
    assert_uniform(values, low, high)
  correlations = np.corrcoef(found.T) - np.eye(4)
  assert np.abs(correlations).max() < 4 / np.sqrt(len(found))


def test_the_maps_that_figures_are_of():
  """Of the embedded digits' first and last test image: figures of results/ are on these."""
  maps = affine.draw_affine(load_dataset("digits").splits["test"].images, 40, 0).maps
  first = [[1.0155051, 0.0925289, 9.3426161], [-0.0778508, 1.0832819, 14.9735300]]
  last = [[0.8051820, -0.0106503, 6.3299737], [-0.0512301, 0.8117479, 7.8525578]]
  np.testing.assert_allclose(maps[0], first, atol=1e-6)
  np.testing.assert_allclose(maps[-1], last, atol=1e-6)


def test_shifts_fill_the_room_that_the_ink_leaves(digits, drawn):
  """Against a loop over the corners of the square that each pixel of ink spreads over."""
  shares = []
  for image, one in zip(digits, drawn.maps, strict=True):
    rows, columns = np.nonzero(image[..., 0])
    corners = [(columns + i, rows + j) for i in (-1, 1) for j in (-1, 1)]
    ends = one[:, :2] @ np.concatenate(corners, axis=1)
    least, most = -1 - ends.min(axis=1), CANVAS - ends.max(axis=1)
    shares.append((one[:, 2] - least) / (most - least))
  for share in np.array(shares).T:
    assert_uniform(share, 0, 1)
  assert abs(np.corrcoef(np.array(shares).T)[0, 1]) < 4 / np.sqrt(len(shares))


@pytest.mark.parametrize("canvas", [CANVAS, 20])
def test_no_ink_is_cut_off(digits, canvas):
  """On a canvas with a margin of 8 all round, nothing is drawn in the margin."""
  digits = digits[::4]
  maps = affine.draw_affine(digits, canvas, 0).maps
  margin = 8
  wide = maps + margin * np.array([[0, 0, 1], [0, 0, 1]])
  whole = affine.resample(digits, wide, canvas + 2 * margin)
  inside = whole[:, margin:-margin, margin:-margin]
  np.testing.assert_array_equal(inside, affine.resample(digits, maps, canvas))
  np.testing.assert_array_equal(whole.sum(axis=(1, 2, 3)), inside.sum(axis=(1, 2, 3)))
  assert inside.any(axis=(1, 2, 3)).all()
  assert inside[:, 0].any()  # some touch the border: the room is used to its end
  assert inside[:, -1].any()
  assert affine.keeps_ink(digits, maps, canvas).all()


def test_on_a_small_canvas_maps_are_drawn_again(digits, drawn):
  small = affine.draw_affine(digits, 20, 0)
  assert 0 < small.num_redrawn < len(digits)
  found = parameters(small.maps)
  assert np.abs(found[:, 2]).max() <= 20
  assert found[:, :2].min() >= 0.8
  same = np.isclose(small.maps[:, :, :2], drawn.maps[:, :, :2]).all(axis=(1, 2))
  assert np.sum(~same) == small.num_redrawn  # the others have the map that they would have had


def test_an_images_map_does_not_depend_on_the_luck_of_others(digits):
  before = affine.draw_affine(digits[:100], 20, 0)
  fuller = digits[:100].copy()
  fuller[:10] = 255  # full of ink, so that some that did fit must be drawn again
  after = affine.draw_affine(fuller, 20, 0)
  assert after.num_redrawn > before.num_redrawn
  np.testing.assert_array_equal(after.maps[10:], before.maps[10:])


def test_what_cannot_fit_is_refused_and_what_has_no_ink_is_drawn():
  maps = affine.draw_affine(np.zeros((50, 6, 8, 3), np.uint8), 10, 0).maps
  middle = maps @ np.array([4, 3, 1])
  assert 0 <= middle.min() <= middle.max() <= 9
  images = np.full((3, 20, 20, 1), 255, np.uint8)
  images[0] = 0
  with pytest.raises(ValueError, match=r"got 16 pixels, on which image 1 \(2 such\) did not fit"):
    affine.draw_affine(images, 16, 0)


def bilinear(image: np.ndarray, x: float, y: float) -> np.ndarray:
  """The value of an image at a point, black outside: each pixel is a tent around its centre."""
  rows, columns = (np.arange(side) for side in image.shape[:2])
  heights = np.maximum(1 - abs(y - rows), 0), np.maximum(1 - abs(x - columns), 0)
  return np.einsum("i,j,ijc->c", *heights, image)


def test_resampling_is_bilinear():
  """Against a loop, on images that are not square, in colour."""
  images = random_images(8, 9, 12)
  maps = np.random.RandomState(1).uniform(-1.5, 1.5, (8, 2, 3)) + np.array([[0, 0, 6], [0, 0, 6]])
  maps[5] = [[1, 0, 400], [0, 1, 0]]  # far off the canvas
  maps[6] = [[0.05, 0, 7], [0, 0.05, 7]]  # less than a pixel
  maps[7] = [[30, 0, -170], [0, 30, -120]]  # a few pixels fill the canvas
  canvas = 15
  drawn = affine.resample(images, maps, canvas)
  assert drawn.dtype == np.uint8
  for image, one, actual in zip(images, maps, drawn, strict=True):
    inverse = np.linalg.inv(np.vstack([one, [0, 0, 1]]))
    for row, column in np.ndindex(canvas, canvas):
      x, y, _ = inverse @ [column, row, 1]
      # Half of a whole number is what rounding takes.
      assert np.abs(actual[row, column] - bilinear(image, x, y)).max() <= 0.5 + 1e-6
  assert not drawn[5].any()
  assert all(drawn[i].any() for i in (0, 1, 2, 3, 4, 6, 7))


def placed(images, canvas, degrees=0.0, shift=(0, 0)):
  linear = affine.rotation(np.full(len(images), float(degrees)))
  shifts = np.tile(np.array(shift, float), (len(images), 1))
  maps = affine.place(linear, shifts, images.shape[1:], canvas)
  return affine.resample(images, maps, canvas), maps


@pytest.mark.parametrize(("height", "width", "canvas"), [(4, 4, 8), (5, 4, 8), (4, 7, 7)])
def test_an_image_that_is_not_moved_lies_where_batches_put_it(height, width, canvas):
  images = random_images(2, height, width)
  expected = centre_on_canvas(jnp.asarray(images), canvas)
  np.testing.assert_array_equal(placed(images, canvas)[0], expected)


def test_rotation_is_counter_clockwise_and_about_the_middle():
  images = random_images(2, 6, 6)
  padded = placed(images, 10)[0]
  np.testing.assert_array_equal(placed(images, 10, 90)[0], np.rot90(padded, axes=(1, 2)))
  np.testing.assert_array_equal(placed(images, 10, -180)[0], padded[:, ::-1, ::-1])
  seen = ndimage.rotate(padded[0, ..., 0].astype(float), 30, reshape=False, order=1)
  assert np.abs(placed(images, 10, 30)[0][0, ..., 0] - seen).max() <= 0.5 + 1e-6


def test_shifts_go_right_and_down():
  images = random_images(2, 6, 6)
  padded = placed(images, 14)[0]
  expected = np.roll(padded, (-2, 3), axis=(1, 2))
  np.testing.assert_array_equal(placed(images, 14, shift=(3, -2))[0], expected)


def test_ink_that_leaves_the_canvas_is_told():
  """A square of 4x4 of ink in 8x8, on a canvas of 10: three pixels of room on each side."""
  images = np.zeros((2, 8, 8, 1), np.uint8)
  images[:, 2:6, 2:6] = 9
  for shift in ((0, 0), (3, -3), (4, 0), (0, -4), (3.5, 0)):
    maps = placed(images, 10, shift=shift)[1]
    assert affine.keeps_ink(images, maps, 10).tolist() == [np.abs(shift).max() <= 3] * 2


def test_share_of_ink_that_is_lost():
  """Two rows of four and one of eight, moved up by one and by two; nothing; a single pixel."""
  images = np.zeros((3, 4, 4, 1), np.uint8)
  images[0, :2] = 4
  images[0, 2] = 8
  images[2, 1, 1] = 200
  for up, expected in ((0, [0, 0, 0]), (1, [0.25, 0, 0]), (2, [0.5, 0, 1]), (9, [1, 0, 1])):
    maps = placed(images, 4, shift=(0, -up))[1]
    np.testing.assert_allclose(affine.lost_ink(images, maps, 4), expected)
    on_its_side, left = images.swapaxes(1, 2), placed(images, 4, shift=(-up, 0))[1]
    np.testing.assert_allclose(affine.lost_ink(on_its_side, left, 4), expected)
  # Half of a pixel's tent lies off the canvas when it is moved by half a pixel.
  maps = placed(images, 4, shift=(0, -1.5))[1]
  np.testing.assert_allclose(affine.lost_ink(images, maps, 4), [0.375, 0, 0.5])


def test_ink_of_any_colour_counts():
  """A square that touches each border in a channel of its own."""
  images = np.zeros((1, 8, 8, 3), np.uint8)
  images[0, 3, 0, 0] = images[0, 0, 4, 1] = images[0, 7, 7, 2] = 1
  for shift, kept in (((0, 0), True), ((-1, 0), False), ((0, -1), False), ((1, 0), False)):
    assert affine.keeps_ink(images, placed(images, 8, shift=shift)[1], 8).tolist() == [kept]
