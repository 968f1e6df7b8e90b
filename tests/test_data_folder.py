"""A user's folder of images by class."""

import io
import os
import pathlib
import re
import struct
import zlib

import numpy as np
import pytest
from PIL import ExifTags, Image

from scae_jax.data import image_files
from scae_jax.data.image_files import AS_IT_IS, Form
from scae_jax.data.sources import load_dataset


def picture(value: int, channels: int = 3, side: int = 4) -> np.ndarray:
  """An image of one value, which identifies it, but for its first pixel."""
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
  return lambda root, form=AS_IT_IS: load_dataset(
    "folder", str(root), str(tmp_path / "cache"), form
  )


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


def test_train_and_test_folders_become_the_splits(root, load, caplog):
  for index, folder in enumerate(("train/a", "train/b", "train/b", "test/a", "test/b", "val/a")):
    save(root / folder / f"{index}.png", picture(index, channels=1))
  (root / "train" / "stray.txt").write_text("")
  dataset = load(root)
  stray, unknown = caplog.messages
  assert f"{root}/train/stray.txt" in stray
  assert f"{root}/val" in unknown
  assert dataset.channels == 1
  assert dataset.splits["train"].images[:, 1, 1, 0].tolist() == [0, 1, 2]
  assert dataset.splits["train"].labels.tolist() == [0, 1, 1]
  assert dataset.splits["test"].images[:, 1, 1, 0].tolist() == [3, 4]


def test_second_start_decodes_nothing_until_the_folder_changes(undivided, load, monkeypatch):
  load(undivided)
  decoded = []
  decode = image_files.decode_picture
  monkeypatch.setattr(
    image_files, "decode_picture", lambda path: decoded.append(path) or decode(path)
  )
  load(undivided)
  assert decoded == []
  path = undivided / "dog" / "new.png"
  save(path, picture(200))
  assert len(load(undivided).splits["train"].labels) == 13
  assert len(decoded) == 16
  os.utime(path, ns=(0, 0))  # another time, the same content
  load(undivided)
  assert len(decoded) == 16


def labels_by_value(dataset) -> dict[int, int]:
  return {
    int(image[1, 1, 0]): int(label)
    for split in dataset.splits.values()
    for image, label in zip(split.images, split.labels, strict=True)
  }


def test_files_that_change_places_keep_no_old_label(undivided, load):
  """All files have the same size and time, as after `git clone` or `unzip`."""
  paths = undivided / "cat" / "3.png", undivided / "dog" / "3.png"
  (undivided / "dog" / "3.bmp").unlink()
  save(paths[1], picture(103))
  size = max(path.stat().st_size for path in paths)
  contents = [path.read_bytes().ljust(size, b"\0") for path in paths]

  def write(contents) -> None:
    for path, content in zip(paths, contents, strict=True):
      path.write_bytes(content)
      os.utime(path, ns=(0, 0))

  write(contents)
  before = labels_by_value(load(undivided))
  assert (before[3], before[103]) == (0, 1)
  write(contents[::-1])
  after = labels_by_value(load(undivided))
  assert (after[3], after[103]) == (1, 0)


def test_a_file_that_cannot_be_read_is_named(undivided, load):
  (undivided / "dog" / "x.png").symlink_to("/proc/self/mem")  # a file, until it is read
  with pytest.raises(ValueError, match=r"dog/x\.png"):
    load(undivided)


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


def test_odd_file_names_and_files_that_are_no_images(undivided, load, caplog):
  (undivided / "cat" / "3.png").rename(os.fsdecode(os.fsencode(undivided) + b"/cat/\xff.png"))
  (undivided / "cat" / "notes.txt").write_text("hello")
  (undivided / "cat" / ".hidden").write_text("")
  (undivided / ".git").mkdir()
  assert load(undivided).class_names == ("cat", "dog")
  (message,) = caplog.messages  # of the one that is not hidden
  assert "notes.txt" in message
  (undivided / "cat").rename(os.fsdecode(os.fsencode(undivided) + b"/\xffowl"))
  with pytest.raises(ValueError, match=r"UTF-8.*xffowl"):
    load(undivided)


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
  buffer = io.BytesIO()
  image.save(buffer, kind, **options)
  return buffer.getvalue()


WHOLE = encoded(Image.fromarray(picture(1)))
FRAMES = [Image.fromarray(picture(value)) for value in (1, 200)]


def deep_png(kind: int) -> bytes:
  """A PNG of 16 bits a channel: RGB (2), grey (4) or RGB (6) with alpha."""
  channels = {2: 3, 4: 2, 6: 4}[kind]
  rows = np.full((4, 1 + 2 * 5 * channels), 7, np.uint8)
  rows[:, 0] = 0  # no filter
  chunks = (
    (b"IHDR", struct.pack(">IIBBBBB", 5, 4, 16, kind, 0, 0, 0)),
    (b"IDAT", zlib.compress(rows.tobytes())),
    (b"IEND", b""),
  )
  return b"\x89PNG\r\n\x1a\n" + b"".join(
    struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    for name, data in chunks
  )


@pytest.mark.parametrize(
  ("content", "message"),
  [
    (b"", ""),
    (b"not an image", ""),
    (WHOLE[: len(WHOLE) // 2], ""),
    (encoded(Image.fromarray(picture(1, side=5))), r"4x5.*cat/0.*5x6.*config\.data\.resize"),
    (encoded(Image.new("I;16", (5, 4))), "8 bits.*I;16"),
    *((deep_png(kind), "8 bits.*16 bits") for kind in (2, 4, 6)),
    (
      encoded(FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:]),
      r"\b2 frames",
    ),
    (encoded(Image.new("L", (2, 2)), exif=b"Exif\0\0MM\0*"), "replace it"),
  ],
)
def test_unusable_files_are_named(undivided, load, content, message):
  (undivided / "dog" / "2.bmp").write_bytes(content)
  with pytest.raises(ValueError, match=rf"dog/2\.bmp.*{message}"):
    load(undivided)


def test_black_and_white_and_palettes_are_exact():
  black_and_white = Image.fromarray(np.asarray([[0, 255]], np.uint8)).convert("1")
  palette = Image.fromarray(picture(60)).quantize(4)
  for image, expected in ((black_and_white, np.asarray([[[0], [255]]])), (palette, picture(60))):
    np.testing.assert_array_equal(image_files.decode_picture(encoded(image)), expected)


# Where the bright corner of an image lies that a camera stored with each orientation.
CORNERS = {1: "tl", 2: "tr", 3: "br", 4: "bl", 5: "tl", 6: "tr", 7: "br", 8: "bl"}


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_photographs_stand_upright(orientation, kind):
  """EXIF, section 4.6.4: the orientation names the side and corner that are stored first."""
  stored = np.zeros((16, 24), np.uint8)
  stored[:8, :8] = 255
  exif = Image.Exif()
  exif[ExifTags.Base.Orientation] = orientation
  exif[ExifTags.Base.Make] = "camera"
  image = image_files.decode_picture(encoded(Image.fromarray(stored), kind, exif=exif))[..., 0]
  assert image.shape == ((16, 24) if orientation < 5 else (24, 16))
  corners = {"tl": image[3, 3], "tr": image[3, -4], "bl": image[-4, 3], "br": image[-4, -4]}
  assert {name for name, value in corners.items() if value > 200} == {CORNERS[orientation]}


def test_transparent_pixels_become_black_and_grey_stays_grey():
  values, alpha = np.array([[200, 100, 50]], np.uint8), np.array([[255, 128, 0]], np.uint8)
  expected = np.round(values * (alpha / 255))[..., None]
  grey = Image.merge("LA", [*map(Image.fromarray, (values, alpha))])
  np.testing.assert_allclose(image_files.decode_picture(encoded(grey)), expected, atol=1)
  colour = Image.merge("RGBA", [*map(Image.fromarray, (values, values, values, alpha))])
  rgb = image_files.decode_picture(encoded(colour))
  np.testing.assert_allclose(rgb, np.repeat(expected, 3, axis=-1), atol=1)
  keyed = encoded(Image.fromarray(values), transparency=100)  # one value is transparent
  np.testing.assert_array_equal(image_files.decode_picture(keyed)[0, :, 0], [200, 0, 50])
  indexed = Image.new("P", (2, 1))
  indexed.putpalette([200, 10, 20, 90, 90, 90])
  indexed.putpixel((1, 0), 1)
  np.testing.assert_array_equal(
    image_files.decode_picture(encoded(indexed, transparency=1))[0], [[200, 10, 20], [0, 0, 0]]
  )
  ink = Image.merge("CMYK", [Image.new("L", (8, 8), ink) for ink in (0, 255, 255, 0)])
  red = image_files.decode_picture(encoded(ink, "JPEG"))[4, 4]
  assert red[0] > 200
  assert red[1:].max() < 60


def test_the_first_picture_of_a_telephone_is_the_photograph():
  """An MPO, named .jpg, has previews behind it."""
  stored = encoded(FRAMES[1], "MPO", save_all=True, append_images=[FRAMES[0]], quality=95)
  assert Image.open(io.BytesIO(stored)).n_frames == 2
  assert abs(int(image_files.decode_picture(stored)[3, 3, 0]) - 200) < 5


def test_grey_and_colour_in_one_folder_are_rgb_or_what_is_asked_for(undivided, load):
  grey = np.arange(20, dtype=np.uint8).reshape(4, 5, 1)
  save(undivided / "dog" / "0.bmp", grey)
  colour = picture(0)
  colour[..., 1] = 90
  save(undivided / "cat" / "0.png", colour)

  def images(form) -> np.ndarray:
    return np.concatenate([split.images for split in load(undivided, form).splits.values()])

  as_rgb, as_grey = images(Form()), images(Form(channels=1))
  assert (as_rgb.shape, as_grey.shape) == ((15, 4, 5, 3), (15, 4, 5, 1))
  assert sum((image == grey).all() for image in as_rgb) == 1
  assert sum((image == grey).all() for image in as_grey) == 1
  luminance = np.asarray(Image.fromarray(colour).convert("L"))[..., None]
  assert sum((image == luminance).all() for image in as_grey) == 1
  assert images(Form(channels=3)).shape == (15, 4, 5, 3)
  np.testing.assert_array_equal(images(Form()), as_rgb)  # each form has a cache file of its own


def disc(height: int, width: int) -> np.ndarray:
  """A white disc in the middle of black, as wide as the shorter side."""
  rows, columns = np.mgrid[:height, :width]
  square = (rows - (height - 1) / 2) ** 2 + (columns - (width - 1) / 2) ** 2
  return (255 * (square < (min(height, width) / 2) ** 2)).astype(np.uint8)[..., None]


@pytest.mark.parametrize("fill", ["crop", "pad"])
def test_images_of_many_sizes_become_squares(root, load, fill):
  sizes = [(64, 64), (40, 90), (90, 40), (16, 17), (200, 64), (23, 29)]
  for name in ("a", "b"):
    for number, size in enumerate(sizes):
      save(root / name / f"{number}.png", disc(*size))
  with pytest.raises(ValueError, match=r"config\.data\.resize"):
    load(root)
  dataset = load(root, Form(side=32, fill=fill))
  images = np.concatenate([split.images for split in dataset.splits.values()])
  assert images.shape == (12, 32, 32, 1)
  # The area of a disc says how much an image was scaled, its middle where it lies.
  scales = [min(size) / max(size) if fill == "pad" else 1 for size in sizes]
  expected = sorted([np.pi / 4 * scale**2 for scale in scales] * 2)
  areas = np.sort(images.mean(axis=(1, 2, 3)) / 255)
  np.testing.assert_allclose(areas, expected, atol=0.03)
  for axis in (1, 2):
    places = images.sum(axis=axis).astype(float)[..., 0]
    middles = places @ np.arange(32) / places.sum(axis=1)
    np.testing.assert_allclose(middles, 15.5, atol=0.5)


def test_a_strip_is_not_lost_where_it_is_padded_and_fine_lines_are_averaged():
  strip = np.full((1, 2, 400, 1), 255, np.uint8)
  assert image_files.resized(strip, (16, 16), "pad").sum() == 16 * 255
  lines = np.zeros((1, 64, 64, 1), np.uint8)
  lines[:, ::2] = 255
  small = image_files.resized(lines, (8, 8), "crop").astype(int)
  np.testing.assert_allclose(small[:, 1:-1], 127, atol=2)
  floats = image_files.resized(lines / 255, (8, 8), "crop")
  np.testing.assert_allclose(255 * floats, small, atol=1)
  pair = np.concatenate([lines, 255 - lines], axis=-1)
  assert image_files.resized(pair, (8, 8), "crop").shape == (1, 8, 8, 2)


def test_black_ink_on_transparency_is_warned_of(undivided, load, caplog):
  ink = np.zeros((4, 5, 4), np.uint8)
  ink[1, 1, 3] = 255
  save(undivided / "dog" / "7.png", ink)
  load(undivided)
  assert re.search(r"\b1 of 16\b.*dog/7\.png", caplog.text)


def test_copies_of_training_images_in_the_test_split_are_warned_of(undivided, load, root, caplog):
  load(undivided)
  assert not caplog.records
  for index in range(5):
    save(undivided / "dog" / f"copy{index}.png", picture(100))
  held_out = load(undivided).splits["test"].images
  copies = (held_out == picture(100)).all(axis=(1, 2, 3)).sum()
  assert copies > 0
  assert re.search(rf"\b{copies} of the {len(held_out)} test images", caplog.text)


def test_missing_empty_and_disagreeing_folders(tmp_path, root, load, undivided):
  def refused(folder, message):
    with pytest.raises(ValueError, match=message):
      load(folder)

  refused("", r"''.*config\.data\.dir")
  refused(tmp_path / "nowhere", "nowhere'")
  (tmp_path / "empty").mkdir()
  refused(tmp_path / "empty", "/empty")
  (undivided / "emu").mkdir()
  refused(undivided, "/emu")
  save(undivided / "emu" / "1.png", picture(1))
  refused(undivided, "2 images.*emu")
  save(root / "train" / "a" / "1.png", picture(1))
  refused(root, r"/test\b")
  save(root / "test" / "b" / "1.png", picture(1))
  refused(root, r"train.*test.*\['a'\].*\['b'\]")


def test_names_of_classes_that_look_alike_are_told_apart(root, load):
  for split, name in (("train", "caf\u00e9"), ("test", "cafe\u0301")):
    save(root / split / name / "1.png", picture(1))
  with pytest.raises(ValueError, match=r"\bNFC\b.*\bNFD\b"):
    load(root)
