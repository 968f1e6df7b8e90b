"""Convolutions, and an encoder of convolutions with a learned bias for each position."""

import contextlib
import contextvars
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from scae_jax.kernels import frequency_convolution
from scae_jax.kernels.patch_convolutions import ACTIVATIONS, Weights, convolve_patches
from scae_jax.layers.receptive_field import Window, map_side
from scae_jax.typing import Array, Float, typed

KERNEL = 3
PADDINGS = ("valid", "same")
_by_definition = contextvars.ContextVar("by_definition", default=False)


@contextlib.contextmanager
def by_definition() -> Iterator[None]:
  """Within this context, convolutions are XLA's on all platforms and for all batch sizes."""
  token = _by_definition.set(True)
  try:
    yield
  finally:
    _by_definition.reset(token)


def windows_of(strides: Sequence[int]) -> list[Window]:
  """The layers of a `ConvNet`, for `receptive_field.require_receptive_field`."""
  return [Window(KERNEL, stride) for stride in strides]


@typed
def convolve(
  image: Float[Array, "b h w c"], weights: Weights, strides: tuple[int, ...], activation: str
) -> Float[Array, "b h2 w2 d"]:
  """A stack of VALID convolutions (correlations), by the fastest method of the backend.

  Each layer has a kernel [r, r, c, d], a bias [d] and a stride for both directions, followed by the
  activation, a name in `ACTIVATIONS`. ValueError if a kernel is larger than its input.
  """
  layers = zip(weights, strides, strict=True)
  map_side(min(image.shape[1:3]), [Window(len(kernel), stride) for (kernel, _), stride in layers])
  if _by_definition.get():
    return convolve_layers(image, weights, strides, activation)
  return jax.lax.platform_dependent(
    image,
    weights,
    cpu=lambda x, w: _convolve_on_cpu(x, w, strides, activation),
    default=lambda x, w: convolve_layers(x, w, strides, activation),
  )


def _convolve_on_cpu(
  image: Array, weights: Weights, strides: tuple[int, ...], activation: str
) -> Array:
  function, _ = ACTIVATIONS[activation]
  if len(weights) == 1 and frequency_convolution.is_faster(image, weights[0][0], strides[0]):
    kernel, bias = weights[0]
    x = frequency_convolution.convolve_frequencies(image, kernel, strides[0])
    return function(x + bias[None, None, None])
  return convolve_patches(image, weights, strides, activation)


def convolve_layers(
  image: Array, weights: Weights, strides: tuple[int, ...], activation: str
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

  Kosiorek et al. 2019, appendix A: the bias gives pooled features information about positions.
  Without it, an image that moves by the product of the strides moves the map by one cell.
  """

  widths: tuple[int, ...]  # channels of each layer
  strides: tuple[int, ...]  # stride of each layer; as many as widths
  # Type of products and feature maps, such as `bfloat16`; None: that of the image. The result has
  # the type of the image in both cases.
  compute_dtype: str | None = None
  activation: str = "relu"  # the nonlinearity, a name in `ACTIVATIONS`
  position_bias: bool = True

  @nn.compact
  @typed
  def __call__(self, image: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 d"]:
    x = image.astype(self.compute_dtype or image.dtype)
    channels, weights = x.shape[-1], []
    for i, width in enumerate(self.widths):
      shape = (KERNEL, KERNEL, channels, width)
      kernel = self.param(f"kernel_{i}", nn.initializers.lecun_normal(), shape, jnp.float32)
      bias = self.param(f"bias_{i}", nn.initializers.zeros_init(), (width,), jnp.float32)
      weights.append((kernel.astype(x.dtype), bias.astype(x.dtype)))
      channels = width
    x = convolve(x, tuple(weights), self.strides, self.activation)
    x = x.astype(image.dtype)
    if not self.position_bias:
      return x
    zeros = nn.initializers.zeros_init()
    return x + self.param("position_bias", zeros, x.shape[1:], jnp.float32)[None]


def covering_cells(side: int, strides: tuple[int, ...]) -> tuple[tuple[int, int], np.ndarray]:
  """Margins of black around an image, such that the map of a `ConvNet` sees it everywhere alike.

  Every cell whose receptive field has a pixel of the image is then on the map, so an image that is
  moved by the product of the strides moves the map and changes nothing else. Returns the margins
  before and after the image, and the centres of the cells along one side, int [n], all in pixels of
  the image.
  """
  stride, half = 1, 0  # from cell to cell, and from a cell's centre to the end of what it sees
  for layer_stride in strides:
    half += (KERNEL // 2) * stride
    stride *= layer_stride
  first, last = -stride * (half // stride), stride * ((side - 1 + half) // stride)
  return (half - first, last + half - (side - 1)), np.arange(first, last + 1, stride)


def sees_ink(image: Array, strides: tuple[int, ...]) -> Array:
  """Whether the receptive field of each cell of a `ConvNet`'s map has a pixel that is not black.

  Images are [b, h, w, c], the result is bool [b, h2, w2].
  """
  inked = jnp.any(image != 0, axis=3)
  for stride in strides:
    window = (1, KERNEL, KERNEL), (1, stride, stride), "VALID"
    inked = jax.lax.reduce_window(inked, False, jax.lax.bitwise_or, *window)
  return inked


class Convolution(nn.Module):
  """One convolution of any size, without an activation."""

  width: int  # output channels
  kernel: int  # side, pixels; odd where the padding is `same`
  stride: int = 1  # in both directions
  # `valid`, or `same`: padded with zeros that keep the size of the map at stride 1.
  padding: str = "valid"
  bias: bool = True  # whether each channel has a bias
  kernel_init: nn.initializers.Initializer = nn.initializers.lecun_normal()

  @nn.compact
  @typed
  def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 d"]:
    if self.padding == "same":
      margin = self.kernel // 2
      x = jnp.pad(x, ((0, 0), (margin, margin), (margin, margin), (0, 0)))
    shape = (self.kernel, self.kernel, x.shape[-1], self.width)
    kernel, bias = (
      self.param("kernel", self.kernel_init, shape, jnp.float32),
      jnp.zeros(self.width, x.dtype),
    )
    if self.bias:
      bias = self.param("bias", nn.initializers.zeros_init(), (self.width,), jnp.float32)
    return convolve(x, ((kernel, bias),), (self.stride,), "none")
