"""smallNORB: small sets that the tests write in TFDS's format, read whole and by viewpoint."""

import sys

import numpy as np
import pytest

from scae_jax.data.image_files import AS_IT_IS, Form
from scae_jax.data.sources import load_dataset, preview
from tests.toy_data import random_images
from tests.toy_tfds import image_feature, label_feature, png, write_tfds

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
TRAIN, TEST = range(AZIMUTHS), range(AZIMUTHS, 2 * AZIMUTHS)


def pixels(index):
  """Of both cameras, [2, 96, 96, 1]."""
  return random_images(2, 96, 96, 1, seed=index)


def record(index):
  """A toy seen from azimuth `index` and elevation `index % 9`."""
  left, right = map(png, pixels(index))
  return {
    "image": left,
    "image2": right,
    "label_category": index % 5,
    "instance": 3,
    "label_elevation": index % ELEVATIONS,
    "label_azimuth": index % AZIMUTHS,
    "label_lighting": index % 6,
  }


SMALL = {**record(0), "image": png(np.zeros((48, 48, 1), np.uint8))}


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


def halved_pair(index):
  """Both cameras as channels; 2x2 pixels become their mean, rounded, halves up."""
  left, right = (np.asarray(image, float) for image in pixels(index))
  pair = np.concatenate([left, right], axis=2)
  corners = [pair[i::2, j::2] for i in (0, 1) for j in (0, 1)]
  return np.floor(np.mean(corners, axis=0) + 0.5)


def assert_holds(split, indices):
  assert split.labels.tolist() == [index % 5 for index in indices]
  np.testing.assert_array_equal(split.images, [halved_pair(index) for index in indices])


@pytest.mark.parametrize(
  ("name", "familiar"),
  [
    ("smallnorb:novel_azimuth", [0, 1, 2, 15, 16, 17]),  # 300, 320, 340, 0, 20 and 40 degrees
    ("smallnorb:novel_elevation", [0, 1, 2, 9, 10, 11]),  # 30, 35 and 40 degrees, twice each
    ("smallnorb", None),
  ],
)
def test_splits_and_their_own_cache_files(prepared, tmp_path, monkeypatch, name, familiar):
  dataset = load_dataset(name, str(prepared), str(tmp_path))
  assert (dataset.name, dataset.class_names) == (name, CATEGORIES)
  assert (dataset.image_shape, dataset.held_out) == ((48, 48, 2), "test")
  expected = {"train": list(TRAIN), "test": list(TEST)}
  if familiar:
    expected["train"] = familiar
    expected["familiar"] = [AZIMUTHS + index for index in familiar]
    expected["test"] = [index for index in TEST if index - AZIMUTHS not in familiar]
  assert sorted(dataset.splits) == sorted(expected)
  for split, indices in expected.items():
    assert_holds(dataset.splits[split], indices)
  form = Form(side=32, middle=(28, 20))
  for asked, shape in ((AS_IT_IS, (48, 48)), (Form(side=32), (32, 32)), (form, (28, 20))):
    assert preview(name, str(prepared), str(tmp_path / "other"), asked).image_shape == shape
  stem = name.replace("smallnorb", "smallnorb-48").replace(":", "-")
  assert [path.name for path in tmp_path.iterdir()] == [f"{stem}-2.0.0.npz"]
  monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)  # Importing it fails now.
  for again in (name, name.replace("smallnorb", "smallnorb:2.0.0")):
    cached = load_dataset(again, str(tmp_path / "nothing"), str(tmp_path))
    assert (cached.name, sorted(cached.splits)) == (name, sorted(expected))
    for split, part in cached.splits.items():
      np.testing.assert_array_equal(part.images, dataset.splits[split].images)
  with pytest.raises(ValueError, match=r"'smallnorb:3\.0\.0'") as raised:
    load_dataset(name.replace("smallnorb", "smallnorb:3.0.0"), "nothing", str(tmp_path))
  assert "tfds.builder('smallnorb:3.0.0', data_dir='nothing')" in str(raised.value)


def test_names():
  with pytest.raises(ValueError, match="'mnist:novel_azimuth'"):
    load_dataset("mnist:novel_azimuth")
  for name in ("smallnorb:novel_lighting", "smallnorb:", "smallnorb:latest", "smallnorb:2.0.0:x"):
    with pytest.raises(ValueError, match=f"'smallnorb:novel_azimuth'.*elevation'.*'{name}'"):
      load_dataset(name)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (
      {"splits": {"train": [record(3)], "test": [record(0)]}},
      r"'smallnorb:novel_azimuth'.*'train'",
    ),
    (
      {"features": {key: FEATURES[key] for key in ("image", "label_category", "label_azimuth")}},
      r"\['image', .*'label_elevation'\].*\['image', 'label_azimuth', ",
    ),
    (
      {"splits": {"train": [SMALL], "test": [SMALL]}},
      r"96x96.*\(48, 48, 1\)",
    ),
  ],
)
def test_sets_that_are_not_as_tfds_prepares_them_are_refused(tmp_path, changes, message):
  write(tmp_path, **changes)
  with pytest.raises(ValueError, match=message):
    load_dataset("smallnorb:novel_azimuth", str(tmp_path), str(tmp_path / "cache"))
