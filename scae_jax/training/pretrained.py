"""Pretrained parameters: what evaluation needs of a run, without its checkpoints.

<folder>/config.json    the run's resolved config
<folder>/params.npz     parameters by path, float16 or float32, of one seed
<folder>/data.json      what the data set is that it was trained on
<folder>/source.json    step, seed and the run's figures
"""

import io
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from scae_jax.data.cache import read_arrays
from scae_jax.evaluation.files import read_json, sealed_json, write_json, write_whole
from scae_jax.training.build import Run, build
from scae_jax.training.checkpoints import Which
from scae_jax.training.config import Settings, read_settings
from scae_jax.training.errors import RunError
from scae_jax.training.workdir import check_same_data, describe_data, load_settings

DTYPES = ("float16", "float32")


def save_pretrained(
  run: Run, seed: int, folder: pathlib.Path, dtype: str, figures: dict[str, Any]
) -> None:
  """Writes one seed of a run into a folder, made if need be.

  The dtype float16 halves the file and rounds at the fourth digit. The figures are results of the
  run's evaluation, for readers of the file.

  Raises:
    RunError: no such dtype, or numbers too large for it.
  """
  if dtype not in DTYPES:
    raise RunError(f"parameters are saved as {' or '.join(DTYPES)}, not as {dtype!r}.")
  arrays = {}
  for path, leaf in jax.tree.leaves_with_path(run.variables[seed]["params"]):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    if np.abs(leaf).max(initial=0) > np.finfo(dtype).max:
      raise RunError(f"parameter {name} has numbers too large for {dtype}; save as float32.")
    arrays[name] = np.asarray(leaf).astype(dtype)
  folder.mkdir(parents=True, exist_ok=True)
  content = io.BytesIO()
  np.savez_compressed(content, **arrays)
  write_whole(folder / "params.npz", content.getvalue())
  config = run.config.to_dict()
  config["train"]["start_from"] = ""  # a folder of this machine, and no more to be read
  write_whole(folder / "config.json", sealed_json(config))
  write_json(folder / "data.json", describe_data(run.dataset))
  source = {"step": run.step, "seed": seed, "figures": figures}
  write_whole(folder / "source.json", sealed_json(source))


def pretrained_folder(parent: pathlib.Path, name: str) -> pathlib.Path:
  """The folder of parameters with this name; raises `RunError` if there is none."""
  known = sorted(path.parent.name for path in parent.glob("*/params.npz"))
  if name not in known:  # so that a name is never a path to elsewhere
    raise RunError(f"there are no parameters {name!r} in {parent}; it has {known}.")
  return parent / name


def open_pretrained(
  folder: pathlib.Path, which: Which = "latest", config: ConfigDict | Settings | None = None
) -> Run:
  """Loads what `save_pretrained` wrote, as `build.open_run` loads a run.

  Raises:
    RunError: a step is asked for; the parameters cannot be read or do not fit the config; the data
      set is missing or is not the one that they were trained on.
  """
  if which != "latest":
    raise RunError(f"pretrained parameters are of one step; leave out --step={which}.")
  settings = load_settings(folder) if config is None else read_settings(config)
  try:
    source = read_json(folder / "source.json", "step", "seed")
    arrays = read_arrays(folder / "params.npz")
  except (OSError, ValueError) as error:
    raise RunError(f"{folder} cannot be read: {error}. Fetch it anew.") from error
  if not all(type(source[key]) is int for key in ("step", "seed")):
    raise RunError(f"{folder / 'source.json'} must have whole numbers as step and seed.")
  system, dataset, feed = build(settings, training=False)
  check_same_data(folder, describe_data(dataset))

  def init() -> Any:
    keys = {"params": jax.random.key(0), "noise": jax.random.key(0)}
    return system.module.init(keys, feed.spec.blank_batch(2), train=True)["params"]

  def read(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.Array:
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    found = arrays.pop(name, np.zeros(0))
    if found.shape != leaf.shape:
      raise RunError(
        f"{folder}: parameter {name} must have shape {leaf.shape}; it has {found.shape}. Config"
        " and parameters are of different versions."
      )
    return jnp.asarray(found, leaf.dtype)

  params = jax.tree_util.tree_map_with_path(read, jax.eval_shape(init))
  if arrays:
    raise RunError(f"{folder} has parameters that the model does not: {sorted(arrays)}.")
  variables = {source["seed"]: {"params": params}}
  return Run(settings, system, dataset, variables, source["step"], is_latest=True)
