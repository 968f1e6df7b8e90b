"""Names of data sets to score on: what they draw, what they say of it, and what they refuse."""

import numpy as np
import pytest

from scae_jax.data import transfer
from scae_jax.data.dataset import Dataset, EvalDataset, Split
from scae_jax.data.sources import load_dataset
from scae_jax.data.transfer import load_scored, rotated


@pytest.fixture
def four(monkeypatch):
  """Sets of any name: four images of 4x4, the middle 2x2 of ink, on black."""
  images = np.zeros((4, 4, 4, 1), np.uint8)
  images[:, 1:3, 1:3] = np.arange(1, 17, dtype=np.uint8).reshape(4, 2, 2, 1)
  split = Split(images, np.array([0, 1, 1, 0], np.int32))
  asked = []

  def load(name, data_dir, cache_dir):
    asked.append((name, data_dir, cache_dir))
    return Dataset(name.partition(":")[0], ("a", "b"), {"train": split, "test": split})

  monkeypatch.setattr(transfer, "load_dataset", load)
  return asked


def shifts(name, canvas=8):
  """By how far each image went to the right and down, and the set."""
  loaded = load_scored(name, canvas)
  original, start = load_scored("four", canvas).splits["test"].images, (canvas - 4) // 2
  found = []
  for image, before in zip(loaded.splits["test"].images, original, strict=True):
    rows, columns = np.nonzero(image[..., 0])
    top, left = rows.min(), columns.min()
    np.testing.assert_array_equal(image[top : top + 2, left : left + 2], before[1:3, 1:3])
    found.append((left - start - 1, top - start - 1))
  return np.array(found), loaded


def test_one_shift_is_of_all_images(four):
  found, loaded = shifts("translated_four:2,-3")
  assert found.tolist() == [[2, -3]] * 4
  assert (loaded.name, loaded.class_names) == ("translated_four:2,-3", ("a", "b"))
  assert (list(loaded.splits), loaded.held_out, loaded.notes) == (["test"], "test", ())
  assert not isinstance(loaded, Dataset)
  assert shifts("translated_four:1")[0].tolist() == [[1, 1]] * 4
  assert four[0] == ("four", "", "")


def test_crops_are_cut_before_images_move(four):
  whole = transfer.load_dataset("four", "", "").splits["test"].images
  for name, canvas in (("four", 3), ("rotated_four:0", 2)):
    images = load_scored(name, canvas, crop=2).splits["test"].images
    np.testing.assert_array_equal(images, whole[:, 1:3, 1:3])
  moved = load_scored("translated_four:1,0", 2, crop=2).splits["test"].images
  np.testing.assert_array_equal(moved[:, :, 1], whole[:, 1:3, 1])
  assert not moved[:, :, 0].any()
  with pytest.raises(ValueError, match=r"'four', 4x4 pixels; it is 5"):
    load_scored("rotated_four:90", 8, crop=5)


def test_a_range_of_shifts_is_drawn_once_for_all_runs(four, monkeypatch):
  images = np.repeat(transfer.load_dataset("four", "", "").splits["test"].images, 250, axis=0)
  split = Split(images, np.zeros(1000, np.int32))
  many = Dataset("four", ("a",), {"train": split, "test": split})
  monkeypatch.setattr(transfer, "load_dataset", lambda *_: many)
  found, _ = shifts("translated_four:-3..2,0..1")
  assert sorted(set(found[:, 0])) == [-3, -2, -1, 0, 1, 2]
  assert sorted(set(found[:, 1])) == [0, 1]
  assert np.bincount(found[:, 0] + 3).min() > 120  # of 167 each
  np.testing.assert_array_equal(found, shifts("translated_four:-3..2,0..1")[0])
  both, _ = shifts("translated_four:-3..3")
  assert len(set(map(tuple, both))) == 49


def test_ink_off_the_canvas_is_told(four):
  loaded = load_scored("translated_four:4", 8)
  (note,) = loaded.notes
  # Of 2x2 pixels of ink the first row and column stay.
  inked = transfer.load_dataset("four", "", "").splits["test"].images.astype(float)
  lost = 100 * (1 - inked[:, 1, 1, 0] / inked.sum((1, 2, 3)))
  assert note == (
    "translated_four:4: ink of 4 of 4 images reaches off the canvas of 8 pixels: "
    f"{lost.mean():.2g} % of an image's ink is lost in the mean, {lost.max():.2g} % at most."
  )


def test_shifts_by_which_nothing_would_be_left_are_refused(four):
  for moves, furthest in (("8", 8), ("0,-8", 8), ("-9..0", 9), ("0,0..12", 12)):
    with pytest.raises(ValueError, match=rf"below the 8 pixels of the canvas, got {furthest};"):
      load_scored(f"translated_four:{moves}", 8)
  assert load_scored("translated_four:7,-7", 8).name == "translated_four:7,-7"


def test_rotation_by_an_angle_and_by_a_range(four):
  turned = load_scored("rotated_four:90", 8)
  original = np.pad(transfer.load_dataset("four", "", "").splits["test"].images[..., 0], 2)[2:-2]
  np.testing.assert_array_equal(
    turned.splits["test"].images[..., 0], np.rot90(original, axes=(1, 2))
  )
  assert turned.name == "rotated_four:90"
  quarter = load_scored("rotated_four:-0.001..0.001", 8).splits["test"].images[..., 0]
  np.testing.assert_array_equal(quarter, original)  # less than half a grey level
  ranged = load_scored("rotated_four:-90..90", 8).splits["test"].images
  again = load_scored("rotated_four:-90..90", 8).splits["test"].images
  np.testing.assert_array_equal(ranged, again)
  profiles = [np.round(image / image.max(), 1).tolist() for image in ranged]
  assert all(profiles.count(profile) == 1 for profile in profiles)  # each by its own angle


def test_all_splits_are_turned_each_image_by_its_own_angle(four):
  """The mark is one bright pixel off the middle; where it goes tells the angle."""
  images = np.zeros((200, 9, 9, 1), np.uint8)
  images[:, 3:6, 7] = 255
  split = Split(images, np.arange(200, dtype=np.int32) % 2)
  dataset = Dataset("mark", ("a", "b"), {"train": split, "test": split, "validation": split})
  found = rotated(dataset, 60, 12)
  assert found.name == "rotated_mark:-60..60"
  y, x = np.meshgrid(*[np.arange(12) - 5.0] * 2, indexing="ij")  # 1 + the middle of 9 pixels
  angles = {}
  for name, one in found.splits.items():
    np.testing.assert_array_equal(one.labels, split.labels)
    ink = one.images[..., 0].astype(float)
    right, down = ((ink * axis).sum((1, 2)) for axis in (x, y))
    angles[name] = np.degrees(np.arctan2(-down, right))
    # Bilinear resampling and rounding to bytes shift the centre of ink by a share of a pixel.
    assert np.abs(angles[name]).max() < 60 + 2
    assert np.histogram(angles[name], bins=6, range=(-60, 60))[0].min() > 15  # of 33 each
    assert len(np.unique(one.images.reshape(200, -1), axis=0)) > 190
  for one, other in (("train", "test"), ("train", "validation"), ("test", "validation")):
    # Independent: 200 pairs correlate by less than 4 / sqrt(200).
    assert abs(np.corrcoef(angles[one], angles[other])[0, 1]) < 0.28
  again = rotated(dataset, 60, 12)
  for name, one in found.splits.items():
    np.testing.assert_array_equal(one.images, again.splits[name].images)


def test_turned_test_images_are_those_to_score_on(four):
  dataset = transfer.load_dataset("four", "", "")
  scored = load_scored("rotated_four:-90..90", 8)
  np.testing.assert_array_equal(
    rotated(dataset, 90, 8).splits["test"].images, scored.splits["test"].images
  )
  still = rotated(dataset, 0, 8)
  padded = np.pad(dataset.splits["train"].images, ((0, 0), (2, 2), (2, 2), (0, 0)))
  np.testing.assert_array_equal(still.splits["train"].images, padded)
  assert (still.name, still.notes) == ("rotated_four:0", ())
  for degrees in (-1, 181):
    with pytest.raises(ValueError, match=f"0 to 180 degrees, got {degrees}"):
      rotated(dataset, degrees, 8)


def test_turned_images_tell_of_lost_ink(four):
  images = np.full((3, 4, 4, 1), 9, np.uint8)
  split = Split(images, np.zeros(3, np.int32))
  dataset = Dataset("full", ("a",), {"train": split, "test": split}, ("made up.",))
  where = "rotated_full:-180..180"
  first, *lost = rotated(dataset, 180, 4).notes
  assert first == "made up."
  for note, split_name in zip(lost, ("train", "test"), strict=True):
    start = f"{where}, {split_name}: ink of 3 of 3 images reaches off the canvas of 4 pixels: "
    assert note.startswith(start)


def test_affine_is_drawn_and_says_so(four):
  loaded = load_scored("affine_four", 8)
  assert (loaded.name, loaded.image_shape) == ("affine_four", (8, 8, 1))
  assert loaded.splits["test"].images.any(axis=(1, 2, 3)).all()
  assert loaded.notes == (
    "affine_four: affNIST's distribution of maps, drawn for 4 test images with seed 0 on 8x8 "
    "pixels (affNIST: 40x40); not its official files.",
  )


@pytest.mark.parametrize(("canvas", "side"), [(32, 32), (40, 40), (48, 40)])
def test_affnist_without_files_is_drawn_from_mnist(four, canvas, side):
  loaded = load_scored("affnist", canvas, "data", "cache")
  assert (loaded.name, loaded.image_shape) == ("affine_mnist", (side, side, 1))
  assert f"{side}x{side} pixels" in loaded.notes[0]
  assert four == [("mnist", "data", "cache")]
  assert load_scored("affine_four", 48).image_side == 48


def test_a_small_canvas_draws_some_maps_again():
  loaded = load_scored("affine_digits", 20)
  assert loaded.image_shape == (20, 20, 1)
  assert any("maps were drawn again" in note for note in loaded.notes)


def test_official_files_need_a_canvas_that_holds_them(tmp_path):
  with pytest.raises(ValueError, match=r"40 pixels a side, and the model's canvas is 32.*affine_"):
    load_scored("affnist", 32, affnist_dir=str(tmp_path))
  with pytest.raises(ValueError, match=r"got none.*leave it empty to draw"):
    load_scored("affnist", 40, affnist_dir=str(tmp_path))


def test_other_names_are_data_sets_as_they_are(four):
  loaded = load_scored("plain:1.0.0", 8, "data", "cache", "affnist")
  assert isinstance(loaded, Dataset)
  assert four == [("plain:1.0.0", "data", "cache")]
  moved = load_scored("translated_plain:1.0.0:1", 8)
  assert four[-1] == ("plain:1.0.0", "", "")
  assert moved.name == "translated_plain:1"


@pytest.mark.parametrize(
  "name",
  [
    "rotated_four",
    "translated_four",
    "rotated_four:",
    "rotated_four:x",
    "rotated_four:1,2",
    "rotated_four:20..-20",
    "rotated_four:1..2..3",
    "rotated_four:nan",
    "rotated_four:0..inf",
    "translated_four:1.5",
    "translated_four:1,2,3",
    "translated_four:1,",
    "translated_four:3..1,0",
  ],
)
def test_what_cannot_be_read_is_refused_before_anything_is_loaded(four, name):
  kind = name.partition("_")[0]
  reason = ": cannot read '" if ":" in name else " does not say how far"
  with pytest.raises(ValueError, match=f"data set '{name}'{reason}.*as in {kind}_mnist:3.*a range"):
    load_scored(name, 8)
  assert not four


def test_unknown_sets_are_refused_by_the_source():
  with pytest.raises(ValueError, match=r"unknown data set 'no_such'.*'rotated_<name>:35'"):
    load_scored("rotated_no_such:3", 8)


def test_a_set_to_score_on_is_checked_as_any_other():
  split = Split(np.zeros((2, 4, 4, 1), np.uint8), np.zeros(2, np.int32))
  assert EvalDataset("toy", ("a",), {"test": split}).image_shape == (4, 4, 1)
  with pytest.raises(ValueError, match=r"expected the splits 'test', got \['train'\]"):
    EvalDataset("toy", ("a",), {"train": split})
  with pytest.raises(ValueError, match=r"expected labels in \[0, 1\), got 5"):
    EvalDataset("toy", ("a",), {"test": Split(split.images, np.array([5, 0], np.int32))})
  with pytest.raises(ValueError, match=r"expected the splits 'train' and 'test', got \['test'\]"):
    Dataset("toy", ("a",), {"test": split})
  assert load_dataset("digits").notes == ()
