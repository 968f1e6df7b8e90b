"""Gaussian mixtures over templates: each pixel is explained by one part or by the background.

Functions take one example. At each pixel a part has a mean (its warped, coloured template) and a
mixing logit. The background has the same mean and logit at all pixels. Kosiorek et al. 2019,
section 2.2.
"""

import jax
import jax.numpy as jnp
from flax import struct

from scae_jax.typing import Array, Float, typed

# Logarithms treat smaller probabilities as this one, with a gradient of zero.
MIN_PROB = 1e-16
HALF_LOG_2PI = 0.9189385332046727


@typed
def safe_log(prob: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
  """log(prob); for prob below 1e-16 the value is log(1e-16) and the gradient 0."""
  small = prob < MIN_PROB
  return jnp.where(small, jnp.log(MIN_PROB), jnp.log(jnp.where(small, 1.0, prob)))


@typed
def normal_log_prob(
  value: Float[Array, "*shape"], mean: Float[Array, "*shape"], scale: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
  """log Normal(value | mean, scale), elementwise; scale > 0."""
  # Not jax.scipy.stats.norm.logpdf, which takes the square of the scale: that underflows.
  return -0.5 * jnp.square((value - mean) / scale) - jnp.log(scale) - HALF_LOG_2PI


@struct.dataclass
class PixelMixture:
  """A mixture at every pixel; the background is the last of the m + 1 components."""

  mean: Float[Array, "n h w c"]  # colour of each component
  log_mixing: Float[Array, "n h w"]  # normalised over components
  scale: Float[Array, ""]  # standard deviation of a pixel, shared


@typed
def pixel_mixture(
  part_mean: Float[Array, "m h w c"],
  part_logits: Float[Array, "m h w"],
  presence: Float[Array, " m"],
  background_mean: Float[Array, ""],
  background_logit: Float[Array, ""],
  scale: Float[Array, ""],
) -> PixelMixture:
  """The mixture of one image: log presence is added to part logits, then all are normalised.

  Logits of parts are warped alphas, or those of coupled mixing (`PartDecoder.mixing`). Presences
  are in [0, 1]. The background's mean is its brightness in all channels.
  """
  height, width, channels = part_mean.shape[1:]
  logits = part_logits + safe_log(presence)[:, None, None]
  mean = jnp.concatenate(
    [part_mean, jnp.broadcast_to(background_mean, (1, height, width, channels))]
  )
  logits = jnp.concatenate([logits, jnp.broadcast_to(background_logit, (1, height, width))])
  return PixelMixture(mean=mean, log_mixing=jax.nn.log_softmax(logits, axis=0), scale=scale)


@typed
def log_prob(mixture: PixelMixture, image: Float[Array, "h w c"]) -> Float[Array, "h w"]:
  """log sum_j mixing_j Normal(pixel | mean_j, scale) at every pixel, channels independent, nats."""
  value = jnp.broadcast_to(image[None], mixture.mean.shape)
  scale = jnp.broadcast_to(mixture.scale, mixture.mean.shape)
  density = jnp.sum(normal_log_prob(value, mixture.mean, scale), axis=-1)
  return jax.nn.logsumexp(mixture.log_mixing + density, axis=0)


@typed
def mode(mixture: PixelMixture) -> Float[Array, "h w c"]:
  """The mean of the component with the largest mixing probability at every pixel."""
  winner = jnp.argmax(mixture.log_mixing, axis=0)
  return jnp.take_along_axis(mixture.mean, winner[None, :, :, None], axis=0)[0]
