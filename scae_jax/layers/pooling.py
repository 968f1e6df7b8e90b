"""Pooling of a feature map to one vector for each capsule."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from scae_jax.layers.affine import Affine
from scae_jax.typing import Array, Float, typed

POOLINGS = ("attention", "mean", "linear")


class Pooling(nn.Module):
  """Attention pooling, and its two alternatives.

  `attention`: each capsule has its own softmax over positions. A 1x1 convolution gives each capsule
  d numbers and one attention logit at each position. The result is the sum of the numbers over
  positions, weighted by the softmax of the logits. Kosiorek et al. 2019, appendix A. The weighted
  sum is taken of the map, before the convolution, with the same result.

  `mean`: the ablation without attention, a 1x1 convolution and then the mean over positions.
  `linear`: the ablation with a linear encoder, one fully connected layer on the flattened map.
  """

  kind: str  # one of `POOLINGS`
  num_capsules: int  # m
  features: int  # d, numbers of each capsule

  @nn.compact
  @typed
  def __call__(self, x: Float[Array, "b h w e"]) -> Float[Array, "b m d"]:
    batch, _, _, channels = x.shape
    if self.kind != "attention":
      # The mean comes first: the convolution is affine.
      x = jnp.mean(x, axis=(1, 2)) if self.kind == "mean" else x.reshape(batch, -1)
      name = "conv_1x1" if self.kind == "mean" else "linear"
      x = nn.Dense(self.num_capsules * self.features, name=name)(x)
      return x.reshape(-1, self.num_capsules, self.features)
    outputs = (self.num_capsules * (self.features + 1),)
    kernel, bias = Affine((channels,), outputs, name="conv_1x1")()
    kernel = kernel.reshape(channels, self.num_capsules, self.features + 1)
    bias = bias.reshape(self.num_capsules, self.features + 1)
    x = x.reshape(batch, -1, channels)
    attention = jax.nn.softmax(x @ kernel[..., -1] + bias[None, None, :, -1], axis=1)
    pooled = jnp.einsum("bpm,bpe->bme", attention, x)
    return jnp.einsum("bme,emd->bmd", pooled, kernel[..., :-1]) + bias[None, :, :-1]
