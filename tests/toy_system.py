"""A linear autoencoder with noise, small enough that a test trains it in a second.

A config names it by `system = "tests.toy_system"`; `toy_config` makes such a config.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from ml_collections import ConfigDict

from configs.digits import shared_sections
from scae_jax import shards
from scae_jax.data.dataset import Dataset
from scae_jax.data.feed import Feed, image_feed
from scae_jax.data.options import DataOptions
from scae_jax.models.system import Encoding, ImageSpec, System
from scae_jax.typing import Array, Batch

# In the order of the system; a config sorts its keys.
TERMS = ("image", "between", "fragile", "code_probe")


@struct.dataclass
class ToyOutput:
  """Code [b, d] in (0, 1), reconstruction [b, h, w, c], class logits [b, n], `nan_below` [].

  In training, an image error below `nan_below` makes the loss NaN.
  """

  code: Array
  reconstruction: Array
  logits: Array
  nan_below: Array


class Toy(nn.Module):
  """Sigmoid code of the noisy pixels, linear reconstruction, linear probe on the code."""

  num_features: int
  noise_scale: float
  nan_below: float
  num_classes: int

  @nn.compact
  def __call__(self, batch: Batch, *, train: bool) -> ToyOutput:
    pixels = batch["image"].reshape(batch["image"].shape[0], -1)
    noisy = pixels
    if train:
      noise = shards.draw(jax.random.normal, self.make_rng("noise"), pixels.shape)
      noisy += self.noise_scale * noise
    code = nn.sigmoid(nn.Dense(self.num_features, name="encoder")(noisy))
    reconstruction = nn.Dense(pixels.shape[1], name="decoder")(code)
    logits = nn.Dense(self.num_classes, name="probe")(jax.lax.stop_gradient(code))
    reconstruction = reconstruction.reshape(batch["image"].shape)
    return ToyOutput(code, reconstruction, logits, jnp.float32(self.nan_below if train else 0.0))


def make_system(model: dict[str, Any], loss: dict[str, float], data: ImageSpec) -> System:
  """`model` has `num_features`, `noise_scale` and `nan_below`; `loss` weighs `loss_terms`."""
  fields = {"num_features", "noise_scale", "nan_below"}
  if set(model) != fields:
    raise ValueError(f"toy model takes {sorted(fields)}, got {sorted(model)}")
  if model["num_features"] < 1:
    raise ValueError(f"num_features must be at least 1, got {model['num_features']}; raise it")
  module = Toy(**model, num_classes=data.num_classes)

  def loss_terms(output: ToyOutput, batch: Batch, step: Array | int | None) -> dict[str, Array]:
    num_examples = len(output.code) * shards.count()
    # Over the whole batch, so that it breaks at the same step on any number of devices.
    error = shards.sum_over_batch(_squared_error(output, batch)) / num_examples
    log_prob = jnp.take_along_axis(nn.log_softmax(output.logits), batch["label"][:, None], axis=1)
    # A statistic over the batch, as sparsity is: the same on one device as on many.
    mean_code = shards.sum_over_batch(output.code) / num_examples
    between = jnp.mean(jnp.square(mean_code - 0.5))
    fragile = jnp.where(error < output.nan_below, jnp.nan, 0.0)
    return {"image": error, "between": between, "fragile": fragile, "code_probe": -log_prob.mean()}

  def metrics(output: ToyOutput, batch: Batch) -> dict[str, Array]:
    right = jnp.argmax(output.logits, axis=1) == batch["label"]
    return {"squared_error": _squared_error(output, batch), "probe_right": right.astype(float)}

  return System(
    module=module,
    loss_terms=loss_terms,
    loss_weights={name: loss[name] for name in TERMS if name in loss} | loss,
    loss_schedule={},
    metrics=metrics,
    encoding=lambda output: Encoding(features={"code": output.code}),
  )


def _squared_error(output: ToyOutput, batch: Batch) -> Array:
  return jnp.sum(jnp.square(output.reconstruction - batch["image"]), axis=(1, 2, 3))


def data_options(canvas: int, **changes: Any) -> DataOptions:
  """Options of the data: the canvas and the changes; everything else is off."""
  texts = dict.fromkeys(("name", "dir", "cache_dir", "affnist_dir"), "")
  numbers = ("brightness", "contrast", "max_rotation", "max_stretch", "max_shear")
  off = dict.fromkeys(numbers, 0.0) | dict.fromkeys(("normalize", "two_views", "overlay"), False)
  whole = dict.fromkeys(("num_validation", "crop", "max_shift"), 0)
  return DataOptions(**{"canvas": canvas, **texts, **off, **whole, **changes})


def feed_of(dataset: Dataset, canvas: int, **changes: Any) -> Feed:
  """The feed that `build` makes of a data set."""
  options = data_options(canvas, **changes)
  return image_feed(dataset, options)[1]


def toy_config(**changes: Any) -> ConfigDict:
  """A config of the toy system on the embedded digits: 24 steps of 16 examples.

  Args:
    **changes: `section__key=value`.
  """
  config = shared_sections("tests.toy_system")
  config.model = ConfigDict({"num_features": 8, "noise_scale": 0.1, "nan_below": 0.0})
  config.loss = ConfigDict({"image": 1.0, "between": 0.5, "fragile": 1.0, "code_probe": 1.0})
  config.data.update({"canvas": 18, "max_shift": 1})
  config.train.update({"num_steps": 24, "batch_size": 16, "steps_per_dispatch": 4})
  config.train.update(dict.fromkeys(("log_every", "eval_every", "checkpoint_every"), 8))
  schedule = {"schedule": "exponential", "warmup_steps": 2, "decay_steps": 100, "decay_rate": 0.5}
  config.optimizer.update({"name": "rmsprop", "learning_rate": 1e-3, "end_factor": 0.1, **schedule})
  config.optimizer.epsilon = 1e-4
  config.evaluation.update({"batch_size": 32, "max_examples": 100})
  for name, value in changes.items():
    section, key = name.split("__")
    config[section][key] = value
  return config.lock()


def toy_data(side: int = 16, channels: int = 1) -> ImageSpec:
  """The spec of the toy's data."""
  return ImageSpec(canvas=side, channels=channels, num_classes=10)


CONFIG_FILE = """
from tests.toy_system import toy_config


def get_config(preset=""):
  if preset not in ("", "long"):
    raise ValueError(f"preset must be '' or 'long', got {preset!r}")
  return toy_config(train__num_steps=480) if preset else toy_config()
"""
