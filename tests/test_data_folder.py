"""A user's folder of images by class."""

import io
import os
import pathlib

import numpy as np
import pytest
from PIL import Image

from scae_jax.data import folder
from scae_jax.data.sources import load_dataset


def picture(value: int, channels: int = 3, side: int = 4) -> np.ndarray:
  """An image whose pixels all tell which one it is."""
  pixels = np.full((side, side + 1, channels), value, np.uint8)
  pixels[0, 0] = 255 - value
  return pixels


def save(path: pathlib.Path, pixels: np.ndarray, **options) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(path, **options)


@pytest.fixture
def undivided(tmp_path) -> pathlib.Path:
  """Ten cats, values 0 to 9, and five dogs, values 100 to 104."""
  root = tmp_path / "images"
  for index in range(10):
    save(root / "cat" / f"{index}.png", picture(index))
  for index in range(5):
    save(root / "dog" / f"{index}.bmp", picture(100 + index))
  return root


@pytest.fixture
def load(tmp_path):
  return lambda root: load_dataset("folder", str(root), str(tmp_path / "cache"))


def test_a_fifth_of_each_class_is_held_out(undivided, load):
  dataset = load(undivided)
  assert dataset.class_names == ("cat", "dog")
  assert dataset.image_shape == (4, 5, 3)
  train, test = dataset.splits["train"], dataset.splits["test"]
  assert np.bincount(train.labels).tolist() == [8, 4]
  assert np.bincount(test.labels).tolist() == [2, 1]
  for split in (train, test):
    for image, label in zip(split.images, split.labels, strict=True):
      np.testing.assert_array_equal(image, picture(image[1, 1, 0]))
      assert (image[1, 1, 0] >= 100) == label
  values = np.concatenate([train.images, test.images])[:, 1, 1, 0]
  assert sorted(values.tolist()) == [*range(10), *range(100, 105)]


def test_train_and_test_folders_are_kept(tmp_path, load):
  root = tmp_path / "images"
  for index, (split, name) in enumerate(
    [("train", "a"), ("train", "b"), ("train", "b"), ("test", "a"), ("test", "b")]
  ):
    save(root / split / name / f"{index}.png", picture(index, channels=1))
  dataset = load(root)
  assert dataset.channels == 1
  assert dataset.splits["train"].images[:, 1, 1, 0].tolist() == [0, 1, 2]
  assert dataset.splits["train"].labels.tolist() == [0, 1, 1]
  assert dataset.splits["test"].images[:, 1, 1, 0].tolist() == [3, 4]


def test_second_start_decodes_nothing_until_the_folder_changes(undivided, load, monkeypatch):
  load(undivided)
  decoded = []
  decode = folder.decode_picture
  monkeypatch.setattr(folder, "decode_picture", lambda path: decoded.append(path) or decode(path))
  load(undivided)
  assert decoded == []
  save(undivided / "dog" / "new.png", picture(200))
  assert len(load(undivided).splits["train"].labels) == 13
  assert len(decoded) == 16
  path = undivided / "dog" / "new.png"
  status = path.stat()
  save(path, picture(201))  # As many bytes perhaps, but another time.
  os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
  values = [split.images[:, 1, 1, 0] for split in load(undivided).splits.values()]
  assert 201 in np.concatenate(values)


@pytest.mark.parametrize("suffix", ["png", "bmp", "gif", "webp", "jpg", "jpeg", "PNG"])
def test_formats(tmp_path, load, suffix):
  options = {"lossless": True} if suffix == "webp" else {}
  for name in ("a", "b"):
    for index in range(2):
      save(tmp_path / "images" / name / f"{index}.{suffix}", picture(60, side=8), **options)
  image = load(tmp_path / "images").splits["train"].images[0]
  # JPEG alone loses something: the one bright pixel leaks into its block of 8x8.
  tolerance = 30 if suffix in ("jpg", "jpeg") else 0
  np.testing.assert_allclose(image[4:].astype(int), picture(60, side=8)[4:], atol=tolerance)


def test_what_is_not_an_image_is_passed_over_with_a_warning(undivided, load, caplog):
  (undivided / "cat" / "notes.txt").write_text("hello")
  (undivided / "cat" / ".hidden").write_text("")
  (undivided / ".git").mkdir()
  assert load(undivided).class_names == ("cat", "dog")
  assert "1 entries" in caplog.text
  assert "notes.txt" in caplog.text


def test_a_class_whose_name_is_no_text_is_named(undivided, load):
  folder = os.fsdecode(os.fsencode(undivided) + b"/\xffowl")
  (undivided / "cat").rename(folder)
  with pytest.raises(ValueError, match=r"names of classes in UTF-8, got .*xffowl.*; rename"):
    load(undivided)


def test_a_file_may_have_any_name(undivided, load):
  (undivided / "cat" / "3.png").rename(os.fsdecode(os.fsencode(undivided) + b"/cat/\xff.png"))
  assert load(undivided).class_names == ("cat", "dog")


def test_broken_files_are_named(undivided, load):
  path = undivided / "cat" / "3.png"
  whole = path.read_bytes()
  for content in (b"", b"not an image", whole[: len(whole) // 2]):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"cat/3\.png: expected a whole image file"):
      load(undivided)


def test_disagreeing_files_are_named(undivided, load):
  path = undivided / "dog" / "2.png"
  for pixels in (picture(1, side=5), picture(1, channels=1)):
    save(path, pixels)
    with pytest.raises(
      ValueError,
      match=r"dog/2\.png: expected height, width and channels \(4, 5, 3\), as in .*cat/0",
    ):
      load(undivided)


def test_modes_without_a_lossless_form_are_refused(undivided, load):
  path = undivided / "dog" / "2.png"
  for mode in ("RGBA", "LA", "I;16"):
    Image.new(mode, (5, 4)).save(path)
    with pytest.raises(ValueError, match=r"dog/2\.png: expected a grey \(L\) or RGB .* got mode"):
      load(undivided)
  Image.new("RGB", (5, 4)).save(path, transparency=(0, 0, 0))
  with pytest.raises(ValueError, match="got mode RGB with transparency"):
    load(undivided)


def test_animations_are_refused(undivided, load):
  frames = [Image.fromarray(picture(value)) for value in (1, 200)]
  frames[0].save(undivided / "dog" / "2.gif", save_all=True, append_images=frames[1:])
  with pytest.raises(ValueError, match=r"dog/2\.gif: expected a still image, got one of 2 frames"):
    load(undivided)


def test_black_and_white_and_palettes_are_exact(tmp_path):
  black_and_white = Image.fromarray(np.asarray([[0, 255]], np.uint8)).convert("1")
  palette = Image.fromarray(picture(60)).quantize(4)
  for image, expected in (
    (black_and_white, np.asarray([[[0], [255]]])),
    (palette, picture(60)),
  ):
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    np.testing.assert_array_equal(folder.decode_picture(buffer.getvalue()), expected)


def test_missing_and_empty_folders(tmp_path, load, undivided):
  with pytest.raises(ValueError, match=r"empty data_dir; set config\.data\.dir"):
    load("")
  with pytest.raises(ValueError, match="nowhere', which is not a folder"):
    load(tmp_path / "nowhere")
  (tmp_path / "empty").mkdir()
  with pytest.raises(ValueError, match=r"expected class folders in .*empty, got none"):
    load(tmp_path / "empty")
  (undivided / "emu").mkdir()
  with pytest.raises(ValueError, match=r"expected images .* in .*emu, got none"):
    load(undivided)


def test_a_class_of_one_image_cannot_be_divided(undivided, load):
  save(undivided / "emu" / "1.png", picture(1))
  with pytest.raises(ValueError, match=r"expected at least 2 images in .*emu"):
    load(undivided)


def test_train_and_test_must_fit_each_other(tmp_path, load):
  root = tmp_path / "images"
  save(root / "train" / "a" / "1.png", picture(1))
  with pytest.raises(ValueError, match=r"expected class folders in .*test, got none"):
    load(root)
  save(root / "test" / "b" / "1.png", picture(1))
  with pytest.raises(ValueError, match=r"same classes in train and test, got \['a'\] and \['b'\]"):
    load(root)
