"""From a config to a system, its data set and, for a trained run, its parameters."""

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import pathlib
import shlex
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import TypeCheckError
from ml_collections import ConfigDict

import scae_jax.models
from scae_jax import bounds
from scae_jax.config import Settings, as_started, read_settings
from scae_jax.data.constellations import NAME, Scenes
from scae_jax.data.dataset import Dataset, brought_to, crop_middle, hold_out_validation, normalized
from scae_jax.data.feed import Feed, image_feed
from scae_jax.data.options import DataOptions
from scae_jax.data.sources import is_dotted, load_dataset
from scae_jax.errors import ReportError, RunError, explained
from scae_jax.evaluation.checks import check_enough_to_fit
from scae_jax.evaluation.examples import choose
from scae_jax.files import given_path
from scae_jax.interrupt import end, on_signal
from scae_jax.models.system import Encoding, ImageSpec, LossOptions, Spec, System
from scae_jax.precision import single_precision
from scae_jax.sections import check_length
from scae_jax.training.hosts import all_or_none, find_devices
from scae_jax.training.log import import_tensorboard
from scae_jax.training.start import check_step, restore
from scae_jax.training.state import init_params
from scae_jax.training.step import losses
from scae_jax.training.workdir import (
  Which,
  check_same_data,
  check_same_run,
  describe_data,
  load_settings,
)
from scae_jax.typing import Array
from scae_jax.waiting import waiting


def make_system(settings: Settings, data: Spec) -> System:
  """The system that the config names.

  Raises `ValueError` if there is no such system, or it refuses its config sections.
  """
  name = settings.system
  path = name if "." in name else f"scae_jax.models.{name}"
  try:
    exists = importlib.util.find_spec(path) is not None
  except ModuleNotFoundError:  # a parent package of a dotted path is missing
    exists = False
  module: Any = importlib.import_module(path) if exists else None
  if not hasattr(module, "make_system"):
    raise ValueError(
      f"config.system must name a module that exports make_system; {name!r} is none."
      f" scae_jax.models has {systems()}."
    )
  return module.make_system(settings.model, settings.loss, data)


def systems() -> list[str]:
  """Names of the modules and packages in `scae_jax/models` that define `make_system`."""
  folder = pathlib.Path(scae_jax.models.__path__[0])
  files = {path.stem: path for path in folder.glob("*.py")}
  files |= {path.parent.name: path for path in folder.glob("*/__init__.py")}
  return sorted(name for name, path in files.items() if "\ndef make_system(" in path.read_text())


def check_system(system: System, data: Spec, batch_size: int, *, training: bool = True) -> Encoding:
  """Traces the model on a test batch and, if `training`, on a training batch; computes nothing.

  Returns the shapes of the encoding of a batch. Raises `ValueError` for an error of the model,
  mismatched terms and weights, an invalid schedule, wrong shapes, or a name that features and probe
  features share.
  """
  loss = {"weights": system.loss_weights, "schedule": system.loss_schedule}
  bounds.read(LossOptions, "loss", loss)  # a system outside of the package may not have checked it
  batch = jax.eval_shape(lambda: data.blank_batch(batch_size))
  key = jax.eval_shape(lambda: jax.random.key(0))

  def run(params: Any, key: Array, batch: Any, step: int | None) -> tuple[Any, ...]:
    noise_key = None if step is None else key
    _, (terms, output) = losses(system, params, batch, step=step, noise_key=noise_key)
    return terms, system.metrics(output, batch), system.encoding(output)

  params = jax.eval_shape(functools.partial(init_params, system, data), key, key)
  results = [
    jax.eval_shape(functools.partial(run, step=step), params, key, batch)
    for step in ((0, None) if training else (None,))
  ]
  for terms, metrics, encoding in results:
    for name, value in terms.items():
      _check_shape(f"loss term {name!r}", value.shape, (), "()")
    for name, value in metrics.items():
      _check_shape(f"metric {name!r}", value.shape, (batch_size,), f"[batch {batch_size}]")
    features, probe_features = encoding.features, encoding.probe_features
    for kind, values in (("feature", features), ("probe feature", probe_features)):
      for name, value in values.items():
        shape = (batch_size, *value.shape[-1:])
        _check_shape(f"{kind} {name!r}", value.shape, shape, f"[batch {batch_size}, {kind}s]")
    if encoding.scores is not None and isinstance(data, ImageSpec):
      shape = (batch_size, data.num_classes)
      _check_shape("scores", encoding.scores.shape, shape, f"[batch {shape[0]}, {shape[1]}]")
    for kind in ("part", "object"):
      poses, presence = getattr(encoding, f"{kind}_poses"), getattr(encoding, f"{kind}_presence")
      if poses is not None:
        shape = (batch_size, poses.shape[1])
        _check_shape(f"{kind}_poses", poses.shape[:2], shape, f"[batch {batch_size}, n, ...]")
        _check_shape(f"{kind}_presence", np.shape(presence), shape, f"[{batch_size}, {shape[1]}]")
    if shared := sorted(set(features) & set(probe_features)):
      raise ValueError(
        f"the system's features and probe features must differ in name; both have {shared}."
      )
  return results[-1][2]


def _check_shape(name: str, received: tuple, expected: tuple, axes: str) -> None:
  """Raises ValueError unless shapes are equal; `axes` describes the expected one in the message."""
  if received != expected:
    raise ValueError(f"the system's {name} must have shape {axes}; it has {received}.")


@dataclasses.dataclass(frozen=True)
class Run:
  """A trained run, with everything that evaluation needs."""

  settings: Settings
  system: System
  dataset: Dataset | Scenes  # the data set of its training, with the held-out splits
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
  """Loads the run of a workdir or of a folder of exported parameters; changes nothing there.

  `which` is a step, 'latest' or 'best', as in `restore`. A `config` replaces that of the folder,
  for example to read the data elsewhere. A run on data in memory needs its `dataset`. Raises
  `RunError` if the run, the checkpoint or the data set is missing, or they do not fit each other.
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
  """Loads the data, unless `dataset` has it, builds the system and traces it.

  If `data.crop` is set, the images of the returned data set are cropped to their middle. Checks
  that only concern training are left out if `training` is False. Raises `RunError` if the data
  cannot be loaded, the model refuses the config, or a check fails.
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
        f" memory; expected the name of that data set, {dataset.name!r}."
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
      encoding = check_system(system, feed.spec, settings.train.batch_size, training=training)
    if training and isinstance(data, Dataset) and encoding.scores is None:
      _check_clusters(data, settings)
  return system, data, feed


def build_to_train(
  settings: Settings, workdir: pathlib.Path, dataset: Dataset | None = None
) -> tuple[System, Dataset | Scenes, Feed, dict[str, Any]]:
  """`build` of a run to be trained in a workdir, and the data set's description.

  Also raises `RunError` if the workdir has a run that this one cannot resume, or if a package is
  missing.
  """
  check_same_run(workdir, settings.config)
  if settings.train.tensorboard:
    import_tensorboard()  # fails now rather than after the data is loaded
  with all_or_none("load its data"):
    system, data, feed = build(settings, dataset)
  data_description = describe_data(data)
  check_same_data(workdir, data_description)
  return system, data, feed, data_description


def _load_images(options: DataOptions, dataset: Dataset | None) -> Dataset:
  """The data set of images, with a validation split and pixel statistics where the config asks.

  Raises ValueError if its name is not that of the config, it has one class only, or its images are
  larger than the canvas and are not cropped.
  """
  if dataset is None:
    try:
      dataset = load_dataset(options.name, options.dir, options.cache_dir, options.form)
    except ValueError as error:
      raise ValueError(f"config.data.name is {options.name!r}: {error}") from error
  elif dataset.name != options.name and not is_dotted(options.name):
    raise ValueError(
      f"config.data.name is {options.name!r}, and the data set given in memory is named"
      f" {dataset.name!r}; expected the same name. Set the key to it."
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
      f" config.data.resize to {options.canvas}, or config.data.crop to the side of the middle that"
      " is used."
    )
  return normalized(dataset) if options.normalize else dataset


def _check_clusters(dataset: Dataset, settings: Settings) -> None:
  """Raises ValueError if k-means cannot be fitted to the data, for a model without labels."""
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


@contextlib.contextmanager
def training_saved(step: int, workdir: pathlib.Path) -> Iterator[None]:
  """Around the report on a finished run: messages say that it is saved and how to report again.

  Raises `ReportError` if the report fails; a signal ends the process.
  """
  command = as_started(f"python evaluate.py --workdir={shlex.quote(str(workdir))}")
  status = f"the training is finished and saved at step {step}"
  try:
    with on_signal(lambda number: end(number, f"{status}; `{command}` reports on it")), explained():
      yield
  except (RunError, TypeCheckError) as error:  # the latter for arrays of a user's own system
    raise ReportError(
      f"{status}, but its report failed; `{command}` tries it again. Why: {error}"
    ) from error
