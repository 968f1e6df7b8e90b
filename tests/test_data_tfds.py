"""TFDS sets: small ones that the tests write in TFDS's format."""

import io
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from array_record.python import array_record_module
from PIL import Image
from tensorflow_datasets.proto import tf_example_pb2

from scae_jax.data import cache
from scae_jax.data.dataset import Dataset, Split
from scae_jax.data.sources import load_dataset

FEATURE_CLASSES = "tensorflow_datasets.core.features."


def image_feature(shape=("6", "5", "3"), dtype="uint8"):
  return {
    "pythonClassName": FEATURE_CLASSES + "image_feature.Image",
    "image": {"shape": {"dimensions": list(shape)}, "dtype": dtype},
  }


def label_feature(num_classes=3):
  return {
    "pythonClassName": FEATURE_CLASSES + "class_label_feature.ClassLabel",
    "classLabel": {"numClasses": str(num_classes)},
  }


def text_feature():
  return {"pythonClassName": FEATURE_CLASSES + "text_feature.Text", "text": {}}


FEATURES = {"id": text_feature(), "image": image_feature(), "label": label_feature()}


def example(pixels: np.ndarray, label: int) -> dict[str, bytes | int]:
  buffer = io.BytesIO()
  Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(buffer, "PNG")
  return {"id": b"x", "image": buffer.getvalue(), "label": label}


def random_examples(num: int, seed: int) -> list[tuple[np.ndarray, int]]:
  generator = np.random.RandomState(seed)
  return [
    (generator.randint(0, 256, (6, 5, 3)).astype(np.uint8), int(generator.randint(3)))
    for _ in range(num)
  ]


TRAIN, TEST = random_examples(7, seed=0), random_examples(4, seed=1)


def write_tfds(
  root: pathlib.Path,
  name: str = "svhn_cropped",
  version: str = "3.0.0",
  *,
  config: str = "",
  splits=None,
  features=None,
  keys=("image", "label"),
  file_format: str = "array_record",
) -> pathlib.Path:
  """Writes a data set as `download_and_prepare(file_format="array_record")` does."""
  folder = root / name / config / version
  folder.mkdir(parents=True)
  if splits is None:
    splits = {"train": TRAIN, "test": TEST}
  described = []
  for split, examples in splits.items():
    path = folder / f"{name}-{split}.{file_format}-00000-of-00001"
    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
    num_bytes = 0
    for item in examples:
      record = tf_example_pb2.Example()
      for key, value in (item if isinstance(item, dict) else example(*item)).items():
        feature = record.features.feature[key]
        if isinstance(value, int):
          feature.int64_list.value.append(value)
        else:
          feature.bytes_list.value.append(value)
      content = record.SerializeToString()
      num_bytes += len(content)
      writer.write(content)
    writer.close()
    described.append(
      {
        "name": split,
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "numBytes": str(num_bytes),
        "shardLengths": [str(len(examples))],
      }
    )
  info = {
    "name": name,
    "version": version,
    "fileFormat": file_format,
    "splits": described,
    "supervisedKeys": {"tuple": {"items": [{"featureKey": key} for key in keys]}},
  }
  if config:
    info["configName"] = config
  (folder / "dataset_info.json").write_text(json.dumps(info))
  described_features = {
    "pythonClassName": FEATURE_CLASSES + "features_dict.FeaturesDict",
    "featuresDict": {"features": FEATURES if features is None else features},
  }
  (folder / "features.json").write_text(json.dumps(described_features))
  return folder


@pytest.fixture
def root(tmp_path) -> pathlib.Path:
  return tmp_path / "tfds"


@pytest.fixture
def load(tmp_path, root):
  return lambda name="svhn_cropped": load_dataset(name, str(root), str(tmp_path / "cache"))


def assert_holds(split, examples):
  np.testing.assert_array_equal(split.images, np.stack([pixels for pixels, _ in examples]))
  np.testing.assert_array_equal(split.labels, [label for _, label in examples])


def test_a_prepared_set_is_read_and_cached(root, load, monkeypatch):
  write_tfds(root)
  dataset = load()
  assert (dataset.name, dataset.class_names) == ("svhn_cropped", ("0", "1", "2"))
  assert sorted(dataset.splits) == ["test", "train"]
  assert_holds(dataset.splits["train"], TRAIN)
  assert_holds(dataset.splits["test"], TEST)
  monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)  # Importing it fails now.
  again = load()
  assert_holds(again.splits["train"], TRAIN)
  assert again.class_names == dataset.class_names


def test_a_cache_file_alone_is_enough(tmp_path, root, load, monkeypatch):
  """As on a machine without TFDS to which that one file was copied."""
  write_tfds(root, version="2.0.0", splits={"train": TEST, "test": TEST})
  load()
  write_tfds(root, version="10.0.0")
  load()
  monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "nothing"))
  folder = str(tmp_path / "cache")
  assert_holds(load_dataset("svhn_cropped", cache_dir=folder).splits["train"], TRAIN)
  assert_holds(load_dataset("svhn_cropped:2.0.0", cache_dir=folder).splits["train"], TEST)
  with pytest.raises(ValueError, match="not prepared"):
    load_dataset("svhn_cropped:3.0.0", cache_dir=folder)


def test_a_prepared_version_wins_over_a_cached_one(tmp_path, root, load):
  write_tfds(root, version="2.0.0", splits={"train": TEST, "test": TEST})
  newer = write_tfds(root, version="10.0.0")
  assert_holds(load("svhn_cropped:2.0.0").splits["train"], TEST)
  assert_holds(load().splits["train"], TRAIN)
  newer.rename(tmp_path / "away")
  assert_holds(load().splits["train"], TEST)


def test_a_set_prepared_anew_is_decoded_anew(tmp_path, root, load):
  folder = write_tfds(root)
  load()
  folder.rename(tmp_path / "away")
  write_tfds(root, splits={"train": TEST, "test": TRAIN})
  assert_holds(load().splits["train"], TEST)


def test_a_truncated_cache_is_rebuilt(tmp_path, root, load, caplog):
  write_tfds(root)
  load()
  path = tmp_path / "cache" / "svhn_cropped-3.0.0.npz"
  path.write_bytes(path.read_bytes()[:-50])
  assert_holds(load().splits["train"], TRAIN)
  assert "is damaged" in caplog.text
  assert cache.read_cached(path, "svhn_cropped") is not None


def own_source(folder: str = "none given") -> Dataset:
  """A data set of one's own, by its dotted path."""
  split = Split(np.zeros((2, 4, 4, 1), np.uint8), np.array([0, 1], np.int32))
  return Dataset("mine", (folder, "other"), {"train": split, "test": split})


def no_source() -> str:
  return "a picture"


def test_a_function_is_a_source_by_its_dotted_path():
  path = f"{__name__}.own_source"
  assert load_dataset(path).class_names == ("none given", "other")
  assert load_dataset(path, "/data").class_names == ("/data", "other")
  for name, message in (
    ("no_package.shapes", "ModuleNotFoundError: No module named 'no_package'"),
    (f"{__name__}.absent", "AttributeError: .*'absent'"),
    (f"{__name__}.FEATURES", "TypeError: 'dict' object is not callable"),
    (f"{__name__}.random_examples", r"TypeError: .*missing 2 required .*'num'"),
    (f"{__name__}.no_source", "got one of <class 'str'>"),
  ):
    with pytest.raises(ValueError, match=f"expected a function that returns a Dataset.*{message}"):
      load_dataset(name)


def test_data_dir_defaults_to_the_environment(tmp_path, root, monkeypatch):
  write_tfds(root)
  monkeypatch.setenv("TFDS_DATA_DIR", str(root))
  dataset = load_dataset("svhn_cropped", cache_dir=str(tmp_path / "cache"))
  assert_holds(dataset.splits["test"], TEST)


def test_the_validation_split_stands_in_for_test(root, load):
  write_tfds(root, splits={"train": TRAIN, "validation": TEST})
  assert_holds(load().splits["test"], TEST)


def test_a_set_that_tfds_has_never_heard_of(root, load):
  write_tfds(root, name="my_own_set")
  assert_holds(load("my_own_set").splits["train"], TRAIN)


def test_configs(root, load):
  write_tfds(root, config="fog", splits={"train": TEST, "test": TEST})
  assert_holds(load().splits["train"], TEST)  # The only one.
  write_tfds(root, config="rain")
  assert_holds(load("svhn_cropped/rain").splits["train"], TRAIN)
  with pytest.raises(ValueError, match=r"has several: \['fog', 'rain'\]"):
    load()
  metadata = root / "svhn_cropped" / ".config" / "metadata.json"
  metadata.parent.mkdir()
  metadata.write_text(json.dumps({"defaultConfigName": "rain"}))
  assert_holds(load().splits["train"], TRAIN)


def test_grey_images_and_other_feature_names(root, load):
  """smallNORB, for one, has two images and several labels; the supervised pair decides."""
  pixels = np.arange(30, dtype=np.uint8).reshape(6, 5, 1)
  item = example(pixels, 2)
  item = {"left": item["image"], "right": item["image"], "kind": 2, "light": 1}
  grey = image_feature(("6", "5", "1"))
  write_tfds(
    root,
    splits={"train": [item], "test": [item]},
    features={"left": grey, "right": grey, "kind": label_feature(), "light": label_feature()},
    keys=("left", "kind"),
  )
  dataset = load()
  assert_holds(dataset.splits["train"], [(pixels, 2)])
  assert dataset.channels == 1


def test_tensorflow_is_never_imported(tmp_path, root):
  write_tfds(root)
  code = (
    "import sys; from scae_jax.data.sources import load_dataset\n"
    "load_dataset('svhn_cropped', sys.argv[1], sys.argv[2])\n"
    "print('tensorflow_datasets' in sys.modules, 'tensorflow' in sys.modules)"
  )
  command = [sys.executable, "-c", code, str(root), str(tmp_path / "cache")]
  for expected in (["True", "False"], ["False", "False"]):
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.split() == expected


def test_a_set_that_is_not_prepared_gets_the_commands(root, load):
  with pytest.raises(ValueError, match="'svhn_cropped' is not prepared") as raised:
    load()
  message = str(raised.value)
  assert "pip install -r requirements-prepare.txt\n" in message
  assert (
    'python -c "import tensorflow_datasets as tfds; '
    f"tfds.builder('svhn_cropped', data_dir='{root}')"
    ".download_and_prepare(file_format='array_record')\"" in message
  )


def test_unknown_names_list_the_valid_ones(load):
  with pytest.raises(ValueError, match="unknown data set 'fashion_minst'") as raised:
    load("fashion_minst")
  message = str(raised.value)
  assert "did you mean 'fashion_mnist'" in message
  for valid in ("'digits' (embedded)", "'folder'", "any TFDS image classification set", "'mnist'"):
    assert valid in message
  with pytest.raises(ValueError, match=r"did you mean 'digits'"):
    load("digit")
  for name in ("", "../mnist", "mnist 2", "mnist:latest"):
    with pytest.raises(ValueError, match=r"expected the name of a data set.*valid names: 'digits'"):
      load(name)


def test_without_tfds_the_error_says_what_to_install(root, load, monkeypatch):
  monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
  with pytest.raises(ValueError, match=r"'svhn_cropped' is not prepared.*If it is a TFDS set"):
    load()
  write_tfds(root)
  with pytest.raises(ValueError, match=r"pip install -r requirements\.txt, or copy a cache file"):
    load()


def test_tfrecord_gets_the_commands(root, load):
  folder = write_tfds(root, file_format="tfrecord")
  with pytest.raises(ValueError, match=r"'tfrecord' in .* without TensorFlow") as raised:
    load()
  message = str(raised.value)
  assert str(folder) in message
  assert "remove that folder" in message
  assert ".download_and_prepare(file_format='array_record')" in message


def test_remote_folders_are_refused():
  with pytest.raises(ValueError, match=r"expected a local folder .*gs://bucket"):
    load_dataset("mnist", "gs://bucket")


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"splits": {"train": TRAIN}}, r"or 'validation'\), got examples in \['train'\]"),
    ({"splits": {"test": TRAIN}}, r"expected examples in 'train' and in 'test'.* got .*\['test'\]"),
    (
      {"features": {"id": text_feature(), "label": label_feature()}, "keys": ("id", "label")},
      r"got 0 images and 1 class labels among the features \['id', 'label'\]",
    ),
    (
      {"features": {**FEATURES, "label": text_feature()}},
      "expected an image classification set.*got 1 images and 0 class labels",
    ),
    (
      {"features": {**FEATURES, "image": image_feature(("6", "5", "4"))}},
      r"expected uint8 images of 1 channel \(grey\) or 3 \(RGB\), got uint8 and 4 channels",
    ),
    (
      {"features": {**FEATURES, "image": image_feature(("6", "5", "1"), "uint16")}},
      "got uint16 and 1 channels",
    ),
    (
      {"features": {**FEATURES, "label": label_feature(2)}},
      r"expected labels in \[0, 2\), got 2 for example",
    ),
    (
      {"splits": {"train": TRAIN, "test": [(TEST[0][0], -1)]}},
      "split 'test': expected labels .* got -1 for example 0",
    ),
    (
      {
        "splits": {"train": [*TRAIN, (np.zeros((6, 9, 3), np.uint8), 0)], "test": TEST},
        "features": {**FEATURES, "image": image_feature(("-1", "-1", "3"))},
      },
      r"'train', example 7: .* as in example 0, got \(6, 9, 3\); resize .*data\.name='folder'",
    ),
    (
      {"splits": {"train": [{"id": b"x", "image": b"junk", "label": 0}], "test": TEST}},
      "split 'train', example 0: expected a whole image file",
    ),
    ({"splits": {"train": [], "test": TEST}}, r"got examples in \['test'\]"),
  ],
)
def test_unusable_sets_are_refused(root, load, tmp_path, changes, message):
  write_tfds(root, **changes)
  with pytest.raises(ValueError, match=f"(?s)'svhn_cropped'.*{message}") as raised:
    load()
  assert "prepare it again" not in str(raised.value)  # The files are whole; that would not help.
  assert not (tmp_path / "cache").exists()


def test_a_set_that_names_code_of_elsewhere_is_refused(root, load):
  """TFDS imports what the folder names, and the folder of a run that is shared may be meant."""
  path = write_tfds(root) / "features.json"
  name = "tensorflow_datasets.core.features.class_label_feature.ClassLabel"
  path.write_text(path.read_text().replace(name, "shared.payload.ClassLabel"))
  with pytest.raises(ValueError, match=r"features\.json, got 'shared.payload.ClassLabel'"):
    load()


def test_damaged_files_are_refused(root, load):
  folder = write_tfds(root)
  records = folder / "svhn_cropped-test.array_record-00000-of-00001"
  whole = records.read_bytes()
  records.write_bytes(whole[: len(whole) // 2])
  with pytest.raises(ValueError, match=r"expected whole TFDS files in .*prepare it again"):
    load()
  records.unlink()
  with pytest.raises(ValueError, match=r"expected whole TFDS files in .*prepare it again"):
    load()
  records.write_bytes(whole)
  features = folder / "features.json"
  described = features.read_text()
  features.write_text("{")
  with pytest.raises(ValueError, match=r"expected whole TFDS files in .*prepare it again"):
    load()
  features.write_text(described)
  for content in ("{", "[]"):
    (folder / "dataset_info.json").write_text(content)
    with pytest.raises(ValueError, match=r"expected whole TFDS files in .*prepare it again"):
      load()
