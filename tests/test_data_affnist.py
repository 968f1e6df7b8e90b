"""The reader of affNIST's MATLAB files, on small files in their format."""

import warnings

import numpy as np
import pytest
import scipy.io

from scae_jax.data import affine
from scae_jax.data.affnist import find_batches, load_affnist, read_batch
from scae_jax.data.sources import load_dataset


def write(path, images, labels, *, column_order=False, compress=True, **changes):
  """One official file: a struct of `image` uint8 [1600, n], `label_int` [1, n] and others."""
  path.parent.mkdir(parents=True, exist_ok=True)
  rows = images[..., 0].transpose(0, 2, 1) if column_order else images[..., 0]
  fields = {
    "human_readable_transform": np.zeros((7, len(images))),
    "image": rows.reshape(len(images), -1).T,
    "label_int": labels[None].astype(np.uint8),
    "label_one_of_n": np.eye(10, dtype=np.uint8)[:, labels],
  }
  fields = {name: value for name, value in (fields | changes).items() if value is not None}
  scipy.io.savemat(path, {"affNISTdata": fields}, do_compression=compress)


@pytest.fixture(scope="module")
def digits():
  """Embedded digits under affNIST's maps, 40x40, and their labels."""
  test = load_dataset("digits").splits["test"]
  images, labels = test.images[:60], test.labels[:60]
  return affine.resample(images, affine.draw_affine(images, 40, 0).maps, 40), labels


@pytest.mark.parametrize("column_order", [False, True])
@pytest.mark.parametrize("compress", [False, True])
def test_images_and_labels_come_back_upright(tmp_path, digits, column_order, compress):
  images, labels = digits
  write(tmp_path / "test.mat", images, labels, column_order=column_order, compress=compress)
  loaded = load_affnist(str(tmp_path))
  assert (loaded.name, loaded.held_out, loaded.image_shape) == ("affnist", "test", (40, 40, 1))
  assert loaded.class_names == load_dataset("digits").class_names
  np.testing.assert_array_equal(loaded.splits["test"].images, images)
  np.testing.assert_array_equal(loaded.splits["test"].labels, labels)
  assert f"official affNIST: 60 images of 1 file(s) in {tmp_path}." in loaded.notes
  assert any("set upright" in note for note in loaded.notes) == column_order


def test_mnists_own_digits_stand(tfds_dir, tmp_path):
  """The test for digits that lie on their sides, on the pictures that it is for."""
  import tensorflow_datasets as tfds

  source = tfds.builder_from_directory(f"{tfds_dir}/mnist/3.0.1").as_data_source("test")
  images = np.stack([source[index]["image"] for index in range(300)])
  images = affine.resample(images, affine.draw_affine(images, 40, 0).maps, 40)
  labels = np.zeros(len(images), int)
  for order in (False, True):
    write(tmp_path / "test.mat", images, labels, column_order=order)
    split = load_affnist(str(tmp_path)).splits["test"]
    np.testing.assert_array_equal(split.images, images)


def test_images_that_show_nothing_lie_as_they_are(tmp_path):
  """None is higher than wide, and black ones have no middle."""
  images = np.zeros((3, 40, 40, 1), np.uint8)
  images[0, 2, 7] = 255
  write(tmp_path / "test.mat", images, np.arange(3))
  loaded = load_affnist(str(tmp_path))
  np.testing.assert_array_equal(loaded.splits["test"].images, images)
  assert not any("upright" in note for note in loaded.notes)


def test_batches_are_joined_in_the_order_of_their_numbers(tmp_path, digits):
  images, labels = digits
  folder = tmp_path / "transformed" / "test_batches"
  for number in range(10, 0, -1):
    rows = slice(6 * (number - 1), 6 * number)
    write(folder / f"{number}.mat", images[rows], labels[rows])
  (folder / "notes.mat").write_text("passed over")
  loaded = load_affnist(str(tmp_path))
  np.testing.assert_array_equal(loaded.splits["test"].images, images)
  np.testing.assert_array_equal(loaded.splits["test"].labels, labels)
  assert "60 images of 10 file(s)" in loaded.notes[0]
  (folder / "3.mat").unlink()
  (folder / "5.mat").unlink()
  with pytest.raises(ValueError, match=r"end with 10\.mat, and 3\.mat is missing"):
    load_affnist(str(tmp_path))


def test_where_files_are_looked_for(tmp_path, digits):
  """Batches before `test.mat`, the folder itself before `transformed`, and never training files."""
  assert_none(tmp_path)
  for name in ("transformed/test.mat", "transformed/1.mat", "test.mat", "1.mat"):
    write(tmp_path / name, *digits)
    assert find_batches(str(tmp_path)) == [tmp_path / name]
  write(tmp_path / "test_batches" / "1.mat", *digits)
  assert find_batches(str(tmp_path)) == [tmp_path / "test_batches" / "1.mat"]
  other = tmp_path / "other"
  write(other / "training_and_validation_batches" / "1.mat", *digits)
  assert_none(other)
  assert_none(tmp_path / "nowhere")


def assert_none(folder):
  with pytest.raises(
    ValueError, match=r"test_batches/1\.mat.*or test\.mat.*got none.*affine_mnist"
  ):
    find_batches(str(folder))


@pytest.mark.parametrize("compress", [False, True])
def test_every_truncation_is_one_clear_error(tmp_path, digits, compress):
  images, labels = digits
  path = tmp_path / "1.mat"
  write(path, images[:2], labels[:2], compress=compress)
  whole = path.read_bytes()
  end = len(whole) - 4  # what fills up the last four bytes means nothing
  for length in [0, 1, 50, 127, 128, 130, *range(131, end, max(end // 80, 1)), end - 1]:
    path.write_bytes(whole[:length])
    with pytest.raises(ValueError, match=r"1\.mat(, which cannot be read|: expected one struct)"):
      read_batch(path)


@pytest.mark.parametrize(
  "content",
  [
    b"",
    b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(600),  # HDF5, which SciPy leaves out
    b"\x89HDF",
    b"x" * 999,
  ],
)
def test_other_files_are_refused(tmp_path, content):
  path = tmp_path / "1.mat"
  path.write_bytes(content)
  with pytest.raises(ValueError, match=r"1\.mat.*download it again"):
    read_batch(path)


def test_what_scipy_warns_of_is_damage(tmp_path, digits, monkeypatch):
  write(tmp_path / "1.mat", *digits)
  load = scipy.io.loadmat

  def loadmat(*arguments, **options):
    warnings.warn("half of it", UserWarning, stacklevel=1)
    return load(*arguments, **options)

  monkeypatch.setattr(scipy.io, "loadmat", loadmat)
  with pytest.raises(ValueError, match=r"1\.mat, which cannot be read \(UserWarning: half of it\)"):
    read_batch(tmp_path / "1.mat")


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"image": None}, r"expected a field 'image' .* got the fields \[.*'label_int'"),
    ({"label_int": None}, "expected a field 'label_int'"),
    ({"image": np.zeros((784, 3), np.uint8)}, r"'image' uint8 \[1600, n\], got uint8 \[784, 3\]"),
    ({"image": np.zeros((1600, 3))}, r"'image' uint8 \[1600, n\], got float64 \[1600, 3\]"),
    ({"image": np.zeros((1600, 0), np.uint8)}, r"'image' uint8 .* got uint8 \[1600, 0\]"),
    ({"label_int": np.zeros((1, 4), np.uint8)}, "3 numbers 'label_int', one an image, got 4"),
    ({"label_int": np.array([["a", "b", "c"]])}, "3 numbers 'label_int'"),
    ({"label_int": np.array([[1, 10, 2]])}, "labels 0 to 9, got 10"),
    ({"label_int": np.array([[1, 0.5, 2]])}, r"labels 0 to 9, got 0\.5"),
    ({"label_int": np.array([[1, np.nan, 2]])}, "labels 0 to 9, got nan"),
  ],
)
def test_fields_are_checked(tmp_path, digits, changes, message):
  images, labels = digits
  write(tmp_path / "1.mat", images[:3], labels[:3], **changes)
  with pytest.raises(ValueError, match=rf"(?s)1\.mat: expected.*{message}|{message}") as raised:
    read_batch(tmp_path / "1.mat")
  assert "affNIST's set 'transformed'" in str(raised.value)


@pytest.mark.parametrize("content", [{"other": np.zeros(3)}, {"affNISTdata": np.zeros((2, 2))}])
def test_a_file_without_the_struct_is_refused(tmp_path, content):
  scipy.io.savemat(tmp_path / "1.mat", content)
  with pytest.raises(ValueError, match=r"1\.mat: expected one struct 'affNISTdata'"):
    read_batch(tmp_path / "1.mat")
