"""Finding data sets that TFDS has prepared, by their files alone.

The layout is TFDS's: `<data_dir>/<name>[/<config>]/<version>/dataset_info.json`. Nothing here
imports TFDS, so that a start from the cache does not either.
"""

import dataclasses
import json
import os
import pathlib
import re

__all__ = ["PreparedSet", "SetReference", "find_prepared", "parse_reference", "tfds_folder"]

READABLE_FORMAT = "array_record"
_REFERENCE = re.compile(r"(?P<name>\w+)(/(?P<config>[\w.\-]+?))?(:(?P<version>\d+\.\d+\.\d+))?")
_VERSION = re.compile(r"\d+\.\d+\.\d+")


@dataclasses.dataclass(frozen=True)
class SetReference:
  """A TFDS name, as in `mnist`, `mnist:3.0.1` or `cifar10_corrupted/fog_1`.

  Attributes:
    text: as it was given.
    name: of the builder.
    config: of the builder, or "" for its default.
    version: major.minor.patch, or "" for the newest.
  """

  text: str
  name: str
  config: str
  version: str

  @property
  def full_name(self) -> str:
    """Name and config, without the version."""
    return f"{self.name}/{self.config}" if self.config else self.name

  @property
  def stem(self) -> str:
    """The start of its cache files' names."""
    return f"{self.name}-{self.config}" if self.config else self.name


@dataclasses.dataclass(frozen=True)
class PreparedSet:
  """A prepared data set on disk.

  Attributes:
    reference: what was looked for.
    root: the folder of prepared sets, as TFDS's `data_dir`.
    folder: holds `dataset_info.json`, `features.json` and the records.
    file_formats: of the records, such as `array_record` or `tfrecord`.
    fingerprint: changes with the number of examples or bytes of a split.
  """

  reference: SetReference
  root: pathlib.Path
  folder: pathlib.Path
  file_formats: tuple[str, ...]
  fingerprint: str

  @property
  def version(self) -> str:
    return self.folder.name


def parse_reference(text: str) -> SetReference | None:
  """Splits `name[/config][:major.minor.patch]`; None when the text is of another form."""
  match = _REFERENCE.fullmatch(text)
  if match is None:
    return None
  return SetReference(text, match["name"], match["config"] or "", match["version"] or "")


def tfds_folder(data_dir: str) -> pathlib.Path:
  """The folder given, else `$TFDS_DATA_DIR`, else TFDS's default `~/tensorflow_datasets`.

  Raises:
    ValueError: a remote folder such as `gs://...`.
  """
  folder = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
  if "://" in folder:
    raise ValueError(
      f"expected a local folder of prepared data sets, got {folder!r}; copy it to a local disk and "
      "set config.data.dir or TFDS_DATA_DIR to that"
    )
  return pathlib.Path(folder).expanduser()


def find_prepared(reference: SetReference, root: pathlib.Path) -> PreparedSet | None:
  """Looks for a prepared data set, the newest version if the reference names none.

  Without a config in the reference it takes the one that TFDS recorded as the default.

  Returns:
    The data set, or None when it is not there.

  Raises:
    ValueError: several configs and no default, or a `dataset_info.json` that cannot be read.
  """
  folder = root / reference.name
  if reference.config:
    folder = folder / reference.config
  elif folder.is_dir() and not _versions(folder):
    config = _default_config(reference, folder)
    folder = folder / config
  versions = [v for v in _versions(folder) if reference.version in ("", v)]
  if not versions:
    return None
  return _describe(reference, root, folder / max(versions, key=_as_numbers))


def _versions(folder: pathlib.Path) -> list[str]:
  if not folder.is_dir():
    return []
  return [
    path.name
    for path in folder.iterdir()
    if _VERSION.fullmatch(path.name) and (path / "dataset_info.json").is_file()
  ]


def _as_numbers(version: str) -> tuple[int, ...]:
  return tuple(map(int, version.split(".")))


def _default_config(reference: SetReference, folder: pathlib.Path) -> str:
  """The config to read when none is named; "" when none is prepared."""
  configs = sorted(path.name for path in folder.iterdir() if path.is_dir() and _versions(path))
  recorded = folder / ".config" / "metadata.json"
  if recorded.is_file():
    default = _read_json(recorded).get("defaultConfigName", "")
    if default in configs:
      return default
  if len(configs) > 1:
    raise ValueError(
      f"data set {reference.text!r}: expected the config to be named, because {folder} has "
      f"several: {configs}; write data.name='{reference.name}/{configs[0]}', for example"
    )
  return configs[0] if configs else ""


def _describe(reference: SetReference, root: pathlib.Path, folder: pathlib.Path) -> PreparedSet:
  info = _read_json(folder / "dataset_info.json")
  # Before 'fileFormat' was recorded, every prepared set was in TFRecord.
  formats = (info.get("fileFormat", "tfrecord"), *info.get("alternativeFileFormats", ()))
  sizes = [
    [split.get("name"), split.get("numBytes"), split.get("shardLengths")]
    for split in info.get("splits", ())
  ]
  return PreparedSet(reference, root, folder, formats, json.dumps(sizes))


def _read_json(path: pathlib.Path) -> dict:
  try:
    content = json.loads(path.read_text())
  except (OSError, ValueError) as error:
    raise ValueError(
      f"expected TFDS's description in {path}, got a file that cannot be read ({error}); remove "
      "its folder and prepare the data set again"
    ) from error
  if not isinstance(content, dict):
    raise ValueError(
      f"expected TFDS's description in {path}, got a {type(content).__name__}; remove its folder "
      "and prepare the data set again"
    )
  return content
