"""A convolution as products of frequencies: the form for a CPU where the kernel is large.

By the convolution theorem a frequency of the result is a matrix product, over channels, of those of
image and kernel. There are fewer frequencies than pairs of a position and a pixel of the kernel.
Three products of real sums take the place of a complex one (Gauss). With a stride s, an image is
s^2 images of every s-th row and column, as further channels. Image, kernel and result are
multiplied with constant matrices, so gradients are matrix products too.
"""

import functools
import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from scae_jax.typing import Array, Float, typed

MIN_KERNEL = 2**20  # numbers; a smaller kernel stays in a cache
Sides = tuple[int, ...]


class Grid(NamedTuple):
  """Rows and columns where every s-th pixel is one image."""

  positions: Sides  # of the result
  taps: Sides  # pixels of the kernel
  period: Sides  # pixels of the image that the kernel sees; the image may repeat itself after them


def grid_of(image: Array, kernel: Array, stride: int) -> Grid:
  """Of an image [b, h, w, c] and a kernel [r, r2, c, d]."""
  sides = list(zip(image.shape[1:3], kernel.shape[:2], strict=True))
  positions = tuple((side - taps) // stride + 1 for side, taps in sides)
  taps = tuple(math.ceil(taps / stride) for _, taps in sides)
  return Grid(positions, taps, tuple(p + t - 1 for p, t in zip(positions, taps, strict=True)))


def is_faster(image: Array, kernel: Array, stride: int) -> bool:
  """Whether the kernel is large, and this takes fewer multiplications than the convolution."""
  grid, batch = grid_of(image, kernel, stride), len(image)
  channels, width = stride**2 * kernel.shape[2], kernel.shape[3]
  positions, taps, period = map(math.prod, grid)
  of_each = (
    batch * period * channels + (taps + batch) * channels * width + batch * positions * width
  )
  ours = num_products(grid.period) * of_each
  return kernel.size > MIN_KERNEL and ours < batch * positions * kernel.size


def num_products(period: Sides) -> int:
  """One for a frequency that is its own opposite, three for two that are each other's."""
  alone = math.prod(2 - side % 2 for side in period)
  return alone + 3 * (math.prod(period) - alone) // 2


@functools.cache
def _matrices(grid: Grid) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """For pixels of the image [n, period], pixels of the kernel [n, taps], and the way back.

  The last one, [positions, n], is for the products of both.
  """
  rows, columns = grid.period
  number = np.arange(rows * columns).reshape(rows, columns)
  opposite = np.roll(number[::-1, ::-1], (1, 1), axis=(0, 1))
  kept = number <= opposite
  pair = (number < opposite)[kept]

  def waves(sides: Sides) -> np.ndarray:
    """[frequencies, pixels], complex."""
    pixels = np.eye(math.prod(sides)).reshape(-1, *sides)
    return np.fft.fft2(pixels, s=grid.period)[:, kept].T

  def sums(z: np.ndarray) -> np.ndarray:
    real, imag = np.real(z), np.imag(z)
    return np.concatenate([real, imag[pair], (real + imag)[pair]])

  # With products a, b and c of these sums, a frequency is a - b + i (c - a - b).
  back = np.conj(waves(grid.positions)) * np.where(pair, 2, 1)[:, None] / number.size
  real, imag = np.real(back), np.imag(back)
  products = [real + imag, (imag - real)[pair], -imag[pair]]
  return sums(waves(grid.period)), sums(np.conj(waves(grid.taps))), np.concatenate(products).T


def _every(x: Array, sides: Sides, stride: int) -> Array:
  """[h, w, b, c] as [h' w', b s s c]: every s-th pixel of h' s rows and w' s columns.

  Rows and columns that x does not have are zero.
  """
  rows, columns = (side * stride for side in sides)
  x = x[:rows, :columns]
  x = jnp.pad(x, ((0, rows - x.shape[0]), (0, columns - x.shape[1]), (0, 0), (0, 0)))
  x = x.reshape(sides[0], stride, sides[1], stride, *x.shape[2:])
  return x.transpose(0, 2, 4, 1, 3, 5).reshape(math.prod(sides), -1)


@typed
def convolve_frequencies(
  image: Float[Array, "b h w c"], kernel: Float[Array, "r r2 c d"], stride: int
) -> Float[Array, "b h2 w2 d"]:
  """The VALID convolution (correlation), with a stride in both directions."""
  grid = grid_of(image, kernel, stride)
  of_image, of_kernel, back = (jnp.asarray(m, jnp.float32) for m in _matrices(grid))
  batch, (*taps, channels, width) = len(image), kernel.shape
  images = of_image @ _every(image.transpose(1, 2, 0, 3), grid.period, stride)
  kernels = of_kernel @ _every(kernel.reshape(*taps, 1, -1), grid.taps, stride)
  products = jnp.einsum(
    "nbc,ncd->nbd",
    images.reshape(-1, batch, stride**2 * channels),
    kernels.reshape(-1, stride**2 * channels, width),
  )
  result = jnp.einsum("pn,nbd->bpd", back, products).astype(image.dtype)
  return result.reshape(batch, *grid.positions, width)
