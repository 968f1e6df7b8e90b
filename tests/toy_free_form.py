"""The toy system with probe features and with a free form whose best posterior is known.

For free-form inference each pixel x has a variable z ~ Normal(0, 1) of its own, and is
Normal(z, NOISE). The posterior of z is Normal(x / (1 + NOISE^2), NOISE / sqrt(1 + NOISE^2)), and
the bound that it reaches is log Normal(x; 0, sqrt(1 + NOISE^2)), summed over pixels, whatever is
drawn.
A config names it by `system = "tests.toy_free_form"`.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm

from scae_jax.models.system import Encoding, FreeForm, ImageSpec, System
from tests import toy_system

NOISE = 0.5
START_SCALE = 0.3  # of the encoder
NUM_SAMPLES = 64  # of an estimate of the bound


def make_system(model: dict[str, Any], loss: dict[str, float], data: ImageSpec) -> System:
  """As `toy_system.make_system`; `reconstruction` is read, and starts the posterior's means."""
  system = toy_system.make_system(model, loss, data)

  def encoding(output):
    flat = output.reconstruction.reshape(len(output.reconstruction), -1)
    return Encoding(features={"code": output.code}, probe_features={"reconstruction": flat})

  def encode(variables, batch):
    output = system.module.apply(variables, batch, train=False)
    mean = encoding(output).probe_features["reconstruction"]
    return {"mean": mean, "scale": jnp.full_like(mean, START_SCALE)}

  def prior(variables, batch):
    pixels = batch["image"].reshape(len(batch["image"]), -1)
    return {"mean": jnp.zeros_like(pixels), "scale": jnp.ones_like(pixels)}

  def terms(variables, posterior, batch, key):
    pixels = batch["image"].reshape(len(batch["image"]), -1)
    mean, scale = posterior["mean"][None], posterior["scale"][None]
    z = mean + scale * jax.random.normal(key, (NUM_SAMPLES, *pixels.shape))
    parts = {"pixels": -norm.logpdf(pixels[None], z, NOISE)}
    parts["latents"] = norm.logpdf(z, mean, scale) - norm.logpdf(z)
    return {name: jnp.mean(jnp.sum(part, axis=2), axis=0) for name, part in parts.items()}

  free_form = FreeForm(
    encode=encode,
    prior=prior,
    unconstrain=lambda posterior: posterior | {"scale": jnp.log(posterior["scale"])},
    constrain=lambda free: free | {"scale": jnp.exp(free["scale"])},
    terms=terms,
    encoding=lambda variables, posterior: Encoding(
      object_presence=posterior["mean"], probe_features={"reconstruction": posterior["mean"]}
    ),
  )

  def draw(variables, encoding, part, canvas):
    return encoding.object_presence.reshape(-1, canvas, canvas, 1)

  draws = {"parts": draw}
  return dataclasses.replace(system, encoding=encoding, free_form=free_form, draws=draws)
