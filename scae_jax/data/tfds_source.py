"""Decoding a prepared TFDS image classification set, with NumPy and Pillow only."""

import dataclasses
import json
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

from scae_jax.data.dataset import Dataset, Split
from scae_jax.data.pictures import decode_picture
from scae_jax.data.prepared import READABLE_FORMAT, PreparedSet, SetReference

__all__ = ["Records", "catalogue_names", "decode_prepared", "prepare_commands", "read_records"]


def prepare_commands(reference: SetReference, data_dir: str) -> str:
  """The shell commands that prepare a data set so that it can be read without TensorFlow."""
  return (
    "  pip install -r requirements-prepare.txt\n"
    f'  python -c "import tensorflow_datasets as tfds; tfds.builder({reference.text!r}, '
    f"data_dir={data_dir!r}).download_and_prepare(file_format='{READABLE_FORMAT}')\""
  )


def catalogue_names() -> list[str]:
  """The data sets that TFDS can prepare; raises ImportError where TFDS is not installed."""
  return _tfds().list_builders(with_community_datasets=False)


@dataclasses.dataclass(frozen=True, eq=False)
class Records:
  """Decoded examples of a prepared set.

  Attributes:
    class_names: of the first label.
    splits: by name, `images` uint8 [n, h, w, c] and `labels` int32 [n, number of labels].
  """

  class_names: tuple[str, ...]
  splits: Mapping[str, tuple[np.ndarray, np.ndarray]]


def decode_prepared(prepared: PreparedSet) -> Dataset:
  """Decodes the splits 'train' and 'test' ('validation' where there is no 'test').

  The image and the label are the supervised pair that the data set declares, or else its only
  image and its only class label.

  Args:
    prepared: where the files are.

  Raises:
    ValueError: what `read_records` says; features that are not one image and one class label;
      labels outside the classes.
  """
  records = read_records(prepared)
  splits = {
    name: Split(images, np.ascontiguousarray(labels[:, 0]))
    for name, (images, labels) in records.splits.items()
  }
  return Dataset(prepared.reference.full_name, records.class_names, splits)


def read_records(prepared: PreparedSet, keys: tuple[str, ...] = ()) -> Records:
  """Decodes the splits 'train' and 'test' ('validation' where there is no 'test').

  Reads the files alone: no catalogue code, no TensorFlow.

  Args:
    prepared: where the files are.
    keys: names of the image and of the labels to read; () for the one pair that there is, see
      `decode_prepared`.

  Raises:
    ValueError: a file format that needs TensorFlow, TFDS not installed, splits or features missing,
      images not uint8, not grey or RGB, or of different sizes, records that cannot be read.
  """
  text = prepared.reference.text
  if READABLE_FORMAT not in prepared.file_formats:
    raise ValueError(
      f"data set {text!r}: expected records in the format {READABLE_FORMAT!r}, got "
      f"{', '.join(map(repr, prepared.file_formats))} in {prepared.folder}, which cannot be read "
      "without TensorFlow; remove that folder and prepare it again:\n"
      + prepare_commands(prepared.reference, str(prepared.root))
    )
  try:
    tfds = _tfds()
  except ImportError as error:
    raise ValueError(
      f"data set {text!r}: expected tensorflow_datasets to be installed to read {prepared.folder}, "
      f"got {error}; pip install -r requirements.txt, or copy a cache file of this data set from "
      "another machine into the cache folder"
    ) from error
  _refuse_code(prepared)
  try:
    builder: Any = tfds.builder_from_directory(str(prepared.folder))
    features = dict(builder.info.features)
    split_names = {name for name, split in builder.info.splits.items() if split.num_examples}
  # TFDS raises errors of many types for damaged metadata.
  except Exception as error:
    raise _unreadable(prepared, error) from error
  keys = keys or _choose_features(tfds, text, features, builder.info.supervised_keys)
  shape = _image_shape(text, features, keys)
  test = "test" if "test" in split_names else "validation"
  if not {"train", test} <= split_names:
    raise ValueError(
      f"data set {text!r}: expected examples in 'train' and in 'test' (or 'validation'), got "
      f"examples in {sorted(split_names)}; use a data set that has both"
    )
  # Pillow decodes here what TFDS would decode by whatever library is installed.
  encoded = {
    key: tfds.decode.SkipDecoding()
    for key, feature in features.items()
    if isinstance(feature, tfds.features.Image)
  }
  splits = {}
  for split_name, stored_name in (("train", "train"), ("test", test)):
    try:
      records = builder.as_data_source(split=stored_name, decoders=encoded)
      examples = ([record[key] for key in keys] for record in records)
      splits[split_name] = _decode_split(
        f"data set {text!r}, split {stored_name!r}", examples, (len(records), len(keys) - 1), shape
      )
    except _PictureError:
      raise
    # So does array_record for damaged or missing files.
    except Exception as error:
      raise _unreadable(prepared, error) from error
  return Records(tuple(features[keys[1]].names), splits)


def _refuse_code(prepared: PreparedSet) -> None:
  """Raises ValueError if TFDS would import a module that is not its own: it imports what the folder
  names as classes of features."""
  path = prepared.folder / "features.json"
  try:
    rest: list[Any] = [json.loads(path.read_text(encoding="utf-8"))]
  except (OSError, ValueError, RecursionError) as error:
    raise _unreadable(prepared, error) from error
  while rest:
    value = rest.pop()
    rest += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    names = [value.get("pythonClassName"), value.get("type")] if isinstance(value, dict) else []
    for name in names:
      if isinstance(name, str) and "." in name and not name.startswith("tensorflow_datasets."):
        raise ValueError(
          f"data set {prepared.reference.text!r}: expected only classes of tensorflow_datasets in"
          f" {path}, got {name!r}, which is code of elsewhere; save the images by class"
          " and load them as data.name='folder'"
        )


class _PictureError(ValueError):
  """An image that is not like the others; kept apart from files that cannot be read."""


def _tfds() -> types.ModuleType:
  # Imported on a cache miss only: it takes a second, and a machine with a cache file needs none.
  import tensorflow_datasets

  return tensorflow_datasets


def _unreadable(prepared: PreparedSet, error: Exception) -> ValueError:
  return ValueError(
    f"data set {prepared.reference.text!r}: expected whole TFDS files in {prepared.folder}, got "
    f"{type(error).__name__}: {error}; remove that folder and prepare it again:\n"
    + prepare_commands(prepared.reference, str(prepared.root))
  )


def _choose_features(
  tfds: types.ModuleType, text: str, features: dict[str, Any], supervised_keys: Any
) -> tuple[str, str]:
  """Names of the image and label features; raises ValueError when there is no one pair."""
  images = [key for key, value in features.items() if isinstance(value, tfds.features.Image)]
  labels = [key for key, value in features.items() if isinstance(value, tfds.features.ClassLabel)]
  if isinstance(supervised_keys, tuple) and len(supervised_keys) == 2:
    image_key, label_key = supervised_keys
    images = [key for key in images if key == image_key] or images
    labels = [key for key in labels if key == label_key] or labels
  if len(images) != 1 or len(labels) != 1:
    raise ValueError(
      f"data set {text!r}: expected an image classification set, with one image and one class "
      f"label, got {len(images)} images and {len(labels)} class labels among the features "
      f"{sorted(features)}; use another data set, or save its images by class and load them as "
      "data.name='folder'"
    )
  return images[0], labels[0]


def _image_shape(text: str, features: dict[str, Any], keys: tuple[str, ...]) -> tuple:
  """What is declared of the images; raises ValueError where they are missing or of no use."""
  if not set(keys) <= set(features):
    raise ValueError(
      f"data set {text!r}: expected the features {sorted(keys)}, got {sorted(features)}; prepare "
      "the data set of this name that TFDS has"
    )
  image = features[keys[0]]
  dtype, channels = np.dtype(image.np_dtype), image.shape[-1]
  if dtype != np.uint8 or channels not in (1, 3):
    raise ValueError(
      f"data set {text!r}: expected uint8 images of 1 channel (grey) or 3 (RGB), got {dtype} and "
      f"{channels} channels; convert the images and load them as data.name='folder'"
    )
  return image.shape


def _decode_split(
  where: str, examples: Any, num_labels: tuple[int, int], declared_shape: tuple
) -> tuple[np.ndarray, np.ndarray]:
  """Images and labels [number of examples, labels of each], for `Records`."""
  channels = declared_shape[-1]
  images = np.zeros((0, 0, 0, channels), np.uint8)
  labels = np.zeros(num_labels, np.int64)
  for index, (picture, *own_labels) in enumerate(examples):
    try:
      image = decode_picture(picture, channels)
    except ValueError as error:
      raise _PictureError(f"{where}, example {index}: {error}") from error
    if index == 0:
      images = np.zeros((len(labels), *image.shape), np.uint8)
    if image.shape != images.shape[1:]:
      raise _PictureError(
        f"{where}, example {index}: expected height, width and channels {images.shape[1:]}, as in "
        f"example 0, got {image.shape}; resize the images to one size and load them as "
        "data.name='folder'"
      )
    images[index] = image
    labels[index] = [int(label) for label in own_labels]
  return images, labels.astype(np.int32)
