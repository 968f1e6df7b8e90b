"""Names of data sets to score on: images, notes and refusals."""

import re

import numpy as np
import pytest

from scae_jax.data import transfer
from scae_jax.data.dataset import Dataset, Split
from scae_jax.data.image_files import AS_IT_IS, Form
from scae_jax.data.transfer import load_scored, preview_scored, rotated
from tests.toy_data import dataset_of, write_affnist
from tests.toy_system import data_options

# The middle 2x2 of 4x4 is ink, on black.
FOUR = np.zeros((4, 4, 4, 1), np.uint8)
FOUR[:, 1:3, 1:3] = np.arange(1, 17, dtype=np.uint8).reshape(4, 2, 2, 1)


@pytest.fixture
def four(monkeypatch):
  """Sets of any name have those four images; names with "many" have them 250 times."""
  loads = []

  def load(name, data_dir, cache_dir, form=AS_IT_IS):
    loads.append((name, data_dir, cache_dir, form))
    images = np.tile(FOUR, (250 if "many" in name else 1, 1, 1, 1))
    split = Split(images, np.arange(len(images), dtype=np.int32) % 2)
    return Dataset(name.partition(":")[0], ("a", "b"), {"train": split, "test": split})

  monkeypatch.setattr(transfer, "load_dataset", load)
  return loads


def scored(name, canvas=8, **options):
  return load_scored(name, data_options(canvas, **options))


def images_of(name, canvas=8, **options):
  return scored(name, canvas, **options).splits["test"].images


def shifts(name):
  """The shift of each image to the right and down, on a canvas of 8."""
  corners = []
  for i, image in enumerate(images_of(name)):
    rows, columns = np.nonzero(image[..., 0])
    top, left = rows.min(), columns.min()
    np.testing.assert_array_equal(image[top : top + 2, left : left + 2], FOUR[i % 4, 1:3, 1:3])
    corners.append((left - 3, top - 3))
  return np.array(corners)


def test_shifts_are_of_all_images_or_drawn_once_for_all_runs(four):
  assert shifts("translated_four:2,-3").tolist() == [[2, -3]] * 4
  assert shifts("translated_four:1").tolist() == [[1, 1]] * 4
  assert four[0] == ("four", "", "", AS_IT_IS)
  loaded = scored("translated_four:2,-3")
  assert (loaded.name, loaded.class_names) == ("translated_four:2,-3", ("a", "b"))
  assert (list(loaded.splits), loaded.held_out, loaded.notes) == (["test"], "test", ())
  assert not isinstance(loaded, Dataset)
  drawn = shifts("translated_many:-3..2,0..1")
  assert sorted(set(drawn[:, 0])) == [-3, -2, -1, 0, 1, 2]
  assert sorted(set(drawn[:, 1])) == [0, 1]
  assert np.bincount(drawn[:, 0] + 3).min() > 120  # of 167 each
  np.testing.assert_array_equal(drawn, shifts("translated_many:-3..2,0..1"))
  assert len(set(map(tuple, shifts("translated_many:-3..3")))) == 49
  for moves, furthest in (("8", 8), ("0,-8", 8), ("-9..0", 9), ("0,0..12", 12)):
    with pytest.raises(ValueError, match=rf"\b8\b.*\b{furthest}\b"):
      scored(f"translated_four:{moves}")
  assert scored("translated_four:7,-7").name == "translated_four:7,-7"


def test_crops_are_cut_before_images_move(four):
  middle = FOUR[:, 1:3, 1:3]
  for name, canvas in (("four", 3), ("rotated_four:0", 2)):
    np.testing.assert_array_equal(images_of(name, canvas, crop=2), middle)
  moved = images_of("translated_four:1,0", 2, crop=2)
  np.testing.assert_array_equal(moved[:, :, 1], middle[:, :, 0])
  assert not moved[:, :, 0].any()
  with pytest.raises(ValueError, match=r"5 x 5.*'four'.*4 x 4"):
    scored("rotated_four:90", crop=5)


def test_notes_give_the_share_of_ink_off_the_canvas(four):
  # Of 2x2 pixels of ink the first row and column stay.
  inked = FOUR.astype(float)
  lost = 100 * (1 - inked[:, 1, 1, 0] / inked.sum((1, 2, 3)))
  (note,) = scored("translated_four:4").notes
  facts = rf"\b4 of 4 images\b.* 8 .*\b{lost.mean():.3g} %.*\b{lost.max():.3g} %"
  assert re.match(rf"translated_four:4: .*{facts}", note)
  full = dataset_of(np.full((3, 4, 4, 1), 9, np.uint8))
  full = Dataset("full", full.class_names, full.splits, ("made up.",))
  first, *rest = rotated(full, 180, 4).notes
  assert first == "made up."
  for note, split in zip(rest, ("train", "test"), strict=True):
    assert re.match(rf"rotated_full:-180\.\.180, {split}: .*\b3 of 3 images\b.* 4\b", note)


def test_rotation_by_an_angle_and_by_a_range(four):
  padded = np.pad(FOUR, ((0, 0), (2, 2), (2, 2), (0, 0)))
  np.testing.assert_array_equal(images_of("rotated_four:90"), np.rot90(padded, axes=(1, 2)))
  assert scored("rotated_four:90").name == "rotated_four:90"
  # Less than half a grey level.
  np.testing.assert_array_equal(images_of("rotated_four:-0.001..0.001"), padded)
  ranged = images_of("rotated_four:-90..90")
  np.testing.assert_array_equal(ranged, images_of("rotated_four:-90..90"))
  profiles = [np.round(image / image.max(), 1).tolist() for image in ranged]
  assert all(profiles.count(profile) == 1 for profile in profiles)  # each by its own angle
  # What models are fitted to has the same test images.
  dataset = transfer.load_dataset("four", "", "")
  np.testing.assert_array_equal(rotated(dataset, 90, 8).splits["test"].images, ranged)
  still = rotated(dataset, 0, 8)
  np.testing.assert_array_equal(still.splits["train"].images, padded)
  assert (still.name, still.notes) == ("rotated_four:0", ())
  for degrees in (-1, 181):
    with pytest.raises(ValueError, match=f"180.* {degrees}"):
      rotated(dataset, degrees, 8)


def test_all_splits_are_turned_each_image_by_its_own_angle():
  """The mark is one bright pixel off the middle; where it goes tells the angle."""
  images = np.zeros((200, 9, 9, 1), np.uint8)
  images[:, 3:6, 7] = 255
  dataset = dataset_of(images, validation=images, labels=np.arange(200) % 2)
  dataset.splits["familiar"] = dataset.splits["test"]  # as of smallNORB; names of others are free
  dataset.splits["street"] = dataset.splits["test"]
  turned, again = (rotated(dataset, 60, 12) for _ in range(2))
  assert turned.name == "rotated_toy:-60..60"
  y, x = np.meshgrid(*[np.arange(12) - 5.0] * 2, indexing="ij")  # 1 + the middle of 9 pixels
  angles = {}
  for name, split in turned.splits.items():
    np.testing.assert_array_equal(split.labels, np.arange(200) % 2)
    np.testing.assert_array_equal(split.images, again.splits[name].images)
    ink = split.images[..., 0].astype(float)
    right, down = ((ink * axis).sum((1, 2)) for axis in (x, y))
    angles[name] = np.degrees(np.arctan2(-down, right))
    # Bilinear resampling and rounding to bytes shift the centre of ink by a share of a pixel.
    assert np.abs(angles[name]).max() < 60 + 2
    assert np.histogram(angles[name], bins=6, range=(-60, 60))[0].min() > 15  # of 33 each
    assert len(np.unique(split.images.reshape(200, -1), axis=0)) > 190
  # Independent: 200 pairs correlate by less than 4 / sqrt(200).
  assert np.abs(np.corrcoef(list(angles.values())) - np.eye(5)).max() < 0.28


@pytest.mark.parametrize(
  ("name", "canvas", "side"), [("affnist", 32, 32), ("affnist", 48, 40), ("affine_four", 48, 48)]
)
def test_affine_sets_are_drawn_and_noted(four, name, canvas, side):
  """Also for "affnist" where its files are missing."""
  loaded = scored(name, canvas, dir="data", cache_dir="cache")
  source = "mnist" if name == "affnist" else "four"
  assert four == [(source, "data", "cache", AS_IT_IS)]
  assert (loaded.name, loaded.image_shape) == (f"affine_{source}", (side, side, 1))
  assert loaded.splits["test"].images.any(axis=(1, 2, 3)).all()
  (note,) = loaded.notes
  assert re.match(rf"affine_{source}: .*\b4 test images\b.*\bseed 0\b.*\b{side}x{side}\b", note)


def test_a_small_canvas_draws_some_maps_again():
  with pytest.raises(ValueError, match=r"'no_such'.*'rotated_<name>:35'"):
    scored("affine_no_such", 20)
  loaded = scored("affine_digits", 20)
  assert loaded.image_shape == (20, 20, 1)
  assert any(re.search(r"\b\d+ maps\b", note) for note in loaded.notes)  # their number


def test_official_files_need_a_canvas_that_holds_them(tmp_path):
  with pytest.raises(ValueError, match=r"40.*32.*affine_"):
    scored("affnist", 32, affnist_dir=str(tmp_path))
  with pytest.raises(ValueError, match=re.escape(str(tmp_path))):
    scored("affnist", 40, affnist_dir=str(tmp_path))


def test_official_files_become_ink_and_keep_their_size(tmp_path):
  images = np.full((1, 40, 40, 1), 200, np.uint8)
  images[:, 10:30, 14:26] = 20  # dark on bright
  write_affnist(tmp_path / "1.mat", images, np.zeros(1, np.int64))
  form = {"resize": 20, "middle": (16, 12), "ink": True}
  loaded = scored("affnist", 40, affnist_dir=str(tmp_path), **form).splits["test"].images
  assert loaded.shape == (1, 40, 40, 1)
  assert loaded[0, 0, 0, 0] < 64
  assert loaded[0, 20, 20, 0] > 192


def test_official_files_have_as_many_channels_as_training_images(tmp_path):
  write_affnist(tmp_path / "1.mat", np.full((1, 40, 40, 1), 9, np.uint8), np.zeros(1, np.int64))
  options = data_options(40, affnist_dir=str(tmp_path), channels=3)
  assert load_scored("affnist", options).channels == 3
  assert preview_scored("affnist", options).channels == 3


def test_plain_names_are_unchanged_data_sets(four):
  loaded = scored("plain:1.0.0", dir="data", cache_dir="cache", affnist_dir="affnist")
  assert isinstance(loaded, Dataset)
  assert four == [("plain:1.0.0", "data", "cache", AS_IT_IS)]
  moved = scored("translated_plain:1.0.0:1")
  assert four[-1] == ("plain:1.0.0", "", "", AS_IT_IS)
  load_scored("plain", data_options(8, dir="config"), "given")
  assert four[-1] == ("plain", "given", "", AS_IT_IS)
  assert moved.name == "translated_plain:1"
  scored("plain", canvas=8, resize=8, resize_fill="pad", channels=3)  # as the run's own images
  assert four[-1][-1] == Form(8, "pad", 3)


@pytest.mark.parametrize(
  "name",
  [
    "rotated_four",
    "translated_four",
    *(f"rotated_four:{moves}" for moves in ("", "x", "1,2", "20..-20", "1..2..3", "nan", "0..inf")),
    *(f"translated_four:{moves}" for moves in ("1.5", "1,2,3", "1,", "3..1,0")),
  ],
)
def test_malformed_names_are_refused_before_anything_is_loaded(four, name):
  kind = name.partition("_")[0]
  with pytest.raises(ValueError, match=f"'{re.escape(name)}'.*{kind}_mnist:3"):
    scored(name)
  assert not four
