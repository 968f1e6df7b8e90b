"""Convolutional encoder with a learned bias per position."""

import math
from collections.abc import Sequence

import jax
from flax import linen as nn

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
        "config.data.canvas or lower config.model.part_encoder.strides"
      )
  return sides[-1]


class ConvNet(nn.Module):
  """3x3 VALID convolutions, each followed by a ReLU, then a bias per position and channel.

  Kosiorek et al. 2019, appendix A: the bias lets pooled features know where they come from.

  Attributes:
    widths: channels of each layer.
    strides: stride of each layer, as many as widths.
  """

  widths: tuple[int, ...]
  strides: tuple[int, ...]

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
    x = image
    for i, (width, stride) in enumerate(zip(self.widths, self.strides, strict=True)):
      conv = nn.Conv(width, (KERNEL, KERNEL), (stride, stride), "VALID", name=f"conv_{i}")
      x = jax.nn.relu(conv(x))
    bias = self.param("position_bias", nn.initializers.zeros_init(), x.shape[1:])
    return x + bias[None]
