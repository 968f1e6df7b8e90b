"""From a config to its data and its system: made, and traced before anything is computed."""

import functools
import importlib
import importlib.util
import pathlib
from typing import Any

import jax
import numpy as np

import scae_jax.models
from scae_jax import bounds
from scae_jax.config import Settings
from scae_jax.data.constellations import Scenes
from scae_jax.data.dataset import Dataset
from scae_jax.data.feed import Feed
from scae_jax.data.sources import load_data
from scae_jax.errors import RunError, as_run_errors
from scae_jax.evaluation.checks import check_enough_to_fit
from scae_jax.evaluation.examples import choose
from scae_jax.models.system import Encoding, ImageSpec, LossOptions, Spec, System
from scae_jax.training.hosts import find_devices
from scae_jax.training.state import init_params
from scae_jax.training.step import losses
from scae_jax.typing import Array
from scae_jax.waiting import waiting


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
  with as_run_errors():
    data, feed = load_data(settings.data, dataset)
    system = make_system(settings, feed.spec)
    with waiting("tracing the model"):
      encoding = check_system(system, feed.spec, settings.train.batch_size, training=training)
    if system.object_params is None and settings.train.revive_idle:
      raise ValueError(
        "config.train.revive_idle must be () with this model, which has no object capsules with"
        f" parameters of their own; it is {settings.train.revive_idle!r}."
      )
    if training and isinstance(data, Dataset) and encoding.scores is None:
      # After the training, k-means is fitted to features of the training images.
      if isinstance(feed.spec, ImageSpec) and feed.spec.num_labels > 1:
        raise ValueError(
          "config.data.overlay gives every image two labels, and clusters of system"
          f" {settings.system!r} have one; use a system that is trained with labels, or set it to"
          " False."
        )
      labels, limit = data.splits["train"].labels, settings.evaluation.max_examples
      try:
        check_enough_to_fit(labels[choose(len(labels), limit)], data.num_classes)
      except ValueError as error:
        key, value = ("evaluation.max_examples", limit) if limit else ("data.name", data.name)
        raise ValueError(f"config.{key} is {value!r}: {error}") from error
  return system, data, feed


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
