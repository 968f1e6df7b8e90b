"""Convolutional encoder with a learned bias per position."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn

from scae_jax.layers.sight import Window
from scae_jax.typing import Array, Float, typed

KERNEL = 3
ACTIVATIONS = {"relu": jax.nn.relu, "elu": jax.nn.elu}


def output_side(side: int, strides: Sequence[int]) -> int:
  """Side of the feature map that 3x3 VALID convolutions leave of an image of this side.

  Raises:
    ValueError: nothing would be left; the message walks through the layers.
  """
  sides = [side]
  for stride in strides:
    sides.append(max(0, math.ceil((sides[-1] - KERNEL + 1) / stride)))
    if sides[-1] == 0:
      walk = " -> ".join(str(s) for s in sides)
      raise ValueError(
        f"a canvas of {side} pixels is too small for 3x3 convolutions with strides "
        f"{tuple(strides)}: the feature map shrinks to nothing ({walk}); enlarge "
        "config.data.canvas or lower the strides"
      )
  return sides[-1]


def windows_of(strides: Sequence[int]) -> list[Window]:
  """The layers of a `ConvNet`, for `sight.require_sight`."""
  return [Window(KERNEL, stride) for stride in strides]


@typed
def convolve(
  image: Float[Array, "b h w c"], kernel: Float[Array, "r s c d"], stride: int
) -> Float[Array, "b h2 w2 d"]:
  """VALID convolution (correlation) of images, by what is fastest on the backend.

  XLA's CPU backend runs convolutions inside a `lax.scan` on one thread and without its fast
  kernels (five to ten times slower, and a training step is such a scan), so there a convolution is
  one matrix product over all patches.

  Args:
    image: batch of feature maps.
    kernel: weights, height, width, input and output channels.
    stride: in both directions.
  """
  return jax.lax.platform_dependent(
    image,
    kernel,
    cpu=lambda x, k: convolve_patches(x, k, stride),
    default=lambda x, k: jax.lax.conv_general_dilated(
      x, k, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    ),
  )


@typed
def convolve_patches(
  image: Float[Array, "b h w c"], kernel: Float[Array, "r s c d"], stride: int
) -> Float[Array, "b h2 w2 d"]:
  """The same as one matrix product over the kernel's shifts of the image, side by side."""
  rows, columns, channels, width = kernel.shape
  out_rows = (image.shape[1] - rows) // stride + 1
  out_columns = (image.shape[2] - columns) // stride + 1
  shifts = [
    image[
      :,
      row : row + (out_rows - 1) * stride + 1 : stride,
      column : column + (out_columns - 1) * stride + 1 : stride,
    ]
    for row in range(rows)
    for column in range(columns)
  ]
  patches = jnp.concatenate(shifts, axis=-1)
  return patches @ kernel.reshape(rows * columns * channels, width)


class ConvNet(nn.Module):
  """3x3 VALID convolutions, each with a nonlinearity, then a bias per position and channel.

  Kosiorek et al. 2019, appendix A: the bias lets pooled features know where they come from.

  Attributes:
    widths: channels of each layer.
    strides: stride of each layer, as many as widths.
    compute_dtype: of products and feature maps, such as `bfloat16`; None: that of the image, which
      is the result's in any case.
    activation: the nonlinearity, `relu` or `elu`.
  """

  widths: tuple[int, ...]
  strides: tuple[int, ...]
  compute_dtype: str | None = None
  activation: str = "relu"

  @nn.compact
  @typed
  def __call__(self, image: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 d"]:
    """Features, [b, h', w', last width].

    Raises:
      ValueError: as many strides as widths were expected, or the canvas is too small.
    """
    if len(self.widths) != len(self.strides):
      raise ValueError(f"widths {self.widths} and strides {self.strides} must be equally many")
    output_side(min(image.shape[1:3]), self.strides)
    x = image.astype(self.compute_dtype or image.dtype)
    for i, (width, stride) in enumerate(zip(self.widths, self.strides, strict=True)):
      shape = (KERNEL, KERNEL, x.shape[-1], width)
      kernel = self.param(f"kernel_{i}", nn.initializers.lecun_normal(), shape)
      bias = self.param(f"bias_{i}", nn.initializers.zeros_init(), (width,))
      x = convolve(x, kernel.astype(x.dtype), stride)
      x = ACTIVATIONS[self.activation](x + bias.astype(x.dtype)[None, None, None, :])
    bias = self.param("position_bias", nn.initializers.zeros_init(), x.shape[1:])
    return x.astype(image.dtype) + bias[None]
