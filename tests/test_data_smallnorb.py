"""smallNORB: small sets that the tests write in TFDS's format, read whole and by viewpoint."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import matrix_capsules
from scae_jax.data.smallnorb import halve
from scae_jax.data.sources import load_dataset
from scae_jax.training import build
from scae_jax.training.config import read_settings
from tests.test_data_tfds import example, image_feature, label_feature, write_tfds

AZIMUTHS, ELEVATIONS = 18, 9
CATEGORIES = ("four-legged animals", "human figures", "airplanes", "trucks", "cars")
GREY = image_feature(("96", "96", "1"))
FEATURES = {
  "image": GREY,
  "image2": GREY,
  "label_category": label_feature(5),
  "instance": label_feature(10),
  "label_elevation": label_feature(ELEVATIONS),
  "label_azimuth": label_feature(AZIMUTHS),
  "label_lighting": label_feature(6),
}


def pixels(index: int) -> np.ndarray:
  return np.random.RandomState(index).randint(0, 256, (96, 96, 1)).astype(np.uint8)


def record(index: int, azimuth: int | None = None) -> dict[str, bytes | int]:
  """A toy seen from azimuth `index` and elevation `index % 9`."""
  return {
    "image": example(pixels(index), 0)["image"],
    "image2": example(pixels(1_000 + index), 0)["image"],
    "label_category": index % 5,
    "instance": 3,
    "label_elevation": index % ELEVATIONS,
    "label_azimuth": index % AZIMUTHS if azimuth is None else azimuth,
    "label_lighting": index % 6,
  }


TRAIN, TEST = range(AZIMUTHS), range(AZIMUTHS, 2 * AZIMUTHS)


SMALL = {**record(0), "image": example(np.zeros((48, 48, 1), np.uint8), 0)["image"]}


def write(root, version="2.0.0", **changes):
  splits = {"train": [record(i) for i in TRAIN], "test": [record(i) for i in TEST]}
  options = {"splits": splits, "features": FEATURES, "keys": ("image", "label_category")}
  folder = write_tfds(root, "smallnorb", version, **{**options, **changes})
  # As TFDS writes names of classes.
  (folder / "label_category.labels.txt").write_text("\n".join(CATEGORIES) + "\n")
  return folder


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
  root = tmp_path_factory.mktemp("tfds")
  write(root)
  return root


def halved_by_loops(image: np.ndarray) -> np.ndarray:
  half = np.zeros((48, 48, 1), np.uint8)
  for row in range(48):
    for column in range(48):
      four = [int(image[2 * row + i, 2 * column + j, 0]) for i in (0, 1) for j in (0, 1)]
      half[row, column] = int(np.floor(sum(four) / 4 + 0.5))
  return half


def assert_holds(split, indices):
  assert split.labels.tolist() == [index % 5 for index in indices]
  assert len(split.images) == len(indices)
  for image, index in zip(split.images, indices, strict=True):
    np.testing.assert_array_equal(image[..., :1], halved_by_loops(pixels(index)))
    np.testing.assert_array_equal(image[..., 1:], halved_by_loops(pixels(1_000 + index)))


@pytest.mark.parametrize(
  ("name", "familiar"),
  [
    ("smallnorb:novel_azimuth", [0, 1, 2, 15, 16, 17]),  # 300, 320, 340, 0, 20 and 40 degrees
    ("smallnorb:novel_elevation", [0, 1, 2, 9, 10, 11]),  # 30, 35 and 40 degrees, twice each
    ("smallnorb", None),
  ],
)
def test_splits(prepared, tmp_path, name, familiar):
  dataset = load_dataset(name, str(prepared), str(tmp_path))
  assert (dataset.name, dataset.class_names) == (name, CATEGORIES)
  assert (dataset.image_shape, dataset.held_out) == ((48, 48, 2), "test")
  if familiar is None:
    assert sorted(dataset.splits) == ["test", "train"]
    assert_holds(dataset.splits["train"], list(TRAIN))
    assert_holds(dataset.splits["test"], list(TEST))
    return
  assert sorted(dataset.splits) == ["familiar", "test", "train"]
  assert_holds(dataset.splits["train"], familiar)
  assert_holds(dataset.splits["familiar"], [AZIMUTHS + index for index in familiar])
  novel = [index for index in TEST if index - AZIMUTHS not in familiar]
  assert_holds(dataset.splits["test"], novel)


def test_the_preset_sees_the_middle_of_pairs_that_are_normalised_whole(
  prepared, tmp_path, monkeypatch
):
  monkeypatch.setattr(build, "check_system", lambda *_: None)  # which takes seconds
  monkeypatch.setattr(build, "require_memory", lambda *_, **__: None)
  config = matrix_capsules.get_config("smallnorb_small")
  config.data.update(dir=str(prepared), cache_dir=str(tmp_path))
  _, dataset, feed = build.build(read_settings(config))
  assert dataset.image_shape == (32, 32, 2)
  heldout, train = (jax.tree.map(jnp.asarray, dict(x)) for x in (feed.heldout, feed.train))
  found = feed.evaluation_batch(heldout, jnp.array([3]))["image"][0]
  index = TEST[3]
  pair = [halved_by_loops(pixels(number)) for number in (index, 1_000 + index)]
  whole = np.concatenate(pair, axis=2) / 255
  expected = (whole - whole.mean()) / whole.std()
  np.testing.assert_allclose(found, expected[8:40, 8:40], atol=1e-5)
  made = feed.training_batch(jax.random.key(0), train, jnp.arange(4))["image"]
  assert made.shape == (4, 32, 32, 2)
  # Of 2,048 random bytes: the mean of a window is off by 0.03 and the jitter, their spread by 0.5.
  assert np.abs(np.mean(made, axis=(1, 2, 3))).max() < 0.125 + 0.1
  assert np.abs(np.std(made, axis=(1, 2, 3)) - 1).max() < 0.5 + 0.1


def test_every_division_has_a_cache_file_of_its_own(prepared, tmp_path, monkeypatch):
  names = ("smallnorb", "smallnorb:novel_azimuth", "smallnorb:novel_elevation")
  folder = tmp_path / "cache"
  whole = {name: load_dataset(name, str(prepared), str(folder)) for name in names}
  stems = ("smallnorb-48", "smallnorb-48-novel_azimuth", "smallnorb-48-novel_elevation")
  assert sorted(path.name for path in folder.iterdir()) == [f"{stem}-2.0.0.npz" for stem in stems]
  monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)  # Importing it fails now.
  for name in (*names, "smallnorb:2.0.0", "smallnorb:2.0.0:novel_azimuth"):
    again = load_dataset(name, str(tmp_path / "nothing"), str(folder))
    expected = whole[name.replace(":2.0.0", "")]
    assert again.name == expected.name
    assert sorted(again.splits) == sorted(expected.splits)
    for split in expected.splits:
      np.testing.assert_array_equal(again.splits[split].images, expected.splits[split].images)
  with pytest.raises(ValueError, match=r"'smallnorb:3\.0\.0' is not prepared"):
    load_dataset("smallnorb:3.0.0:novel_azimuth", str(tmp_path / "nothing"), str(folder))


def test_names():
  with pytest.raises(
    ValueError, match="expected the name of a data set, got 'mnist:novel_azimuth'"
  ):
    load_dataset("mnist:novel_azimuth")
  for name in ("smallnorb:novel_lighting", "smallnorb:", "smallnorb:latest", "smallnorb:2.0.0:x"):
    with pytest.raises(ValueError, match=r"'smallnorb:novel_azimuth', .*elevation', got 'small"):
      load_dataset(name)


def test_what_is_not_prepared_gets_the_commands(tmp_path):
  for name in ("smallnorb", "smallnorb:novel_azimuth"):
    with pytest.raises(ValueError, match="data set 'smallnorb' is not prepared") as raised:
      load_dataset(name, str(tmp_path), str(tmp_path))
    assert f"tfds.builder('smallnorb', data_dir='{tmp_path}')" in str(raised.value)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (
      {"splits": {"train": [record(0, azimuth=18)], "test": [record(0)]}},
      r"split 'train': expected label_azimuth from 0 to 17, got 18 for example 0",
    ),
    (
      {"splits": {"train": [record(3)], "test": [record(0)]}},
      r"'smallnorb:novel_azimuth', split 'train': expected at least one image",
    ),
    (
      {"features": {key: FEATURES[key] for key in ("image", "label_category", "label_azimuth")}},
      r"expected the features \['image', .*'label_elevation'\], got \['image', 'label_azimuth', ",
    ),
    (
      {"splits": {"train": [SMALL], "test": [SMALL]}},
      r"expected grey images of 96x96 pixels, got .* \(48, 48, 1\)",
    ),
  ],
)
def test_sets_that_are_not_as_tfds_prepares_them_are_refused(tmp_path, changes, message):
  write(tmp_path, **changes)
  with pytest.raises(ValueError, match=message):
    load_dataset("smallnorb:novel_azimuth", str(tmp_path), str(tmp_path / "cache"))


def test_means_are_rounded_to_the_nearest_halves_up():
  image = np.array([[0, 1, 255, 255, 0, 0], [0, 1, 255, 255, 0, 1]], np.uint8)[None, ..., None]
  assert halve(image)[0, 0, :, 0].tolist() == [1, 255, 0]
  assert halve(image).dtype == np.uint8
