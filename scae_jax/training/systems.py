"""Finds a system by its name, and checks it by tracing."""

import functools
import importlib
import importlib.util
import pathlib
from typing import Any

import jax

import scae_jax.models
from scae_jax import bounds
from scae_jax.models.system import ImageSpec, LossOptions, Spec, System
from scae_jax.training.config import Settings
from scae_jax.training.objective import losses
from scae_jax.typing import Array


def make_system(settings: Settings, data: Spec) -> System:
  """The system that the config names; `ValueError` if there is none, or it refuses its sections."""
  name = settings.system
  path = name if "." in name else f"scae_jax.models.{name}"
  try:
    found = importlib.util.find_spec(path) is not None
  except ModuleNotFoundError:  # a parent package of a dotted path
    found = False
  module: Any = importlib.import_module(path) if found else None
  if not hasattr(module, "make_system"):
    raise ValueError(
      f"config.system must name a module that exports make_system; {name!r} is none."
      f" scae_jax.models has {systems()}."
    )
  return module.make_system(settings.model, settings.loss, data)


def systems() -> list[str]:
  """Names of the files in `scae_jax/models` that define `make_system`."""
  files = pathlib.Path(scae_jax.models.__path__[0]).glob("*.py")
  return sorted(file.stem for file in files if "\ndef make_system(" in file.read_text())


@functools.partial(jax.jit, static_argnums=(0, 1))  # so that it is traced once a system
def init_params(system: System, data: Spec, params_key: Array, noise_key: Array) -> Any:
  """The parameters of a system's module, newly drawn."""
  keys = {"params": params_key, "noise": noise_key}
  return system.module.init(keys, data.blank_batch(2), train=True)["params"]


def check_system(system: System, data: Spec, batch_size: int, *, training: bool = True) -> None:
  """Traces a training batch, unless not for `training`, and a test batch; computes nothing.

  Raises ValueError if the model does; if terms and weights differ, the schedule is none, a shape is
  wrong, or a feature and a reading have one name.
  """
  loss = {"weights": system.loss_weights, "schedule": system.loss_schedule}
  bounds.read(LossOptions, "loss", loss)  # also of systems that do not check their own
  batch = jax.eval_shape(lambda: data.blank_batch(batch_size))
  key = jax.eval_shape(lambda: jax.random.key(0))

  def run(params: Any, key: Array, batch: Any, step: int | None) -> tuple[Any, ...]:
    noise_key = None if step is None else key
    _, (terms, output) = losses(system, params, batch, step=step, noise_key=noise_key)
    numbers = (system.metrics(output, batch), system.features(output), system.readings(output))
    others = (of and of(output) for of in (system.classify, system.poses))
    return terms, *numbers, *others

  params = jax.eval_shape(functools.partial(init_params, system, data), key, key)
  results = [
    jax.eval_shape(functools.partial(run, step=step), params, key, batch)
    for step in ((0, None) if training else (None,))
  ]
  for terms, metrics, features, readings, scores, poses in results:
    for name, value in terms.items():
      _check_shape(f"loss term {name!r}", value.shape, (), "()")
    for name, value in metrics.items():
      _check_shape(f"metric {name!r}", value.shape, (batch_size,), f"[batch {batch_size}]")
    for kind, values in (("feature", features), ("reading", readings)):
      for name, value in values.items():
        shape = (batch_size, *value.shape[-1:])
        _check_shape(f"{kind} {name!r}", value.shape, shape, f"[batch {batch_size}, {kind}s]")
    if scores is not None and isinstance(data, ImageSpec):
      shape = (batch_size, data.num_classes)
      _check_shape("result of `classify`", scores.shape, shape, f"[batch {shape[0]}, {shape[1]}]")
    for kind, (found, presence) in (poses or {}).items():
      shape = (batch_size, *presence.shape[1:2], 2, 3)
      _check_shape(f"poses of {kind!r}", found.shape, shape, f"[batch {batch_size}, n, 2, 3]")
      _check_shape(f"presences of {kind!r}", presence.shape, shape[:2], f"[batch {batch_size}, n]")
    if both := sorted(set(features) & set(readings)):
      raise ValueError(f"the system's features and readings must differ in name; both have {both}.")


def _check_shape(what: str, received: tuple, expected: tuple, words: str) -> None:
  if received != expected:
    raise ValueError(f"the system's {what} must have shape {words}; it has {received}.")
