"""Single convolutions and pooling of any size, of which supervised networks are made."""

import jax.numpy as jnp
from flax import linen as nn

from scae_jax.layers.convnet import convolve
from scae_jax.typing import Array, Float, typed

PADDINGS = ("valid", "same")


def convolved_side(side: int, kernel: int, stride: int, what: str) -> int:
  """Side of what a VALID convolution leaves of a map of this side.

  Args:
    side: of the map, pixels.
    kernel: of the convolution, pixels.
    stride: of the convolution.
    what: name of the layer, for the error.

  Raises:
    ValueError: nothing would be left.
  """
  if side < kernel:
    raise ValueError(
      f"{what} has a kernel of {kernel}x{kernel}, and the map that it sees is {side} wide or high:"
      " nothing would be left of it. Enlarge config.data.canvas, or lower the model's kernels."
    )
  return (side - kernel) // stride + 1


class Convolution(nn.Module):
  """One convolution, without an activation.

  Attributes:
    width: output channels.
    kernel: side, pixels; odd where the padding is `same`.
    stride: in both directions.
    padding: `valid`, or `same`: zeros around the map, as many as keep its size at stride 1.
    bias: whether there is one, a number a channel.
    kernel_init: initialiser of the kernel [r, s, c, d].
  """

  width: int
  kernel: int
  stride: int = 1
  padding: str = "valid"
  bias: bool = True
  kernel_init: nn.initializers.Initializer = nn.initializers.lecun_normal()

  @nn.compact
  @typed
  def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 d"]:
    """The feature map.

    Raises:
      ValueError: an even kernel with padding `same`, or a map smaller than the kernel.
    """
    if self.padding == "same":
      if self.kernel % 2 == 0:
        raise ValueError(f"padding 'same' takes an odd kernel, got {self.kernel}")
      margin = self.kernel // 2
      x = jnp.pad(x, ((0, 0), (margin, margin), (margin, margin), (0, 0)))
    convolved_side(min(x.shape[1:3]), self.kernel, self.stride, f"the convolution {self.name!r}")
    shape = (self.kernel, self.kernel, x.shape[-1], self.width)
    kernel, bias = self.param("kernel", self.kernel_init, shape), jnp.zeros(self.width, x.dtype)
    if self.bias:
      bias = self.param("bias", nn.initializers.zeros_init(), (self.width,))
    return convolve(x, ((kernel, bias),), (self.stride,), "none")


@typed
def average_pool(x: Float[Array, "b h w c"], side: int) -> Float[Array, "b h2 w2 c"]:
  """Means of squares of side x side pixels next to each other; a rest at the far ends is dropped.

  Raises:
    ValueError: the map is smaller than a square.
  """
  batch, height, width, channels = x.shape
  rows, columns = height // side, width // side
  if rows == 0 or columns == 0:
    raise ValueError(
      f"pooling over {side}x{side} pixels needs a map that large, got {height}x{width}; enlarge"
      " config.data.canvas"
    )
  x = x[:, : rows * side, : columns * side]
  return jnp.mean(x.reshape(batch, rows, side, columns, side, channels), axis=(2, 4))
