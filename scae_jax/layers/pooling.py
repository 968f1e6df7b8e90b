"""From a feature map to one vector a capsule: attention pooling and its two alternatives."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from scae_jax.typing import Array, Float, typed


class AttentionPooling(nn.Module):
  """Every capsule looks at the map through its own softmax over positions.

  A 1x1 convolution gives each capsule d numbers and one attention logit a position; the result
  is the sum of the numbers weighted by the softmax of the logits over positions. Kosiorek et al.
  2019, appendix A.

  Attributes:
    num_capsules: m.
    features: d, numbers a capsule.
  """

  num_capsules: int
  features: int

  @nn.compact
  @typed
  def __call__(self, x: Float[Array, "b h w e"]) -> Float[Array, "b m d"]:
    batch, height, width, _ = x.shape
    x = nn.Dense(self.num_capsules * (self.features + 1), name="conv_1x1")(x)
    x = x.reshape(batch, height * width, self.num_capsules, self.features + 1)
    attention = jax.nn.softmax(x[..., -1], axis=1)
    return jnp.einsum("bpm,bpmd->bmd", attention, x[..., :-1])


class MeanPooling(nn.Module):
  """The ablation without attention: a 1x1 convolution, then the mean over positions.

  Attributes:
    num_capsules: m.
    features: d, numbers a capsule.
  """

  num_capsules: int
  features: int

  @nn.compact
  @typed
  def __call__(self, x: Float[Array, "b h w e"]) -> Float[Array, "b m d"]:
    x = nn.Dense(self.num_capsules * self.features, name="conv_1x1")(x)
    return jnp.mean(x, axis=(1, 2)).reshape(-1, self.num_capsules, self.features)


class LinearPooling(nn.Module):
  """The ablation with a linear encoder: one fully connected layer on the flattened map.

  Attributes:
    num_capsules: m.
    features: d, numbers a capsule.
  """

  num_capsules: int
  features: int

  @nn.compact
  @typed
  def __call__(self, x: Float[Array, "b h w e"]) -> Float[Array, "b m d"]:
    x = nn.Dense(self.num_capsules * self.features, name="linear")(x.reshape(x.shape[0], -1))
    return x.reshape(-1, self.num_capsules, self.features)


POOLINGS = {"attention": AttentionPooling, "mean": MeanPooling, "linear": LinearPooling}
