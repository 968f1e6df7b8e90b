"""Affine maps and affNIST's MATLAB files.

Maps are drawn within their ranges, resampled as by SciPy, and lose no ink. Files are small ones in
the official format.
"""

import re
import warnings

import numpy as np
import pytest
import scipy.io

from scae_jax.data import affine
from scae_jax.data.affnist import find_batches, load_affnist, read_batch
from scae_jax.data.sources import load_dataset
from tests.toy_data import assert_uniform, random_images, write_affnist

CANVAS = 40
RANGES = ((0.8, 1.2), (0.8, 1.2), (-20, 20), (-0.2, 0.2))  # of affNIST's `parameters`


@pytest.fixture(scope="module")
def digits() -> np.ndarray:
  """All embedded digits, 16x16."""
  splits = load_dataset("digits").splits
  return np.concatenate([splits["train"].images, splits["test"].images])


@pytest.fixture(scope="module")
def drawn(digits) -> tuple[np.ndarray, int]:
  return affine.draw_affine(digits, CANVAS, 0)


def parameters(maps: np.ndarray) -> np.ndarray:
  """Scale x, scale y, degrees and shear of each map, [n, 4]."""
  scale_y = np.linalg.norm(maps[:, 1, :2], axis=1)
  sin, cos = -maps[:, 1, 0] / scale_y, maps[:, 1, 1] / scale_y
  scale_x = maps[:, 0, 0] * cos + maps[:, 0, 1] * sin
  shear = (maps[:, 0, 1] * cos - maps[:, 0, 0] * sin) / scale_y
  return np.stack([scale_x, scale_y, np.degrees(np.arctan2(sin, cos)), shear], axis=1)


def test_parameters_fill_their_ranges_evenly(drawn):
  columns = parameters(drawn[0])
  assert drawn[1] == 0
  for values, (low, high) in zip(columns.T, RANGES, strict=True):
    assert_uniform(values, low, high)
  correlations = np.corrcoef(columns.T) - np.eye(4)
  assert np.abs(correlations).max() < 4 / np.sqrt(len(columns))


def test_drawn_maps_are_those_of_the_records():
  """Maps of the embedded digits' first and last test image, which results/ are scored on."""
  maps = affine.draw_affine(load_dataset("digits").splits["test"].images, 40, 0)[0]
  first = [[1.0155051, 0.0925289, 9.3426161], [-0.0778508, 1.0832819, 14.9735300]]
  last = [[0.8051820, -0.0106503, 6.3299737], [-0.0512301, 0.8117479, 7.8525578]]
  np.testing.assert_allclose(maps[0], first, atol=1e-6)
  np.testing.assert_allclose(maps[-1], last, atol=1e-6)


@pytest.mark.parametrize("canvas", [CANVAS, 20])
def test_no_ink_is_cut_off(digits, canvas):
  """With a margin of 8 around the canvas, nothing is drawn in the margin."""
  digits = digits[::4]
  maps = affine.draw_affine(digits, canvas, 0)[0]
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
  small, num_redrawn = affine.draw_affine(digits, 20, 0)
  assert 0 < num_redrawn < len(digits)
  columns = parameters(small)
  assert np.abs(columns[:, 2]).max() <= 20
  assert columns[:, :2].min() >= 0.8
  same = np.isclose(small[:, :, :2], drawn[0][:, :, :2]).all(axis=(1, 2))
  assert np.sum(~same) == num_redrawn  # the others have the map that they would have had


def test_images_that_cannot_fit_are_refused_and_black_ones_are_drawn():
  maps = affine.draw_affine(np.zeros((50, 6, 8, 3), np.uint8), 10, 0)[0]
  middle = maps @ np.array([4, 3, 1])
  assert 0 <= middle.min() <= middle.max() <= 9
  images = np.full((3, 20, 20, 1), 255, np.uint8)
  images[0] = 0
  with pytest.raises(ValueError, match=r"\b16\b.* 1\b.*\b2\b"):
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
  for image, affine_map, actual in zip(images, maps, drawn, strict=True):
    inverse = np.linalg.inv(np.vstack([affine_map, [0, 0, 1]]))
    for row, column in np.ndindex(canvas, canvas):
      x, y, _ = inverse @ [column, row, 1]
      # Half of a whole number is what rounding takes.
      assert np.abs(actual[row, column] - bilinear(image, x, y)).max() <= 0.5 + 1e-6
  assert not drawn[5].any()
  assert all(drawn[i].any() for i in (0, 1, 2, 3, 4, 6, 7))


def shifted(images, canvas, shift):
  linear = np.tile(np.eye(2), (len(images), 1, 1))
  shifts = np.tile(np.array(shift, float), (len(images), 1))
  return affine.place(linear, shifts, images.shape[1:], canvas)


def test_keeps_ink_tells_which_images_lose_ink():
  """A square of 4x4 of ink in 8x8, on a canvas of 10: three pixels of room on each side."""
  images = np.zeros((2, 8, 8, 1), np.uint8)
  images[:, 2:6, 2:6] = 9
  for shift in ((0, 0), (3, -3), (4, 0), (0, -4), (3.5, 0)):
    maps = shifted(images, 10, shift)
    assert affine.keeps_ink(images, maps, 10).tolist() == [np.abs(shift).max() <= 3] * 2
  # A square that touches each border in a channel of its own.
  images = np.zeros((1, 8, 8, 3), np.uint8)
  images[0, 3, 0, 0] = images[0, 0, 4, 1] = images[0, 7, 7, 2] = 1
  for shift, kept in (((0, 0), True), ((-1, 0), False), ((0, -1), False), ((1, 0), False)):
    assert affine.keeps_ink(images, shifted(images, 8, shift), 8).tolist() == [kept]


def test_share_of_lost_ink():
  """Images: two rows of grey 4 and one of 8; black; a single pixel. They move up."""
  images = np.zeros((3, 4, 4, 1), np.uint8)
  images[0, :2] = 4
  images[0, 2] = 8
  images[2, 1, 1] = 200
  for up, expected in ((0, [0, 0, 0]), (1, [0.25, 0, 0]), (2, [0.5, 0, 1]), (9, [1, 0, 1])):
    maps = shifted(images, 4, (0, -up))
    np.testing.assert_allclose(affine.lost_ink(images, maps, 4), expected)
    on_its_side, left = images.swapaxes(1, 2), shifted(images, 4, (-up, 0))
    np.testing.assert_allclose(affine.lost_ink(on_its_side, left, 4), expected)
  # Half of a pixel's tent lies off the canvas when it is moved by half a pixel.
  maps = shifted(images, 4, (0, -1.5))
  np.testing.assert_allclose(affine.lost_ink(images, maps, 4), [0.375, 0, 0.5])


@pytest.fixture(scope="module")
def official():
  """Embedded digits under affNIST's maps, 40x40, and their labels."""
  test = load_dataset("digits").splits["test"]
  images, labels = test.images[:60], test.labels[:60]
  return affine.resample(images, affine.draw_affine(images, 40, 0)[0], 40), labels


def assert_holds(loaded, images, labels, *, turned=False):
  np.testing.assert_array_equal(loaded.splits["test"].images, images)
  np.testing.assert_array_equal(loaded.splits["test"].labels, labels)
  assert len(loaded.notes) == 1 + turned


@pytest.mark.parametrize("column_order", [False, True])
@pytest.mark.parametrize("compress", [False, True])
def test_images_and_labels_come_back_upright(tmp_path, official, column_order, compress):
  write_affnist(tmp_path / "test.mat", *official, column_order=column_order, compress=compress)
  loaded = load_affnist(str(tmp_path))
  assert (loaded.name, loaded.held_out, loaded.image_shape) == ("affnist", "test", (40, 40, 1))
  assert loaded.class_names == load_dataset("digits").class_names
  assert_holds(loaded, *official, turned=column_order)
  for fact in ("60 images", "1 file", str(tmp_path)):
    assert fact in loaded.notes[0]


def test_images_without_an_upright_axis_are_not_turned(tmp_path):
  """No image is higher than wide, and black images have no centre."""
  images = np.zeros((3, 40, 40, 1), np.uint8)
  images[0, 2, 7] = 255
  write_affnist(tmp_path / "test.mat", images, np.arange(3))
  assert_holds(load_affnist(str(tmp_path)), images, np.arange(3))


def test_batches_are_joined_in_the_order_of_their_numbers(tmp_path, official):
  images, labels = official
  folder = tmp_path / "transformed" / "test_batches"
  for number in range(10, 0, -1):
    rows = slice(6 * (number - 1), 6 * number)
    write_affnist(folder / f"{number}.mat", images[rows], labels[rows])
  (folder / "notes.mat").write_text("passed over")
  loaded = load_affnist(str(tmp_path))
  assert_holds(loaded, *official)
  assert re.search(r"\b60 images\b.*\b10 file", loaded.notes[0])
  (folder / "3.mat").unlink()
  (folder / "5.mat").unlink()
  with pytest.raises(ValueError, match=r"\b3\.mat"):
    load_affnist(str(tmp_path))


def test_order_in_which_files_are_looked_for(tmp_path):
  """Batches before `test.mat`, the folder before `transformed`; training files never."""
  names = ("transformed/test.mat", "transformed/1.mat", "test.mat", "1.mat", "test_batches/1.mat")
  for name in names:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    assert find_batches(str(tmp_path)) == [path]
  training = tmp_path / "other" / "training_and_validation_batches" / "1.mat"
  training.parent.mkdir(parents=True)
  training.write_bytes(b"")
  for folder in (tmp_path / "other", tmp_path / "nowhere"):
    with pytest.raises(ValueError, match=r"batches/1\.mat.*test\.mat.*affine_mnist"):
      find_batches(str(folder))


@pytest.mark.parametrize("compress", [False, True])
def test_every_truncation_is_one_clear_error(tmp_path, official, compress):
  images, labels = official
  path = tmp_path / "1.mat"
  write_affnist(path, images[:2], labels[:2], compress=compress)
  whole = path.read_bytes()
  for length in range(0, len(whole), 97):
    path.write_bytes(whole[:length])
    with pytest.raises(ValueError, match=r"1\.mat"):
      read_batch(path)


def test_other_files_are_refused(tmp_path, monkeypatch):
  path = tmp_path / "1.mat"
  # Of HDF5, which SciPy leaves out, there is a header alone.
  hdf5 = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(600)
  for content in (hdf5, b"\x89HDF", b"x" * 999):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"1\.mat"):
      read_batch(path)
  for content in ({"other": np.zeros(3)}, {"affNISTdata": np.zeros((2, 2))}):
    scipy.io.savemat(path, content)
    with pytest.raises(ValueError, match=r"1\.mat.*'affNISTdata'"):
      read_batch(path)
  monkeypatch.setattr(scipy.io, "loadmat", lambda *_, **__: warnings.warn("half", stacklevel=1))
  with pytest.raises(ValueError, match=r"1\.mat.*UserWarning: half"):
    read_batch(path)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"image": None}, r"object \[\].* 3 labels"),
    ({"label_int": None}, r"uint8 \[1600, 3\].* 1 labels.*\[None\]"),
    ({"image": np.zeros((784, 3), np.uint8)}, r"uint8 \[784, 3\]"),
    ({"image": np.zeros((1600, 3))}, r"float64 \[1600, 3\]"),
    ({"image": np.zeros((1600, 0), np.uint8), "label_int": np.zeros((1, 0))}, r"\[1600, 0\]"),
    ({"label_int": np.zeros((1, 4), np.uint8)}, "4 labels"),
    ({"label_int": np.array([["a", "b", "c"]])}, r"\['"),
    ({"label_int": np.array([[1, 10, np.nan]])}, r"\[10\.0\]"),
  ],
)
def test_fields_are_checked(tmp_path, official, changes, message):
  images, labels = official
  write_affnist(tmp_path / "1.mat", images[:3], labels[:3], **changes)
  expected = r"1\.mat.*'image' uint8 \[1600, n\].*'label_int'"
  with pytest.raises(ValueError, match=f"{expected}.*{message}"):
    read_batch(tmp_path / "1.mat")
