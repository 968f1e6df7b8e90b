"""From a feature map to one vector a capsule: attention pooling and its two alternatives."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from scae_jax.layers.affine import Affine
from scae_jax.typing import Array, Float, typed


class _Pooling(nn.Module):
  """What all have: the numbers of capsules, and of what each gets."""

  num_capsules: int  # m
  features: int  # d, numbers a capsule


class AttentionPooling(_Pooling):
  """Every capsule looks at the map through its own softmax over positions.

  A 1x1 convolution gives each capsule d numbers and one attention logit a position; the result is
  the sum of the numbers weighted by the softmax of the logits. Kosiorek et al. 2019, appendix A.
  The sum is taken before the convolution, of the map itself, with the same result.
  """

  @nn.compact
  @typed
  def __call__(self, x: Float[Array, "b h w e"]) -> Float[Array, "b m d"]:
    batch, _, _, channels = x.shape
    outputs = (self.num_capsules * (self.features + 1),)
    kernel, bias = Affine((channels,), outputs, name="conv_1x1")()
    kernel = kernel.reshape(channels, self.num_capsules, self.features + 1)
    bias = bias.reshape(self.num_capsules, self.features + 1)
    x = x.reshape(batch, -1, channels)
    attention = jax.nn.softmax(x @ kernel[..., -1] + bias[None, None, :, -1], axis=1)
    seen = jnp.einsum("bpm,bpe->bme", attention, x)
    return jnp.einsum("bme,emd->bmd", seen, kernel[..., :-1]) + bias[None, :, :-1]


class MeanPooling(_Pooling):
  """The ablation without attention: a 1x1 convolution, then the mean over positions."""

  @nn.compact
  @typed
  def __call__(self, x: Float[Array, "b h w e"]) -> Float[Array, "b m d"]:
    # The mean comes first: the convolution is affine.
    x = nn.Dense(self.num_capsules * self.features, name="conv_1x1")(jnp.mean(x, axis=(1, 2)))
    return x.reshape(-1, self.num_capsules, self.features)


class LinearPooling(_Pooling):
  """The ablation with a linear encoder: one fully connected layer on the flattened map."""

  @nn.compact
  @typed
  def __call__(self, x: Float[Array, "b h w e"]) -> Float[Array, "b m d"]:
    x = nn.Dense(self.num_capsules * self.features, name="linear")(x.reshape(x.shape[0], -1))
    return x.reshape(-1, self.num_capsules, self.features)


POOLINGS = {"attention": AttentionPooling, "mean": MeanPooling, "linear": LinearPooling}
