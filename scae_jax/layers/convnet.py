"""Convolutional encoder with a learned bias per position."""

import math
from collections.abc import Sequence

import jax
from flax import linen as nn

from scae_jax.kernels.patch_convolutions import ACTIVATIONS, convolve_patches
from scae_jax.layers.sight import Window
from scae_jax.typing import Array, Float, typed

KERNEL = 3


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
  image: Float[Array, "b h w c"],
  weights: tuple[tuple[Array, Array], ...],
  strides: tuple[int, ...],
  activation: str,
) -> Float[Array, "b h2 w2 d"]:
  """VALID convolutions (correlations) one after another, by what is fastest on the backend.

  Args:
    image: batch of images or feature maps.
    weights: kernel [r, s, c, d] and bias [d] of each layer.
    strides: of each layer, in both directions.
    activation: after each layer, a name in `ACTIVATIONS`.
  """
  return jax.lax.platform_dependent(
    image,
    weights,
    cpu=lambda x, w: convolve_patches(x, w, strides, activation),
    default=lambda x, w: convolve_layers(x, w, strides, activation),
  )


def convolve_layers(
  image: Array,
  weights: tuple[tuple[Array, Array], ...],
  strides: tuple[int, ...],
  activation: str,
) -> Array:
  """The definition of `convolve`, by XLA's convolutions."""
  function, _ = ACTIVATIONS[activation]
  for (kernel, bias), stride in zip(weights, strides, strict=True):
    image = jax.lax.conv_general_dilated(
      image, kernel, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    image = function(image + bias[None, None, None])
  return image


class ConvNet(nn.Module):
  """3x3 VALID convolutions, each with a nonlinearity, then a bias per position and channel.

  Kosiorek et al. 2019, appendix A: the bias lets pooled features know where they come from.

  Attributes:
    widths: channels of each layer.
    strides: stride of each layer, as many as widths.
    compute_dtype: of products and feature maps, such as `bfloat16`; None: that of the image, which
      is the result's in any case.
    activation: the nonlinearity, a name in `ACTIVATIONS`.
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
    channels, weights = x.shape[-1], []
    for i, width in enumerate(self.widths):
      shape = (KERNEL, KERNEL, channels, width)
      kernel = self.param(f"kernel_{i}", nn.initializers.lecun_normal(), shape)
      bias = self.param(f"bias_{i}", nn.initializers.zeros_init(), (width,))
      weights.append((kernel.astype(x.dtype), bias.astype(x.dtype)))
      channels = width
    x = convolve(x, tuple(weights), self.strides, self.activation)
    bias = self.param("position_bias", nn.initializers.zeros_init(), x.shape[1:])
    return x.astype(image.dtype) + bias[None]
