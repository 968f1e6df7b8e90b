"""Single convolutions of any size, of which supervised networks are made."""

import jax.numpy as jnp
from flax import linen as nn

from scae_jax.layers.convnet import convolve
from scae_jax.typing import Array, Float, typed

PADDINGS = ("valid", "same")


class Convolution(nn.Module):
  """One convolution, without an activation."""

  width: int  # output channels
  kernel: int  # side, pixels; odd where the padding is `same`
  stride: int = 1  # in both directions
  # `valid`, or `same`: zeros around the map, as many as keep its size at stride 1.
  padding: str = "valid"
  bias: bool = True  # whether there is one, a number a channel
  kernel_init: nn.initializers.Initializer = nn.initializers.lecun_normal()

  @nn.compact
  @typed
  def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 d"]:
    if self.padding == "same":
      margin = self.kernel // 2
      x = jnp.pad(x, ((0, 0), (margin, margin), (margin, margin), (0, 0)))
    shape = (self.kernel, self.kernel, x.shape[-1], self.width)
    kernel, bias = self.param("kernel", self.kernel_init, shape), jnp.zeros(self.width, x.dtype)
    if self.bias:
      bias = self.param("bias", nn.initializers.zeros_init(), (self.width,))
    return convolve(x, ((kernel, bias),), (self.stride,), "none")
