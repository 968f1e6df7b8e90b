"""Multi-layer perceptrons, shared by all capsules or separate for each."""

import jax
from flax import linen as nn

from scae_jax.typing import Array, Float, typed


class MLP(nn.Module):
  """Dense layers with ReLU between them and none after the last."""

  widths: tuple[int, ...]  # outputs of each layer; the last is the result
  last_bias: bool = True  # whether the last layer has a bias

  @nn.compact
  @typed
  def __call__(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch e"]:
    for i, width in enumerate(self.widths):
      last = i == len(self.widths) - 1
      x = nn.Dense(width, use_bias=self.last_bias or not last, name=f"dense_{i}")(x)
      if not last:
        x = jax.nn.relu(x)
    return x


class CapsuleMLP(nn.Module):
  """MLPs of the same shape with separate weights for each capsule."""

  widths: tuple[int, ...]  # outputs of each layer
  last_bias: bool = True  # whether the last layer has a bias

  @nn.compact
  @typed
  def __call__(self, x: Float[Array, "b k d"]) -> Float[Array, "b k e"]:
    capsules = nn.vmap(
      MLP,
      in_axes=1,
      out_axes=1,
      axis_size=x.shape[1],
      variable_axes={"params": 0},
      split_rngs={"params": True},
    )
    return capsules(self.widths, self.last_bias, name="capsules")(x)
