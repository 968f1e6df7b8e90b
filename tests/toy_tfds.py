"""Small data sets in TFDS's format."""

import io
import json
import pathlib

import numpy as np
from array_record.python import array_record_module
from PIL import Image
from tensorflow_datasets.proto import tf_example_pb2

from tests.toy_data import random_images

_CLASSES = "tensorflow_datasets.core.features."


def image_feature(shape=("6", "5", "3"), dtype="uint8"):
  return {
    "pythonClassName": _CLASSES + "image_feature.Image",
    "image": {"shape": {"dimensions": list(shape)}, "dtype": dtype},
  }


def label_feature(num_classes=3):
  return {
    "pythonClassName": _CLASSES + "class_label_feature.ClassLabel",
    "classLabel": {"numClasses": str(num_classes)},
  }


def text_feature():
  return {"pythonClassName": _CLASSES + "text_feature.Text", "text": {}}


FEATURES = {"id": text_feature(), "image": image_feature(), "label": label_feature()}
# Pairs of an image and its label.
TRAIN = [*zip(random_images(7, 6, 5), (0, 1, 2, 1, 0, 2, 2), strict=True)]
TEST = [*zip(random_images(4, 6, 5, seed=1), (2, 0, 1, 1), strict=True)]


def png(pixels: np.ndarray) -> bytes:
  buffer = io.BytesIO()
  Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(buffer, "PNG")
  return buffer.getvalue()


def _record(item) -> bytes:
  record = tf_example_pb2.Example()
  if not isinstance(item, dict):
    item = {"id": b"x", "image": png(item[0]), "label": item[1]}
  for key, value in item.items():
    feature = record.features.feature[key]
    (feature.bytes_list if isinstance(value, bytes) else feature.int64_list).value.append(value)
  return record.SerializeToString()


def write_tfds(
  root: pathlib.Path,
  name="svhn_cropped",
  version="3.0.0",
  *,
  config="",
  splits=None,
  features=None,
  keys=("image", "label"),
  file_format="array_record",
) -> pathlib.Path:
  """Writes a data set as `download_and_prepare(file_format="array_record")` does."""
  folder = root / name / config / version
  folder.mkdir(parents=True)
  described = []
  for split, examples in ({"train": TRAIN, "test": TEST} if splits is None else splits).items():
    records = [_record(item) for item in examples]
    path = folder / f"{name}-{split}.{file_format}-00000-of-00001"
    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
      writer.write(record)
    writer.close()
    described.append(
      {
        "name": split,
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "numBytes": str(sum(map(len, records))),
        "shardLengths": [str(len(records))],
      }
    )
  info = {
    "name": name,
    "version": version,
    "fileFormat": file_format,
    "splits": described,
    "supervisedKeys": {"tuple": {"items": [{"featureKey": key} for key in keys]}},
    **({"configName": config} if config else {}),
  }
  (folder / "dataset_info.json").write_text(json.dumps(info))
  described_features = {
    "pythonClassName": _CLASSES + "features_dict.FeaturesDict",
    "featuresDict": {"features": FEATURES if features is None else features},
  }
  (folder / "features.json").write_text(json.dumps(described_features))
  return folder
