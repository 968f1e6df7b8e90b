"""From a config to a system, its data set and, for a trained run, its parameters."""

import dataclasses
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from scae_jax.data.dataset import crop_middle, hold_out_validation
from scae_jax.data.feed import Feed, image_feed
from scae_jax.data.normalization import normalized
from scae_jax.data.overlay import overlay_feed
from scae_jax.data.scenes import Scenes
from scae_jax.data.sources import Dataset, load_dataset
from scae_jax.evaluation.checks import check_enough_to_fit
from scae_jax.evaluation.examples import choose
from scae_jax.models.system import System
from scae_jax.training.checkpoints import Checkpoints, Which
from scae_jax.training.config import Settings, read_settings
from scae_jax.training.errors import RunError, explained
from scae_jax.training.memory import require_memory
from scae_jax.training.mesh import make_mesh
from scae_jax.training.options import DataOptions, TrainOptions
from scae_jax.training.state import TrainState, abstract_state, by_seed
from scae_jax.training.systems import check_system, make_system
from scae_jax.training.workdir import (
  check_same_data,
  checkpoint_directory,
  describe_data,
  load_settings,
)


@dataclasses.dataclass(frozen=True)
class Run:
  """A trained run, as evaluation needs it.

  Attributes:
    settings: of the run.
    system: the model.
    dataset: the data that it was trained on, held-out splits included.
    variables: `{"params": ...}`, what `system.module.apply` takes, by seed.
    step: updates that made them.
    is_latest: whether that is the run's latest step so far.
  """

  settings: Settings
  system: System
  dataset: Dataset | Scenes
  variables: dict[int, dict[str, Any]]
  step: int
  is_latest: bool

  @property
  def config(self) -> ConfigDict:
    """The resolved config."""
    return self.settings.config


def open_run(
  workdir: str | pathlib.Path,
  which: Which = "latest",
  config: ConfigDict | Settings | None = None,
) -> Run:
  """Loads the run in a workdir, without changing anything there.

  Args:
    workdir: folder of a run.
    which: checkpoint: 'latest', 'best' (lowest held-out loss) or a step.
    config: instead of the one in the workdir, for example to read the data elsewhere; or the
      settings of `load_settings`.

  Raises:
    RunError: there is no such run, checkpoint or data set, or they do not fit each other; or the
      data set is not the one that the run was trained on.
  """
  workdir = pathlib.Path(workdir)
  settings = load_settings(workdir) if config is None else read_settings(config)
  directory = checkpoint_directory(workdir)
  if not directory.is_dir():
    raise RunError(f"{workdir} has no checkpoints. Train first, with train.py.")
  system, dataset, feed = build(settings, training=False)
  check_same_data(workdir, describe_data(dataset))
  template = abstract_state(settings, system, feed.spec, make_mesh())
  with Checkpoints(directory, keep=1, writable=False) as checkpoints:
    state, progress = checkpoints.restore(template, which)
    is_latest = which == "latest" or progress.step == checkpoints.steps()[-1]
  variables = variables_by_seed(state, settings.train)
  return Run(settings, system, dataset, variables, progress.step, is_latest)


def variables_by_seed(state: TrainState, train: TrainOptions) -> dict[int, dict[str, Any]]:
  """Variables of the module for each seed of a state, on one device of this process."""
  params = jax.tree.map(jnp.asarray, jax.device_get(state.params))
  return {seed: {"params": own} for seed, own in by_seed(params, train.all_seeds).items()}


def build(settings: Settings, *, training: bool = True) -> tuple[System, Dataset | Scenes, Feed]:
  """Loads the data, makes the system, and traces it once, so that errors come early.

  Args:
    settings: of the run.
    training: whether it is to be trained, which takes more memory than to evaluate it.

  Returns:
    The system; the data set, its images as evaluation takes them: where `data.crop` is set, the
    middle of each; and the batches of training and of the held-out split.

  Raises:
    RunError: with the message of the data source, the model or the check that refused.
  """
  with explained():
    if isinstance(settings.data, DataOptions):
      dataset = _load_images(settings.data)
      feed = _feed_images(dataset, settings.data)
      dataset = crop_middle(dataset, settings.data.crop)
    else:
      dataset = Scenes(settings.data)
      feed = dataset.feed()
    system = make_system(settings, feed.spec)
    traced = check_system(system, feed.spec, settings.train.batch_size)
    require_memory(settings, feed, traced, training=training)
    if isinstance(dataset, Dataset) and system.classify is None:
      _check_clusters(dataset, settings)
  return system, dataset, feed


def _load_images(options: DataOptions) -> Dataset:
  """A data set of images that fit on the canvas, or will be cropped; with what normalises them."""
  try:
    dataset = load_dataset(options.name, options.dir, options.cache_dir)
  except ValueError as error:
    raise ValueError(f"config.data.name is {options.name!r}: {error}") from error
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
      " config.data.crop to what is to be cut out of them."
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


def _feed_images(dataset: Dataset, options: DataOptions) -> Feed:
  if options.overlay:
    return overlay_feed(dataset, canvas=options.canvas, max_shift=options.max_shift)
  return image_feed(
    dataset,
    canvas=options.canvas,
    max_shift=options.max_shift,
    max_rotation=options.max_rotation,
    crop=options.crop,
    brightness=options.brightness,
    contrast=options.contrast,
  )
