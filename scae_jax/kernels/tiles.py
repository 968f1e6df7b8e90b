"""How the kernels cut an image into blocks of pixels, and what else they are compiled for."""

from typing import NamedTuple

import jax.numpy as jnp
from jax.experimental import pallas as pl

from scae_jax.typing import Array

MIN_SIDE = 16  # of a matrix that Triton multiplies


class Sizes(NamedTuple):
  """What the kernels are compiled for."""

  height: int  # of the image, pixels
  width: int  # of the image, pixels
  channels: int  # c of the image; templates have one more, the mixing logits
  side: int  # t of a template, pixels
  scale: float  # standard deviation of a pixel
  block: int  # pixels that a program looks at together
  interpret: bool  # run as JAX operations

  @property
  def tile(self) -> tuple[int, int]:
    """Height and width of a block, as square as powers of two can be."""
    height = 1 << (self.block.bit_length() - 1) // 2
    return height, self.block // height

  @property
  def tiles(self) -> tuple[int, int]:
    """Blocks that cover an image, below and beside each other; the last reach beyond it."""
    height, width = self.tile
    return pl.cdiv(self.height, height), pl.cdiv(self.width, width)

  @property
  def num_blocks(self) -> int:
    """Blocks of an image."""
    return self.tiles[0] * self.tiles[1]

  @property
  def padded_side(self) -> int:
    """Side of a template in the matrix product of its gradient."""
    return max(MIN_SIDE, pl.next_power_of_2(self.side))

  @property
  def padded_channels(self) -> int:
    """Channels of a template there."""
    return pl.next_power_of_2(self.channels + 1)


def by_tile(sizes: Sizes, planes: Array, *, mode: str) -> Array:
  """Pixels [..., h, w] in the order of blocks, [..., p], and more of them beyond the image."""
  (height, width), (below, beside) = sizes.tile, sizes.tiles
  rest = (below * height - sizes.height, beside * width - sizes.width)
  leading = [(0, 0)] * (planes.ndim - 2)
  planes = jnp.pad(planes, (*leading, *((0, n) for n in rest)), mode=mode)
  planes = planes.reshape(*planes.shape[:-2], below, height, beside, width)
  return jnp.swapaxes(planes, -3, -2).reshape(*planes.shape[:-4], -1)


def pixel_grid(sizes: Sizes, dtype: jnp.dtype) -> Array:
  """x, y and 1 of every pixel [3, p]; beyond the image those at its edge, and 0."""
  y, x = jnp.meshgrid(
    jnp.linspace(-1, 1, sizes.height, dtype=dtype),
    jnp.linspace(-1, 1, sizes.width, dtype=dtype),
    indexing="ij",
  )
  places = by_tile(sizes, jnp.stack([x, y]), mode="edge")
  inside = by_tile(sizes, jnp.ones_like(x)[None], mode="constant")
  return jnp.concatenate([places, inside])
