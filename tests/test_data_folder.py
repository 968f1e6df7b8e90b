"""A user's folder of images by class."""

import io
import os
import pathlib
import re

import numpy as np
import pytest
from PIL import Image

from scae_jax.data import pictures
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
def root(tmp_path) -> pathlib.Path:
  return tmp_path / "images"


@pytest.fixture
def undivided(root) -> pathlib.Path:
  """Ten cats, values 0 to 9, and five dogs, values 100 to 104."""
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
  assert [np.bincount(split.labels).tolist() for split in (train, test)] == [[8, 4], [2, 1]]
  values = np.concatenate([train.images, test.images])[:, 1, 1, 0]
  assert sorted(values.tolist()) == [*range(10), *range(100, 105)]
  for split in (train, test):
    for image, label in zip(split.images, split.labels, strict=True):
      np.testing.assert_array_equal(image, picture(image[1, 1, 0]))
      assert (image[1, 1, 0] >= 100) == label


def test_train_and_test_folders_are_kept(root, load, caplog):
  for index, folder in enumerate(("train/a", "train/b", "train/b", "test/a", "test/b", "val/a")):
    save(root / folder / f"{index}.png", picture(index, channels=1))
  (root / "train" / "stray.txt").write_text("")
  dataset = load(root)
  found = re.findall(r"1 entries of .* (\S+) among", caplog.text)
  assert found == [f"{root}/train/stray.txt", f"{root}/val"]
  assert dataset.channels == 1
  assert dataset.splits["train"].images[:, 1, 1, 0].tolist() == [0, 1, 2]
  assert dataset.splits["train"].labels.tolist() == [0, 1, 1]
  assert dataset.splits["test"].images[:, 1, 1, 0].tolist() == [3, 4]


def test_second_start_decodes_nothing_until_the_folder_changes(undivided, load, monkeypatch):
  load(undivided)
  decoded = []
  decode = pictures.decode_picture
  monkeypatch.setattr(
    pictures, "decode_picture", lambda path, channels: decoded.append(path) or decode(path)
  )
  load(undivided)
  assert decoded == []
  path = undivided / "dog" / "new.png"
  save(path, picture(200))
  assert len(load(undivided).splits["train"].labels) == 13
  assert len(decoded) == 16
  status = path.stat()
  save(path, picture(201))  # As many bytes perhaps, but another time.
  os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
  values = [split.images[:, 1, 1, 0] for split in load(undivided).splits.values()]
  assert 201 in np.concatenate(values)


@pytest.mark.parametrize("suffix", ["bmp", "gif", "webp", "jpg", "jpeg", "PNG"])
def test_formats(root, load, suffix):
  options = {"lossless": True} if suffix == "webp" else {}
  for name in ("a", "b"):
    for index in range(2):
      save(root / name / f"{index}.{suffix}", picture(60, side=8), **options)
  image = load(root).splits["train"].images[0]
  # JPEG alone loses something: the one bright pixel leaks into its block of 8x8.
  tolerance = 30 if suffix in ("jpg", "jpeg") else 0
  np.testing.assert_allclose(image[4:].astype(int), picture(60, side=8)[4:], atol=tolerance)


def test_names_of_files_and_what_is_not_an_image(undivided, load, caplog):
  (undivided / "cat" / "3.png").rename(os.fsdecode(os.fsencode(undivided) + b"/cat/\xff.png"))
  (undivided / "cat" / "notes.txt").write_text("hello")
  (undivided / "cat" / ".hidden").write_text("")
  (undivided / ".git").mkdir()
  assert load(undivided).class_names == ("cat", "dog")
  assert re.search(r"1 entries of .*notes.txt", caplog.text)
  (undivided / "cat").rename(os.fsdecode(os.fsencode(undivided) + b"/\xffowl"))
  with pytest.raises(ValueError, match=r"names of classes in UTF-8, got .*xffowl.*; rename"):
    load(undivided)


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
  buffer = io.BytesIO()
  image.save(buffer, kind, **options)
  return buffer.getvalue()


WHOLE = encoded(Image.fromarray(picture(1)))
FRAMES = [Image.fromarray(picture(value)) for value in (1, 200)]


@pytest.mark.parametrize(
  ("content", "message"),
  [
    (b"", "a whole image file"),
    (b"not an image", "a whole image file"),
    (WHOLE[: len(WHOLE) // 2], "a whole image file"),
    *(
      (encoded(Image.fromarray(pixels)), r"height, width and channels \(4, 5, 3\), as of .*cat/0")
      for pixels in (picture(1, side=5), picture(1, channels=1)[..., 0])
    ),
    *(
      (encoded(Image.new(mode, (5, 4))), r"a grey \(L\) or RGB .* got mode")
      for mode in ("RGBA", "LA", "I;16")
    ),
    (encoded(Image.new("RGB", (5, 4)), transparency=(0, 0, 0)), "got mode RGB with transparency"),
    (
      encoded(FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:]),
      "a still image, got one of 2 frames",
    ),
  ],
)
def test_unusable_files_are_named(undivided, load, content, message):
  (undivided / "dog" / "2.bmp").write_bytes(content)
  with pytest.raises(ValueError, match=rf"dog/2\.bmp: expected.* {message}"):
    load(undivided)


def test_black_and_white_and_palettes_are_exact():
  black_and_white = Image.fromarray(np.asarray([[0, 255]], np.uint8)).convert("1")
  palette = Image.fromarray(picture(60)).quantize(4)
  for image, expected in ((black_and_white, np.asarray([[[0], [255]]])), (palette, picture(60))):
    np.testing.assert_array_equal(pictures.decode_picture(encoded(image)), expected)


def test_missing_empty_and_disagreeing_folders(tmp_path, root, load, undivided):
  def refused(folder, message):
    with pytest.raises(ValueError, match=message):
      load(folder)

  refused("", r"got '', which is not a folder; set config\.data\.dir")
  refused(tmp_path / "nowhere", "nowhere', which is not a folder")
  (tmp_path / "empty").mkdir()
  refused(tmp_path / "empty", "expected images .* in .*empty, got none; lay them out as <folder>")
  (undivided / "emu").mkdir()
  refused(undivided, "expected images .* in .*emu, got none")
  save(undivided / "emu" / "1.png", picture(1))
  refused(undivided, "expected at least 2 images in .*emu")
  save(root / "train" / "a" / "1.png", picture(1))
  refused(root, "expected images .* in .*test, got none")
  save(root / "test" / "b" / "1.png", picture(1))
  refused(root, r"same classes in train and test, got \['a'\] and \['b'\]")
