"""Loading a data set by its name: every source is a function that returns a `Dataset`."""

import dataclasses
import difflib
import functools
import importlib
import itertools
import os
import pathlib
import re
import sys
from typing import NamedTuple

from absl import logging

from scae_jax.data.cache import cache_folder, load_or_build, newest_cached
from scae_jax.data.constellations import NAME, Scenes
from scae_jax.data.dataset import Dataset, Preview, hold_out_validation, in_common_form, normalized
from scae_jax.data.digits import load_digits
from scae_jax.data.feed import Feed, image_feed
from scae_jax.data.folder import list_folder, load_listing
from scae_jax.data.image_files import AS_IT_IS, Form, decode_pictures
from scae_jax.data.options import DataOptions
from scae_jax.data.smallnorb import DIVISIONS, SIDE, decode_smallnorb
from scae_jax.data.smallnorb import KEYS as SMALLNORB_KEYS
from scae_jax.data.tfds_source import (
  TfdsSet,
  decode_prepared,
  import_tfds,
  preview_prepared,
  tfds_folder,
)
from scae_jax.waiting import waiting

_VALID_NAMES = (
  "valid names: 'digits' (embedded), 'folder' (your images by class), and any TFDS image "
  "classification set by its TFDS name, such as 'mnist', 'fashion_mnist', 'cifar10' or "
  "'svhn_cropped'; 'smallnorb:novel_azimuth' and 'smallnorb:novel_elevation'; a function of your "
  "own that returns a Dataset, by its dotted path; to score on only, "
  "with evaluate.py --dataset: 'affnist', 'affine_<name>', 'rotated_<name>:35' and "
  "'translated_<name>:-6..6'"
)
_TFDS_NAME = re.compile(r"(\w+)(?:/([\w.\-]+?))?(?::(\d+\.\d+\.\d+))?(?::(.*))?")


def load_data(
  options: DataOptions | Scenes, dataset: Dataset | None = None
) -> tuple[Dataset | Scenes, Feed]:
  """The data set of a config's data section, and its feed to training; `dataset` is one in memory.

  Images are brought to the config's form, and have a validation split and pixel statistics where it
  asks for them. Raises ValueError if the data set cannot be loaded, its name is not that of the
  config, it has one class only, or its images are larger than the canvas and are not cropped.
  """
  if isinstance(options, Scenes):
    if dataset is not None:
      raise ValueError(
        f"config.data.name is {NAME!r}, whose scenes are generated, and a data set is given in"
        f" memory; expected the name of that data set, {dataset.name!r}."
      )
    return options, options.feed()
  name = options.name
  if dataset is None:
    try:
      dataset = load_dataset(name, options.dir, options.cache_dir, options.form)
    except ValueError as error:
      raise ValueError(f"config.data.name is {name!r}: {error}") from error
  elif dataset.name != name and not is_dotted(name):
    raise ValueError(
      f"config.data.name is {name!r}, and the data set given in memory is named {dataset.name!r};"
      " expected the same name. Set the key to it."
    )
  else:
    dataset = in_common_form(dataset, options.form)
  dataset = hold_out_validation(dataset, options.num_validation)
  if dataset.num_classes < 2:
    raise ValueError(
      f"config.data.name is {name!r}, whose images are all of one class; expected at least two,"
      " which a model can tell apart."
    )
  if dataset.image_side > options.canvas and not options.crop:
    raise ValueError(
      f"config.data.canvas must hold the images of {dataset.name!r}, {dataset.image_side} pixels"
      f" wide or high; it is {options.canvas}. Set it to {dataset.image_side} or more, or"
      f" config.data.resize to {options.canvas}, or config.data.crop to the side of the middle that"
      " is used."
    )
  return image_feed(normalized(dataset) if options.normalize else dataset, options)


def load_dataset(
  name: str, data_dir: str = "", cache_dir: str = "", form: Form = AS_IT_IS
) -> Dataset:
  """Loads a data set into host memory, its images brought to a form.

  The name is `digits`, `folder`, the dotted path of a function that returns a `Dataset`, or a TFDS
  name: `mnist`, `mnist:3.0.1`, `mnist_corrupted/fog`, `smallnorb:novel_azimuth`. `data_dir` is,
  for `folder`, the folder of images; for a function, its only argument, left out if ""; for TFDS
  sets, the folder of prepared sets, "" for `$TFDS_DATA_DIR` or else `~/tensorflow_datasets`.

  Images of folders and of TFDS are decoded once and kept in `cache_folder(cache_dir)`. A TFDS set
  that is not prepared under `data_dir` is read from its newest cache file, without TFDS.

  Raises ValueError if the name is unknown, the data set is unusable, the function fails, or the
  data set is not prepared; the message then has the commands that prepare it.
  """
  data_dir = os.path.expanduser(data_dir)
  if name == "digits":
    return in_common_form(load_digits(), form)
  with waiting(f"loading {name}"):
    if name == "folder":
      cache = cache_folder(cache_dir)
      listing = list_folder(data_dir)
      path = cache / f"folder-{listing.key}{form}.npz"
      decode = functools.partial(load_listing, listing, form)
      dataset = load_or_build(path, name, listing.fingerprint, decode)
      return dataclasses.replace(dataset, path=str(listing.root))
    if is_dotted(name):
      path = f"{name}({data_dir!r})" if data_dir else name
      dataset = in_common_form(_call_source(name, data_dir), form)
      return dataclasses.replace(dataset, path=path, has_known_name=False)
    path = os.path.abspath(data_dir) if data_dir else ""
    dataset = _load_tfds(name, data_dir, cache_folder(cache_dir), form)
    return dataclasses.replace(dataset, path=path, has_known_name=True)


def preview(name: str, data_dir: str, cache_dir: str, form: Form = AS_IT_IS) -> Preview | None:
  """The facts of a data set that are known without decoding it; of a folder, by its first image.

  None if there are none, or if the images are already decoded. Raises as `load_dataset` does.
  """
  if name == "digits" or is_dotted(name):
    return None
  if name == "folder":
    listing = list_folder(data_dir)
    by_class = next(iter(listing.files.values()))
    first = next(itertools.chain(*by_class.values()))
    picture = decode_pictures([(f"data set 'folder', file {first}", first)], form)
    height, width, channels = picture.shape[1:]
    # If the first image is grey, the channels are unknown: another one may be in colour.
    channels = form.channels or (3 if channels == 3 else 0)
    return Preview(name, tuple(by_class), ("train", "test"), channels, (height, width))
  tfds_set = _find_tfds(name, data_dir)
  if tfds_set.folder is None or (cache_folder(cache_dir) / tfds_set.cache_file(form)).is_file():
    return None
  if tfds_set.source.builder != "smallnorb":
    description = preview_prepared(tfds_set.source, tfds_set.folder)
    channels = form.channels or description.channels
    shape = form.shape(description.image_shape)
    return dataclasses.replace(description, channels=channels, image_shape=shape)
  names = preview_prepared(tfds_set.source, tfds_set.folder, SMALLNORB_KEYS).class_names
  splits = ("train", "test", "familiar") if tfds_set.division else ("train", "test")
  return Preview(tfds_set.full_name, names, splits, 2, form.shape((SIDE, SIDE)))


def is_dotted(name: str) -> bool:
  """Whether a name is the dotted path of a function, `package.module.function`."""
  return re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", name) is not None


def _call_source(path: str, data_dir: str) -> Dataset:
  """Calls the function of a dotted path, and returns its data set."""
  module, _, function = path.rpartition(".")
  try:
    source = getattr(importlib.import_module(module), function)
    dataset = source(data_dir) if data_dir else source()
  except Exception as error:  # the user's code may raise anything
    raise ValueError(
      f"expected a function that returns a Dataset and takes config.data.dir where that is set, got"
      f" {type(error).__name__}: {error}"
    ) from error
  if not isinstance(dataset, Dataset):
    raise ValueError(f"expected a function that returns a Dataset, got one of {type(dataset)}")
  return dataset


class _LocatedSet(NamedTuple):
  """A parsed TFDS name, and the folder of the prepared set."""

  source: TfdsSet
  folder: pathlib.Path | None  # of the prepared version; None if there is none
  full_name: str
  division: str  # of smallNORB, "" for its own splits
  stem: str  # name of its cache files, without form and version

  def cache_file(self, form: Form) -> str:
    return f"{self.stem}{form}-{self.folder.name}.npz" if self.folder else ""


def _find_tfds(name: str, data_dir: str) -> _LocatedSet:
  """Parses a name and looks for the prepared set; ValueError if the name is invalid."""
  match = _TFDS_NAME.fullmatch(name)
  if match is None or (match[4] is not None and match[1] != "smallnorb"):
    raise ValueError(f"expected the name of a data set, got {name!r}; {_VALID_NAMES}")
  division = match[4]
  source = TfdsSet(match[1], match[2] or "", match[3] or "", tfds_folder(data_dir))
  full_name = source.unversioned
  stem = full_name.replace("/", "-")
  if source.builder == "smallnorb":
    if division not in (None, *DIVISIONS):
      names = ("smallnorb", *(f"smallnorb:{viewpoint_split}" for viewpoint_split in DIVISIONS))
      raise ValueError(f"expected one of {', '.join(map(repr, names))}, got {name!r}; correct it")
    full_name = f"smallnorb:{division}" if division else "smallnorb"
    # With the side, because a file without it would have images in full size.
    stem = f"smallnorb-{SIDE}" + (f"-{division}" if division else "")
  return _LocatedSet(source, source.prepared(), full_name, division or "", stem)


def _load_tfds(name: str, data_dir: str, cache: pathlib.Path, form: Form) -> Dataset:
  """Reads the prepared set or else its newest cache file."""
  tfds_set = _find_tfds(name, data_dir)
  source, folder, full_name, division, stem = tfds_set
  if folder is not None:
    decode = functools.partial(decode_prepared, form=form)
    if source.builder == "smallnorb":
      decode = functools.partial(decode_smallnorb, division=division, form=form)
    fingerprint = (folder / "dataset_info.json").read_text(errors="replace")
    path = cache / tfds_set.cache_file(form)
    return load_or_build(path, full_name, fingerprint, lambda: decode(source, folder))
  dataset = newest_cached(cache, f"{stem}{form}", source.version, full_name)
  if dataset is None:  # a cache file of the images as they are will do, too
    dataset = newest_cached(cache, stem, source.version, full_name)
    if dataset is None:
      raise ValueError(_not_prepared(source, cache))
    dataset = in_common_form(dataset, form)
  logging.info("%s is not prepared in %s: read from %s.", full_name, source.root, cache)
  return dataset


def _not_prepared(source: TfdsSet, cache: pathlib.Path) -> str:
  searched = (
    f"expected {source.builder!r} prepared by TFDS in {source.root} (config.data.dir or "
    f"TFDS_DATA_DIR) or cached in {cache}, got neither"
  )
  remedy = f"prepare it once:\n{source.prepare_commands}"
  try:
    catalogue = import_tfds().list_builders(with_community_datasets=False)
  except ImportError:
    # There is no array_record for Windows.
    where = " on Windows that is only possible inside WSL;" if sys.platform == "win32" else ""
    remedy = f"{_VALID_NAMES}. If it is a TFDS set,{where} {remedy}"
  else:
    if source.builder not in catalogue:
      similar = difflib.get_close_matches(source.builder.lower(), ["digits", "folder", *catalogue])
      hint = f"did you mean {' or '.join(map(repr, similar))}? " if similar else ""
      return f"unknown data set {str(source)!r}: {searched}; {hint}{_VALID_NAMES}"
  return f"data set {str(source)!r} is not prepared: {searched}; {remedy}"
