"""The reader of affNIST's MATLAB files, on small files in their format."""

import warnings

import numpy as np
import pytest
import scipy.io

from scae_jax.data import affine
from scae_jax.data.affnist import find_batches, load_affnist, read_batch
from scae_jax.data.sources import load_dataset
from tests.toy_data import write_affnist


@pytest.fixture(scope="module")
def digits():
  """Embedded digits under affNIST's maps, 40x40, and their labels."""
  test = load_dataset("digits").splits["test"]
  images, labels = test.images[:60], test.labels[:60]
  return affine.resample(images, affine.draw_affine(images, 40, 0).maps, 40), labels


def assert_holds(loaded, images, labels, *, turned=False):
  np.testing.assert_array_equal(loaded.splits["test"].images, images)
  np.testing.assert_array_equal(loaded.splits["test"].labels, labels)
  assert any("set upright" in note for note in loaded.notes) == turned


@pytest.mark.parametrize("column_order", [False, True])
@pytest.mark.parametrize("compress", [False, True])
def test_images_and_labels_come_back_upright(tmp_path, digits, column_order, compress):
  write_affnist(tmp_path / "test.mat", *digits, column_order=column_order, compress=compress)
  loaded = load_affnist(str(tmp_path))
  assert (loaded.name, loaded.held_out, loaded.image_shape) == ("affnist", "test", (40, 40, 1))
  assert loaded.class_names == load_dataset("digits").class_names
  assert_holds(loaded, *digits, turned=column_order)
  assert f"official affNIST: 60 images of 1 file(s) in {tmp_path}." in loaded.notes


def test_mnists_own_digits_stand(tfds_dir, tmp_path):
  """The test for digits that lie on their sides, on the pictures that it is for."""
  import tensorflow_datasets as tfds

  source = tfds.builder_from_directory(f"{tfds_dir}/mnist/3.0.1").as_data_source("test")
  images = np.stack([example["image"] for example in source.__getitems__(range(300))])
  images = affine.resample(images, affine.draw_affine(images, 40, 0).maps, 40)
  labels = np.zeros(len(images), int)
  for order in (False, True):
    write_affnist(tmp_path / "test.mat", images, labels, column_order=order)
    assert_holds(load_affnist(str(tmp_path)), images, labels, turned=order)


def test_images_that_show_nothing_lie_as_they_are(tmp_path):
  """None is higher than wide, and black ones have no middle."""
  images = np.zeros((3, 40, 40, 1), np.uint8)
  images[0, 2, 7] = 255
  write_affnist(tmp_path / "test.mat", images, np.arange(3))
  assert_holds(load_affnist(str(tmp_path)), images, np.arange(3))


def test_batches_are_joined_in_the_order_of_their_numbers(tmp_path, digits):
  images, labels = digits
  folder = tmp_path / "transformed" / "test_batches"
  for number in range(10, 0, -1):
    rows = slice(6 * (number - 1), 6 * number)
    write_affnist(folder / f"{number}.mat", images[rows], labels[rows])
  (folder / "notes.mat").write_text("passed over")
  loaded = load_affnist(str(tmp_path))
  assert_holds(loaded, *digits)
  assert "60 images of 10 file(s)" in loaded.notes[0]
  (folder / "3.mat").unlink()
  (folder / "5.mat").unlink()
  with pytest.raises(ValueError, match=r"end with 10\.mat, and 3\.mat is missing"):
    load_affnist(str(tmp_path))


def test_where_files_are_looked_for(tmp_path):
  """Batches before `test.mat`, the folder itself before `transformed`, and never training files."""
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
    with pytest.raises(ValueError, match=r"batches/1\.mat.*or test\.mat.*got none.*affine_mnist"):
      find_batches(str(folder))


@pytest.mark.parametrize("compress", [False, True])
def test_every_truncation_is_one_clear_error(tmp_path, digits, compress):
  images, labels = digits
  path = tmp_path / "1.mat"
  write_affnist(path, images[:2], labels[:2], compress=compress)
  whole = path.read_bytes()
  for length in range(0, len(whole), 97):
    path.write_bytes(whole[:length])
    with pytest.raises(ValueError, match=r"1\.mat(, which cannot be read|: expected a struct)"):
      read_batch(path)


@pytest.mark.parametrize(
  "content",
  [
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


def test_what_scipy_warns_of_is_damage(tmp_path, monkeypatch):
  def loadmat(*_, **__):
    warnings.warn("half of it", stacklevel=1)

  monkeypatch.setattr(scipy.io, "loadmat", loadmat)
  with pytest.raises(ValueError, match=r"1\.mat, which cannot be read \(UserWarning: half of it\)"):
    read_batch(tmp_path / "1.mat")


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"image": None}, r"'image' object \[\] and 3 labels, 0 of"),
    ({"label_int": None}, r"'image' uint8 \[1600, 3\] and 1 labels, 1 of .*as \[None\]"),
    ({"image": np.zeros((784, 3), np.uint8)}, r"'image' uint8 \[784, 3\]"),
    ({"image": np.zeros((1600, 3))}, r"'image' float64 \[1600, 3\]"),
    (
      {"image": np.zeros((1600, 0), np.uint8), "label_int": np.zeros((1, 0), np.uint8)},
      r"'image' uint8 \[1600, 0\]",
    ),
    ({"label_int": np.zeros((1, 4), np.uint8)}, "and 4 labels"),
    ({"label_int": np.array([["a", "b", "c"]])}, r"of which are no digits, as \['"),
    ({"label_int": np.array([[1, 10, 2]])}, r"1 of which are no digits, as \[10\]"),
    ({"label_int": np.array([[1, 0.5, 2]])}, r"as \[0\.5\]"),
    ({"label_int": np.array([[1, np.nan, 2]])}, r"as \[nan\]"),
  ],
)
def test_fields_are_checked(tmp_path, digits, changes, message):
  images, labels = digits
  write_affnist(tmp_path / "1.mat", images[:3], labels[:3], **changes)
  expected = r"1\.mat: expected .*'image' uint8 \[1600, n\] and 'label_int', n digits, got "
  with pytest.raises(ValueError, match=f"{expected}.*{message}.*affNIST's set 'transformed'"):
    read_batch(tmp_path / "1.mat")


@pytest.mark.parametrize("content", [{"other": np.zeros(3)}, {"affNISTdata": np.zeros((2, 2))}])
def test_a_file_without_the_struct_is_refused(tmp_path, content):
  scipy.io.savemat(tmp_path / "1.mat", content)
  with pytest.raises(ValueError, match=r"1\.mat: expected a struct 'affNISTdata'"):
    read_batch(tmp_path / "1.mat")
