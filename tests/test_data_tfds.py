"""TFDS sets: small ones that the tests write in TFDS's format, and MNIST where it is prepared."""

import json
import subprocess
import sys

import numpy as np
import pytest
from packaging.requirements import Requirement

from scae_jax.data.image_files import Form, in_form
from scae_jax.data.sources import load_dataset, preview
from tests.runs import ROOT
from tests.toy_data import dataset_of, random_images
from tests.toy_tfds import (
  FEATURES,
  TEST,
  TRAIN,
  image_feature,
  label_feature,
  png,
  text_feature,
  write_tfds,
)

SWAPPED = {"train": TEST, "test": TRAIN}


@pytest.fixture
def root(tmp_path):
  return tmp_path / "tfds"


@pytest.fixture
def load(tmp_path, root):
  return lambda name="svhn_cropped": load_dataset(name, str(root), str(tmp_path / "cache"))


def other(**features):
  """Options of `write_tfds` with some features changed."""
  return {"features": {**FEATURES, **features}}


def assert_holds(split, examples):
  np.testing.assert_array_equal(split.images, np.stack([pixels for pixels, _ in examples]))
  np.testing.assert_array_equal(split.labels, [label for _, label in examples])


def test_a_prepared_set_is_read_and_cached(tmp_path, root, load, monkeypatch):
  write_tfds(root)
  monkeypatch.setenv("TFDS_DATA_DIR", str(root))
  folder = str(tmp_path / "cache")
  dataset = load_dataset("svhn_cropped", cache_dir=folder)
  monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)  # Importing it fails now.
  for loaded in (dataset, load()):
    assert (loaded.name, loaded.class_names) == ("svhn_cropped", ("0", "1", "2"))
    assert sorted(loaded.splits) == ["test", "train"]
    assert_holds(loaded.splits["train"], TRAIN)
    assert_holds(loaded.splits["test"], TEST)


def test_facts_known_before_decoding_are_those_of_the_images(tmp_path, root, load):
  write_tfds(root)
  height, width, _ = load().image_shape
  cache = str(tmp_path / "cache")
  for form in (Form(), Form(side=16), Form(channels=1, ink=True, middle=(height - 2, width - 3))):
    facts = preview("svhn_cropped", str(root), str(tmp_path / "none"), form)
    assert facts is not None
    loaded = load_dataset("svhn_cropped", str(root), cache, form)
    assert (*facts.image_shape, facts.channels) == loaded.image_shape


def test_versions_prepared_and_cached(tmp_path, root, load, monkeypatch):
  """The newest prepared version; without TFDS, the newest in the cache."""
  write_tfds(root, version="2.0.0", splits=SWAPPED)
  newer = write_tfds(root, version="10.0.0")
  assert_holds(load("svhn_cropped:2.0.0").splits["train"], TEST)
  assert_holds(load().splits["train"], TRAIN)
  newer.rename(tmp_path / "away")
  assert_holds(load().splits["train"], TEST)
  monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "nothing"))
  folder = str(tmp_path / "cache")
  assert_holds(load_dataset("svhn_cropped", cache_dir=folder).splits["train"], TRAIN)
  assert_holds(load_dataset("svhn_cropped:2.0.0", cache_dir=folder).splits["train"], TEST)
  with pytest.raises(ValueError, match=r"'svhn_cropped:3\.0\.0'"):
    load_dataset("svhn_cropped:3.0.0", cache_dir=folder)


def test_a_set_prepared_anew_is_decoded_anew(tmp_path, root, load):
  folder = write_tfds(root)
  load()
  folder.rename(tmp_path / "away")
  write_tfds(root, splits=SWAPPED)
  assert_holds(load().splits["train"], TEST)


def own_source(folder="none given"):
  """A data set of one's own, by its dotted path."""
  return dataset_of(random_images(), mine=random_images(len(folder)))


def no_source():
  return "a picture"


def needs_more(folder, more):
  raise AssertionError


def test_a_function_is_a_source_by_its_dotted_path():
  path = f"{__name__}.own_source"
  assert len(load_dataset(path).splits["mine"].labels) == len("none given")
  assert len(load_dataset(path, "/data").splits["mine"].labels) == len("/data")
  for name, message in (
    ("no_package.shapes", "ModuleNotFoundError: No module named 'no_package'"),
    (f"{__name__}.absent", "AttributeError: .*'absent'"),
    (f"{__name__}.FEATURES", "TypeError: .*'dict'"),
    (f"{__name__}.needs_more", "TypeError: .*'folder'"),
    (f"{__name__}.no_source", "<class 'str'>"),
  ):
    with pytest.raises(ValueError, match=f"Dataset.*{message}"):
      load_dataset(name)


def test_other_names_of_sets_splits_and_features(root, load):
  """Sets with several images and labels, such as smallNORB: the supervised pair decides."""
  pixels = random_images(1, 6, 5, 1)[0]
  item = {"left": png(pixels), "right": png(pixels), "kind": 2, "light": 1}
  grey = image_feature(("6", "5", "1"))
  features = {"left": grey, "right": grey, "kind": label_feature(), "light": label_feature()}
  splits = {"train": [item], "validation": [item]}
  write_tfds(root, "my_own_set", splits=splits, features=features, keys=("left", "kind"))
  dataset = load("my_own_set")
  assert dataset.channels == 1
  for name in ("train", "test"):  # validation stands in for the test split
    assert_holds(dataset.splits[name], [(pixels, 2)])


def test_configs(root, load):
  write_tfds(root, config="fog", splits=SWAPPED)
  assert_holds(load().splits["train"], TEST)  # The only one.
  write_tfds(root, config="rain")
  assert_holds(load("svhn_cropped/rain").splits["train"], TRAIN)
  with pytest.raises(ValueError, match=r"\['fog', 'rain'\]"):
    load()
  metadata = root / "svhn_cropped" / ".config" / "metadata.json"
  metadata.parent.mkdir()
  metadata.write_text(json.dumps({"defaultConfigName": "rain"}))
  assert_holds(load().splits["train"], TRAIN)


def test_tensorflow_is_never_imported(tmp_path, root):
  """TFDS is imported when a set is decoded: the import takes a second."""
  write_tfds(root)
  code = (
    "import sys; from scae_jax.data.sources import load_dataset\n"
    "print('tensorflow_datasets' in sys.modules)\n"
    "load_dataset('svhn_cropped', sys.argv[1], sys.argv[2])\n"
    "print('tensorflow_datasets' in sys.modules, 'tensorflow' in sys.modules)"
  )
  command = [sys.executable, "-c", code, str(root), str(tmp_path / "cache")]
  result = subprocess.run(command, capture_output=True, text=True, check=True)
  assert result.stdout.split() == ["False", "True", "False"]


def test_a_misspelt_name_is_refused_with_the_nearest_and_all_kinds_of_names(load):
  with pytest.raises(ValueError, match=r"'fashion_minst'.*'fashion_mnist'") as raised:
    load("fashion_minst")
  for valid in ("'digits'", "'folder'", "TFDS", "'mnist'"):
    assert valid in str(raised.value)
  with pytest.raises(ValueError, match=r"'digit'.*'digits'"):
    load("digit")


@pytest.mark.parametrize("name", ["", "../mnist", "mnist 2", "mnist:latest"])
def test_what_cannot_be_a_name_is_refused(load, name):
  with pytest.raises(ValueError, match=f"'{name}'.*'digits'"):
    load(name)


def test_a_folder_must_be_local():
  with pytest.raises(ValueError, match="gs://bucket"):
    load_dataset("mnist", "gs://bucket")


def assert_has_commands(message: str, root) -> None:
  """The message ends with commands that prepare `svhn_cropped` in `root`."""
  install, prepare = message.splitlines()[-2:]
  assert "pip install -r requirements-prepare.txt" in install
  assert f"tfds.builder('svhn_cropped', data_dir='{root}')" in prepare
  assert ".download_and_prepare(file_format='array_record')" in prepare


def test_a_set_that_is_not_prepared_is_refused_with_the_commands(load, root):
  with pytest.raises(ValueError, match="'svhn_cropped'") as raised:
    load()
  assert_has_commands(str(raised.value), root)


def test_a_set_in_the_format_of_tensorflow_must_be_prepared_again(load, root):
  folder = write_tfds(root, file_format="tfrecord")
  with pytest.raises(ValueError, match="tfrecord") as raised:
    load()
  assert str(folder) in str(raised.value)
  assert_has_commands(str(raised.value), root)


@pytest.mark.parametrize("package", ["tensorflow_datasets", "array_record"])
def test_a_package_that_is_missing_is_named_in_one_line(load, root, monkeypatch, package):
  write_tfds(root)
  monkeypatch.setitem(sys.modules, package, None)
  with pytest.raises(ValueError, match=rf"{package}.*requirements\.txt") as raised:
    load()
  assert "\n" not in str(raised.value)


def test_on_windows_the_remedy_is_wsl(load, monkeypatch):
  monkeypatch.setitem(sys.modules, "array_record", None)  # it has no wheels there
  monkeypatch.setattr(sys, "platform", "win32")
  with pytest.raises(ValueError, match=r"'mnist'.*WSL"):
    load("mnist")


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"splits": {"train": TRAIN}}, r"'validation'.*\['train'\]"),
    ({"splits": {"train": [], "test": TEST}}, r"'train'.*'test'.*\['test'\]"),
    (
      {"features": {"id": text_feature(), "label": label_feature()}, "keys": ("id", "label")},
      r"\b0 and 1\b.*\['id', 'label'\]",
    ),
    (other(label=text_feature()), r"\b1 and 0\b"),
    (other(image=image_feature(("6", "5", "4"))), "1 channel.* 3 .*uint8 of 4"),
    (other(image=image_feature(("6", "5", "1"), "uint16")), "uint16 of 1"),
    (other(label=label_feature(2)), r"\[0, 2\).* 2 .*example"),
    (
      {"splits": {"train": [*TRAIN, (np.zeros((6, 9, 3), np.uint8), 0)], "test": TEST}}
      | other(image=image_feature(("-1", "-1", "3"))),
      r"'train'.*example 7\b.*6x5.*6x9.*config\.data\.resize",
    ),
  ],
)
def test_unusable_sets_are_refused(root, load, tmp_path, changes, message):
  write_tfds(root, **changes)
  with pytest.raises(ValueError, match=f"(?s)'svhn_cropped'.*{message}") as raised:
    load()
  assert "download_and_prepare" not in str(raised.value)  # the files are whole
  assert not (tmp_path / "cache").exists()


def test_images_of_many_sizes_are_resized_and_cached_by_their_form(root, tmp_path):
  sizes = [(6, 9), (20, 5), (8, 8), (31, 30)]
  rows = [(np.full((*size, 3), 40 * i, np.uint8), i % 3) for i, size in enumerate(sizes)]
  features = {"id": text_feature(), "label": label_feature()}
  features["image"] = image_feature(("-1", "-1", "3"))
  write_tfds(root, features=features, splits=dict.fromkeys(("train", "test"), rows))

  def images(place) -> np.ndarray:
    folders = (str(place), str(tmp_path / "cache"))
    form = Form(side=8, channels=1)
    return load_dataset("svhn_cropped", *folders, form).splits["train"].images

  values = np.broadcast_to([[[0]], [[40]], [[80]], [[120]]], (4, 8, 8))
  np.testing.assert_array_equal(images(root)[..., 0], values)
  np.testing.assert_array_equal(images(tmp_path / "nothing")[..., 0], values)  # from the cache
  with pytest.raises(ValueError, match="download_and_prepare"):
    load_dataset("svhn_cropped", str(tmp_path / "nothing"), str(tmp_path / "cache"))


def test_a_form_is_made_of_images_that_are_cached_as_they_are(root, load, tmp_path):
  write_tfds(root)
  whole = load().splits["train"].images
  folders, form = (str(tmp_path / "nothing"), str(tmp_path / "cache")), Form(side=8, fill="pad")
  small = load_dataset("svhn_cropped", *folders, form).splits["train"].images
  np.testing.assert_array_equal(small, in_form(whole, form))


def test_a_set_that_names_code_of_elsewhere_is_refused(root, load):
  """TFDS imports the classes that a folder names, and the folder may be somebody else's."""
  path = write_tfds(root) / "features.json"
  name = "tensorflow_datasets.core.features.class_label_feature.ClassLabel"
  path.write_text(path.read_text().replace(name, "shared.payload.ClassLabel"))
  with pytest.raises(ValueError, match=r"features\.json.*'shared\.payload\.ClassLabel'"):
    load()


@pytest.mark.parametrize(
  ("name", "content"),
  [
    ("svhn_cropped-test.array_record-00000-of-00001", None),
    ("svhn_cropped-test.array_record-00000-of-00001", "half"),
    ("features.json", "{"),
    ("dataset_info.json", "[]"),
  ],
)
def test_damaged_files_are_refused(root, load, name, content):
  path = write_tfds(root) / name
  whole = path.read_bytes()
  path.write_bytes(whole[: len(whole) // 2] if content == "half" else (content or "").encode())
  if content is None:
    path.unlink()
  with pytest.raises(ValueError, match=r"TFDS(?s:.*)download_and_prepare"):
    load()


@pytest.mark.slow
def test_real_mnist(tfds_dir, tmp_path):
  """Literal facts about the published files: the sizes of classes, and the mean of all pixels."""
  dataset = load_dataset("mnist", tfds_dir, str(tmp_path))
  assert dataset.image_shape == (28, 28, 1)
  assert dataset.class_names == tuple("0123456789")
  train, test = dataset.splits["train"], dataset.splits["test"]
  sizes = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
  assert np.bincount(train.labels).tolist() == sizes
  sizes = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
  assert np.bincount(test.labels).tolist() == sizes
  assert abs(train.images.mean() / 255 - 0.1307) < 1e-4


def test_windows_needs_none_of_the_packages_that_it_does_not_have():
  lines = (ROOT / "requirements.txt").read_text().splitlines()
  texts = [line.partition(" #")[0] for line in lines if line and not line.startswith("#")]
  requirements = [Requirement(text) for text in texts]
  markers = {item.name: item.marker for item in requirements}
  for name in ("array_record", "tensorflow-datasets"):
    assert markers[name].evaluate({"sys_platform": "linux"})
    assert not markers[name].evaluate({"sys_platform": "win32"})
