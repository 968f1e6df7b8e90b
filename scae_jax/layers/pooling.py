"""Pooling of a feature map to one vector for each capsule."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from scae_jax.layers.affine import Affine
from scae_jax.typing import Array, Bool, Float, typed

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
  def __call__(
    self,
    x: Float[Array, "b h w e"],
    centres: Float[Array, "p 2"] | None = None,
    attended: Bool[Array, "b h w"] | None = None,
  ) -> Float[Array, "b m d"]:
    """The numbers of each capsule and, if the centres of the positions are given, its place.

    Both options are for `attention`.

    Args:
      x: the feature map.
      centres: the centre of each of the p = h w positions.
      attended: the positions that may be attended to; if an example has none, all may.

    Returns:
      The numbers of each capsule; with `centres` two more, their mean weighted by the attention.
    """
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
    logits = x @ kernel[..., -1] + bias[None, None, :, -1]
    if attended is not None:
      attended = attended.reshape(batch, -1, 1)
      attended = attended | ~jnp.any(attended, axis=1, keepdims=True)
      logits = jnp.where(attended, logits, -jnp.inf)
    attention = jax.nn.softmax(logits, axis=1)
    pooled = jnp.einsum("bpm,bpe->bme", attention, x)
    numbers = jnp.einsum("bme,emd->bmd", pooled, kernel[..., :-1]) + bias[None, :, :-1]
    if centres is None:
      return numbers
    return jnp.concatenate([numbers, jnp.einsum("bpm,pt->bmt", attention, centres)], axis=-1)
