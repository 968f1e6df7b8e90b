"""Image sets of TFDS prepared as array_record, which can be read without TensorFlow.

A prepared set is in `<data_dir>/<builder>[/<config>]/<version>`. It is found by its files alone, so
that reading from the cache does not import TFDS, which takes a second.
"""

import contextlib
import dataclasses
import importlib
import json
import os
import pathlib
import re
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from scae_jax.data.dataset import Dataset, Preview, Split
from scae_jax.data.image_files import AS_IT_IS, Form, decode_pictures

READABLE_FORMAT = "array_record"
_VERSION = re.compile(r"\d+\.\d+\.\d+")


@dataclasses.dataclass(frozen=True)
class TfdsSet:
  """A name such as `mnist:3.0.1` or `mnist_corrupted/fog`, and the folder of prepared sets."""

  builder: str
  config: str  # "" if there is none
  version: str  # major.minor.patch, "" for the newest
  root: pathlib.Path  # of prepared sets, TFDS's `data_dir`

  def __str__(self) -> str:
    return f"{self.unversioned}:{self.version}" if self.version else self.unversioned

  @property
  def unversioned(self) -> str:
    return f"{self.builder}/{self.config}" if self.config else self.builder

  @property
  def prepare_commands(self) -> str:
    """The shell commands that prepare the set so that it can be read without TensorFlow."""
    return (
      "  pip install -r requirements-prepare.txt\n"
      f'  python -c "import tensorflow_datasets as tfds; tfds.builder({str(self)!r}, data_dir='
      f"{str(self.root)!r}).download_and_prepare(file_format='{READABLE_FORMAT}')\""
    )

  def prepared(self) -> pathlib.Path | None:
    """The folder of the newest prepared version, of the default config if none is named."""
    folder = self.root / self.unversioned
    if not self.config and not _versions(folder):
      folder /= self._default_config(folder)
    versions = [version for version in _versions(folder) if self.version in ("", version)]
    newest = max(versions, key=lambda version: [*map(int, version.split("."))], default=None)
    return folder / newest if newest else None

  def _default_config(self, folder: pathlib.Path) -> str:
    """The config to read if none is named; "" if none is prepared, ValueError if ambiguous."""
    configs = sorted(path.name for path in folder.glob("*") if _versions(path))
    try:
      recorded = json.loads((folder / ".config" / "metadata.json").read_text())["defaultConfigName"]
    except (OSError, ValueError, KeyError, TypeError):  # it is missing or damaged
      recorded = ""
    if recorded in configs:
      return recorded
    if len(configs) > 1:
      raise ValueError(
        f"data set {str(self)!r}: expected the config to be named, because {folder} has "
        f"several: {configs}; write data.name='{self.builder}/{configs[0]}', for example"
      )
    return "".join(configs)


def _versions(folder: pathlib.Path) -> list[str]:
  versions = (path.parent.name for path in folder.glob("*/dataset_info.json"))
  return [version for version in versions if _VERSION.fullmatch(version)]


def tfds_folder(data_dir: str) -> pathlib.Path:
  """`data_dir`, else `$TFDS_DATA_DIR`, else TFDS's default; ValueError if it is remote."""
  folder = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
  if "://" in folder:
    raise ValueError(
      f"expected a local folder of prepared data sets, got {folder!r}; copy it to a local disk and "
      "set config.data.dir or TFDS_DATA_DIR to that"
    )
  return pathlib.Path(folder).expanduser()


def decode_prepared(source: TfdsSet, folder: pathlib.Path, form: Form) -> Dataset:
  """Decodes a prepared set of images with one label each; raises as `read_records` does."""
  class_names, records = read_records(source, folder, form=form)
  splits = {
    name: Split(images, np.ascontiguousarray(labels[:, 0]))
    for name, (images, labels) in records.items()
  }
  whole = None
  if form.middle:
    declared = preview_prepared(source, folder).image_shape
    whole = None if 0 in declared else form.resized_shape(declared)
  return Dataset(source.unversioned, class_names, splits, cropped_from=whole)


def preview_prepared(source: TfdsSet, folder: pathlib.Path, keys: tuple[str, ...] = ()) -> Preview:
  """The facts in the description of a prepared set; raises as `read_records` does."""
  prepared = _open_prepared(source, folder, keys)
  image, label = (prepared.features[key] for key in prepared.keys[:2])
  height, width, channels = (size or 0 for size in image.shape)
  names = tuple(label.names)
  return Preview(source.unversioned, names, ("train", "test"), channels, (height, width))


def read_records(
  source: TfdsSet, folder: pathlib.Path, keys: tuple[str, ...] = (), form: Form = AS_IT_IS
) -> tuple[tuple[str, ...], dict[str, tuple[np.ndarray, np.ndarray]]]:
  """Decodes the splits 'train' and 'test' of one version ('validation' if there is no 'test').

  `keys` are the names of the image and of the labels to read; () stands for the supervised pair
  that the set declares, or else its only image and its only class label. Returns the class names of
  the first label and, by split, images uint8 [n, h, w, c], brought to a form, and labels int32
  [n, number of labels]. Raises ValueError if TFDS is not installed, or if files or features cannot
  be read or used.
  """
  tfds, builder, features, keys, test = _open_prepared(source, folder, keys)
  where = f"data set {str(source)!r}"
  # Pillow decodes the images: TFDS would use any library that happens to be installed.
  images = [key for key, kind in features.items() if isinstance(kind, tfds.features.Image)]
  decoders = {key: tfds.decode.SkipDecoding() for key in images}
  # By default the number of channels is the one that the set declares.
  form = dataclasses.replace(form, channels=form.channels or features[keys[0]].shape[-1])
  splits = {}
  for name, stored in (("train", "train"), ("test", test)):
    with _damage_as_value_error(source, folder):
      records = builder.as_data_source(split=stored, decoders=decoders)
      # All in one call: single reads would each wake other threads and wait for them.
      rows = [[row[key] for key in keys] for row in records.__getitems__(range(len(records)))]
      pictures = [bytes(row[0]) for row in rows]  # in a damaged file some are None
      labels = np.array([row[1:] for row in rows], np.int32)
    sources = [(f"{where}, split {stored!r}, example {i}", data) for i, data in enumerate(pictures)]
    splits[name] = decode_pictures(sources, form), labels
  return tuple(features[keys[1]].names), splits


class _Prepared(NamedTuple):
  """A prepared set that can be read."""

  tfds: types.ModuleType
  builder: Any
  features: dict[str, Any]  # by key
  keys: tuple[str, ...]  # of the image and the labels
  test: str  # the stored split that is used as "test"


def _open_prepared(source: TfdsSet, folder: pathlib.Path, keys: tuple[str, ...]) -> _Prepared:
  """Reads the description of a prepared set, and checks it; see `read_records`."""
  where = f"data set {str(source)!r}"
  try:
    tfds = import_tfds()
  except ImportError as error:
    raise ValueError(
      f"{where}: expected tensorflow_datasets to be installed to read {folder}, got "
      f"{error}; pip install -r requirements.txt (on Windows inside WSL), or copy a cache file of "
      "this data set from another machine into the cache folder"
    ) from error

  with _damage_as_value_error(source, folder):
    description = json.loads((folder / "features.json").read_text(encoding="utf-8"))
  _refuse_code(where, description)
  with _damage_as_value_error(source, folder):
    builder: Any = tfds.builder_from_directory(str(folder))
    info = builder.info
    features = dict(info.features)
    formats = [kind.value for kind in (info.file_format, *info.alternative_file_formats)]
    filled = {name for name, split in info.splits.items() if split.num_examples}
  if READABLE_FORMAT not in formats:
    raise ValueError(
      f"{where}: expected records in the format {READABLE_FORMAT!r}, got {', '.join(formats)}, "
      f"which cannot be read without TensorFlow; {_prepare_again(source, folder)}"
    )
  keys = keys or _supervised_pair(tfds, where, features, info.supervised_keys)
  _check_features(where, features, keys)
  test = "test" if "test" in filled else "validation"
  if not {"train", test} <= filled:
    raise ValueError(
      f"{where}: expected examples in 'train' and in 'test' (or 'validation'), got "
      f"examples in {sorted(filled)}; use a data set that has both"
    )
  return _Prepared(tfds, builder, features, keys, test)


@contextlib.contextmanager
def _damage_as_value_error(source: TfdsSet, folder: pathlib.Path) -> Iterator[None]:
  """Turns errors of TFDS and array_record, which are of many types, into ValueError."""
  try:
    yield
  except Exception as error:
    raise ValueError(
      f"data set {str(source)!r}: expected whole TFDS files, got {type(error).__name__}: {error}; "
      f"{_prepare_again(source, folder)}"
    ) from error


def _prepare_again(source: TfdsSet, folder: pathlib.Path) -> str:
  return f"remove {folder} and prepare it again:\n{source.prepare_commands}"


def _supervised_pair(
  tfds: types.ModuleType, where: str, features: dict[str, Any], declared: Any
) -> tuple[str, str]:
  """Names of the image and the label feature; ValueError if they are ambiguous or missing."""
  candidates = []
  for i, kind in enumerate((tfds.features.Image, tfds.features.ClassLabel)):
    keys_of_kind = [key for key, value in features.items() if isinstance(value, kind)]
    has_pair = isinstance(declared, tuple) and len(declared) == 2
    candidates.append([declared[i]] if has_pair and declared[i] in keys_of_kind else keys_of_kind)
  images, labels = candidates
  if len(images) != 1 or len(labels) != 1:
    raise ValueError(
      f"{where}: expected one image and one class label, got {len(images)} and {len(labels)} among "
      f"the features {sorted(features)}; use another data set, or save its images by class and "
      "load them as data.name='folder'"
    )
  return images[0], labels[0]


def _check_features(where: str, features: dict[str, Any], keys: tuple[str, ...]) -> None:
  if not set(keys) <= set(features):
    raise ValueError(
      f"{where}: expected the features {sorted(keys)}, got {sorted(features)}; prepare "
      "the data set of this name that TFDS has"
    )
  image = features[keys[0]]
  dtype, channels = np.dtype(image.np_dtype), image.shape[-1]
  if dtype != np.uint8 or channels not in (1, 3):
    raise ValueError(
      f"{where}: expected uint8 images of 1 channel (grey) or 3 (RGB), got {dtype} of {channels}; "
      "convert the images and load them as data.name='folder'"
    )


def _refuse_code(where: str, description: Any) -> None:
  """Raises ValueError if TFDS would import a module that is not its own.

  TFDS imports the classes that features.json names, and the folder may come from somebody else.
  """
  remaining = [description]
  while remaining:
    value = remaining.pop()
    if isinstance(value, dict):
      remaining += value.values()
    elif isinstance(value, list):
      remaining += value
    names = [value.get("pythonClassName"), value.get("type")] if isinstance(value, dict) else []
    for name in names:
      if isinstance(name, str) and "." in name and not name.startswith("tensorflow_datasets."):
        raise ValueError(
          f"{where}: expected only classes of tensorflow_datasets in features.json, got {name!r}, "
          "which is code from outside TFDS; save the images by class and load them as "
          "data.name='folder'"
        )


def import_tfds() -> types.ModuleType:
  """Imports TFDS; ImportError if it or array_record, its reader of records, is not installed."""
  # Imported only if there is no cache file, which needs neither package.
  importlib.import_module("array_record")  # here, because TFDS would import it only while it reads
  import tensorflow_datasets

  return tensorflow_datasets
