"""From a config to a system, its data set and, for a trained run, its parameters."""

import dataclasses
import pathlib
from typing import Any

import jax
from ml_collections import ConfigDict

from scae_jax.data.constellations import NAME, Scenes
from scae_jax.data.dataset import Dataset, brought_to, crop_middle, hold_out_validation, normalized
from scae_jax.data.feed import Feed, image_feed
from scae_jax.data.options import DataOptions
from scae_jax.data.sources import is_dotted, load_dataset
from scae_jax.evaluation.checks import check_enough_to_fit
from scae_jax.evaluation.examples import choose
from scae_jax.files import given_path
from scae_jax.models.system import System
from scae_jax.precision import single_precision
from scae_jax.training.config import Settings, read_settings
from scae_jax.training.errors import RunError, explained
from scae_jax.training.mesh import find_devices
from scae_jax.training.metrics import import_tensorboard
from scae_jax.training.optimizers import check_length
from scae_jax.training.parameters import Which, check_step, restore
from scae_jax.training.processes import all_or_none
from scae_jax.training.systems import check_system, make_system
from scae_jax.training.workdir import (
  check_same_data,
  check_same_run,
  describe_data,
  load_settings,
)
from scae_jax.waiting import waiting


@dataclasses.dataclass(frozen=True)
class Run:
  """A trained run, as evaluation needs it."""

  settings: Settings
  system: System
  dataset: Dataset | Scenes  # that it was trained on, held-out splits included
  variables: dict[int, dict[str, Any]]  # by seed, `{"params": ...}` for `system.module.apply`
  step: int
  is_latest: bool  # whether no later step of the run is saved

  @property
  def config(self) -> ConfigDict:
    """The resolved config."""
    return self.settings.config


@single_precision
def open_run(
  workdir: str | pathlib.Path,
  which: Which = "latest",
  config: ConfigDict | Settings | None = None,
  dataset: Dataset | None = None,
) -> Run:
  """Loads the run in a workdir, or what `save_pretrained` wrote, without changing anything there.

  `which` is as in `restore`. A `config` replaces that of the folder, for example to read the data
  elsewhere. A run on data in memory needs its `dataset`.
  Raises `RunError` if run, checkpoint or data set are not there, or do not fit each other.
  """
  with explained():
    workdir = given_path(workdir)
  if config is None:
    config = load_settings(workdir, is_given=dataset is not None)
  settings = read_settings(config)
  check_step(workdir, which)
  system, data, feed = build(settings, dataset, training=False)
  check_same_data(workdir, describe_data(data))
  with waiting(f"reading {workdir}"):
    variables, step, is_latest = restore(workdir, which, settings, system, feed.spec)
  return Run(settings, system, data, variables, step, is_latest)


def build(
  settings: Settings, dataset: Dataset | None = None, *, training: bool = True
) -> tuple[System, Dataset | Scenes, Feed]:
  """Loads the data, unless given in memory, and makes and traces the system: errors come early.

  Images of the returned data set are cropped to their middle where `data.crop` is set. To evaluate
  takes less memory than `training`. `RunError` is for what the source, model or a check refuses.
  """
  find_devices()
  if jax.config.values["jax_disable_jit"]:
    raise RunError("runs are trained and scored by compiled programs: leave JAX_DISABLE_JIT unset.")
  if training:
    check_length(settings.optimizer, settings.train)
  with explained():
    if isinstance(settings.data, DataOptions):
      whole = _load_images(settings.data, dataset)
      data = crop_middle(whole, settings.data.crop)
      feed = image_feed(whole.splits["train"], data, settings.data)
    elif dataset is None:
      data = settings.data
      feed = data.feed()
    else:
      raise ValueError(
        f"config.data.name is {NAME!r}, whose scenes are generated, and a data set is given in"
        f" memory; expected the name of that, {dataset.name!r}."
      )
    if settings.train.batch_size % settings.views:
      raise ValueError(
        "config.train.batch_size must be even where config.data.two_views is True;"
        f" it is {settings.train.batch_size}."
      )
    system = make_system(settings, feed.spec)
    if system.object_params is None and settings.train.revive_idle:
      raise ValueError(
        "config.train.revive_idle must be () with this model, which has no object capsules with"
        f" parameters of their own; it is {settings.train.revive_idle!r}."
      )
    with waiting("tracing the model"):
      check_system(system, feed.spec, settings.train.batch_size, training=training)
    if training and isinstance(data, Dataset) and system.classify is None:
      _check_clusters(data, settings)
  return system, data, feed


def build_to_train(
  settings: Settings, workdir: pathlib.Path, dataset: Dataset | None = None
) -> tuple[System, Dataset | Scenes, Feed, dict[str, Any]]:
  """`build`, and `describe_data`, of a run that is to be trained in a workdir.

  `RunError` also where the workdir has a run that this one cannot resume, or a package is missing.
  """
  check_same_run(workdir, settings.config)
  if settings.train.tensorboard:
    import_tensorboard()  # or say how to install it
  with all_or_none("load its data"):
    system, data, feed = build(settings, dataset)
  described = describe_data(data)
  check_same_data(workdir, described)
  return system, data, feed, described


def _load_images(options: DataOptions, dataset: Dataset | None) -> Dataset:
  """A data set of images that fit on the canvas, or will be cropped; with what normalises them."""
  if dataset is None:
    try:
      dataset = load_dataset(options.name, options.dir, options.cache_dir, options.form)
    except ValueError as error:
      raise ValueError(f"config.data.name is {options.name!r}: {error}") from error
  elif dataset.name != options.name and not is_dotted(options.name):
    raise ValueError(
      f"config.data.name is {options.name!r}, and the data set given in memory is named"
      f" {dataset.name!r}; expected one name, by which the run is known. Set the key to it."
    )
  else:
    dataset = brought_to(dataset, options.form)
  dataset = hold_out_validation(dataset, options.num_validation)
  if dataset.num_classes < 2:
    raise ValueError(
      f"config.data.name is {options.name!r}, whose images are all of one class; expected at least"
      " two, which a model can tell apart."
    )
  if dataset.image_side > options.canvas and not options.crop:
    raise ValueError(
      f"config.data.canvas must hold the images of {dataset.name!r}, {dataset.image_side} pixels"
      f" wide or high; it is {options.canvas}. Set it to {dataset.image_side} or more, or"
      f" config.data.resize to {options.canvas}, or config.data.crop to what is to be cut out of"
      " them."
    )
  return normalized(dataset) if options.normalize else dataset


def _check_clusters(dataset: Dataset, settings: Settings) -> None:
  """Raises ValueError unless clusters can be fitted to the data of a model that knows no labels."""
  if isinstance(settings.data, DataOptions) and settings.data.overlay:
    raise ValueError(
      f"config.data.overlay gives every image two labels, and system {settings.system!r} is scored"
      " by clusters of one; use a system that is trained with labels, or set it to False."
    )
  labels, limit = dataset.splits["train"].labels, settings.evaluation.max_examples
  try:
    check_enough_to_fit(labels[choose(len(labels), limit)], dataset.num_classes)
  except ValueError as error:
    key, value = ("evaluation.max_examples", limit) if limit else ("data.name", dataset.name)
    raise ValueError(f"config.{key} is {value!r}: {error}") from error
