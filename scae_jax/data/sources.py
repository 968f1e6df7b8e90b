"""Loading a data set by name: the embedded digits, a user's folder, or any prepared TFDS set."""

import difflib
import pathlib
from collections.abc import Callable

from absl import logging

from scae_jax.data.cache import cache_folder, cached_versions, load_or_build, read_cached
from scae_jax.data.dataset import Dataset, Split
from scae_jax.data.digits import load_digits
from scae_jax.data.folder import list_folder, load_listing
from scae_jax.data.prepared import (
  PreparedSet,
  SetReference,
  find_prepared,
  parse_reference,
  tfds_folder,
)
from scae_jax.data.smallnorb import decode_smallnorb, parse_smallnorb
from scae_jax.data.tfds_source import catalogue_names, decode_prepared, prepare_commands

__all__ = ["Dataset", "Split", "load_dataset"]

_VALID_NAMES = (
  "valid names: 'digits' (embedded), 'folder' (your images by class), and any TFDS image "
  "classification set by its TFDS name, such as 'mnist', 'fashion_mnist', 'cifar10' or "
  "'svhn_cropped'; 'smallnorb:novel_azimuth' and 'smallnorb:novel_elevation'; to score on only, "
  "with evaluate.py --dataset: 'affnist', 'affine_<name>', 'rotated_<name>:35' and "
  "'translated_<name>:-6..6'"
)


def load_dataset(name: str, data_dir: str = "", cache_dir: str = "") -> Dataset:
  """Loads a data set into host memory.

  Everything but the digits is decoded once and kept in one file of the cache folder, from which the
  next start reads it. A TFDS set that is prepared under `data_dir` is read in its newest version
  there; one that is not is read from the newest version in the cache, which needs no TFDS at all.

  Args:
    name: `digits`, `folder`, or a TFDS name: `mnist`, `mnist:3.0.1`, `cifar10_corrupted/fog_1`. For
      `smallnorb`, whose images come in half their size, see `scae_jax.data.smallnorb`.
    data_dir: for `folder` the folder of images, for TFDS sets the folder of prepared sets, where ""
      means `$TFDS_DATA_DIR` or else `~/tensorflow_datasets`. The digits do not read it.
    cache_dir: the cache folder; "" means `$SCAE_JAX_CACHE` or else `~/.cache/scae_jax`.

  Returns:
    The data set, checked.

  Raises:
    ValueError: the name is unknown, the data set is not prepared (the message has the commands that
      prepare it) or not usable; see `list_folder`, `load_listing`, `decode_prepared` and
      `decode_smallnorb`.
  """
  cache = cache_folder(cache_dir)
  if name == "digits":
    return load_digits()
  if name == "folder":
    listing = list_folder(data_dir)
    path = cache / f"folder-{listing.key}.npz"
    return load_or_build(path, name, listing.fingerprint, lambda: load_listing(listing))
  root, norb = tfds_folder(data_dir), parse_smallnorb(name)
  if norb is not None:
    return _load_tfds(
      norb.reference,
      root,
      cache,
      name=norb.full_name,
      stem=norb.stem,
      decode=lambda prepared: decode_smallnorb(prepared, norb),
    )
  reference = parse_reference(name)
  if reference is None:
    raise ValueError(f"expected the name of a data set, got {name!r}; {_VALID_NAMES}")
  return _load_tfds(
    reference,
    root,
    cache,
    name=reference.full_name,
    stem=reference.stem,
    decode=decode_prepared,
  )


def _load_tfds(
  reference: SetReference,
  root: pathlib.Path,
  cache: pathlib.Path,
  *,
  name: str,
  stem: str,
  decode: Callable[[PreparedSet], Dataset],
) -> Dataset:
  """Reads what is prepared, or else the newest cache file of it.

  Args:
    reference: the set of TFDS.
    root: folder of prepared sets.
    cache: folder of cache files.
    name: of the data set that `decode` gives.
    stem: the start of its cache files' names.
    decode: reads the prepared set.

  Raises:
    ValueError: neither is there.
  """
  prepared = find_prepared(reference, root)
  if prepared is not None:
    path = cache / f"{stem}-{prepared.version}.npz"
    return load_or_build(path, name, prepared.fingerprint, lambda: decode(prepared))
  for version, path in cached_versions(cache, stem):
    if reference.version in ("", version):
      dataset = read_cached(path, name)
      if dataset is not None:
        logging.info("%s is not prepared in %s: read from %s.", name, root, path)
        return dataset
  raise ValueError(_absent(reference, root, cache))


def _absent(reference: SetReference, root: pathlib.Path, cache: pathlib.Path) -> str:
  looked = (
    f"expected {reference.name!r} prepared by TFDS in {root} (config.data.dir or TFDS_DATA_DIR) or "
    f"cached in {cache}, got neither"
  )
  remedy = "prepare it once:\n" + prepare_commands(reference, str(root))
  try:
    catalogue = catalogue_names()
    if reference.name not in catalogue:
      known = ["digits", "folder", *catalogue]
      similar = difflib.get_close_matches(reference.name.lower(), known)
      hint = f"did you mean {' or '.join(map(repr, similar))}? " if similar else ""
      return (
        f"unknown data set {reference.text!r}: TFDS has none of this name; {looked}; "
        f"{hint}{_VALID_NAMES}"
      )
  except ImportError:
    remedy = f"{_VALID_NAMES}. If it is a TFDS set, {remedy}"
  return f"data set {reference.text!r} is not prepared: {looked}; {remedy}"
