"""Convolution in the frequency domain: the fastest form for large kernels on a CPU.

By the convolution theorem each frequency of the result is a matrix product over channels of image
and kernel at that frequency. There are fewer frequencies than pairs of a position and a kernel
pixel. A complex product takes three products of real sums (Gauss). With a stride s, an image is
treated as s^2 images of every s-th row and column, as further channels. The transforms are products
with constant matrices, so gradients are matrix products too.
"""

import functools
import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from scae_jax.typing import Array, Float, typed

MIN_KERNEL = 2**20  # numbers; smaller kernels fit into a cache
Sides = tuple[int, ...]


class Grid(NamedTuple):
  """Numbers of rows and columns if every s-th pixel makes one image."""

  positions: Sides  # of the result
  taps: Sides  # pixels of the kernel
  period: Sides  # pixels of the image that the kernel sees; the period of the transform


def grid_of(image: Array, kernel: Array, stride: int) -> Grid:
  """The grid for an image [b, h, w, c] and a kernel [r, r2, c, d]."""
  sides = list(zip(image.shape[1:3], kernel.shape[:2], strict=True))
  positions = tuple((side - taps) // stride + 1 for side, taps in sides)
  taps = tuple(math.ceil(taps / stride) for _, taps in sides)
  return Grid(positions, taps, tuple(p + t - 1 for p, t in zip(positions, taps, strict=True)))


def is_faster(image: Array, kernel: Array, stride: int) -> bool:
  """Whether the kernel is large and frequencies take fewer multiplications than a convolution."""
  grid, batch = grid_of(image, kernel, stride), len(image)
  channels, width = stride**2 * kernel.shape[2], kernel.shape[3]
  positions, taps, period = map(math.prod, grid)
  products_per_frequency = (
    batch * period * channels + (taps + batch) * channels * width + batch * positions * width
  )
  multiplications = num_products(grid.period) * products_per_frequency
  return kernel.size > MIN_KERNEL and multiplications < batch * positions * kernel.size


def num_products(period: Sides) -> int:
  """Number of real products: one for each real frequency, three for each conjugate pair."""
  num_real = math.prod(2 - side % 2 for side in period)
  return num_real + 3 * (math.prod(period) - num_real) // 2


@functools.cache
def _matrices(grid: Grid) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Transforms of the image [n, period] and of the kernel [n, taps], and the inverse transform.

  The inverse, [positions, n], is applied to the n products of both.
  """
  rows, columns = grid.period
  number = np.arange(rows * columns).reshape(rows, columns)
  opposite = np.roll(number[::-1, ::-1], (1, 1), axis=(0, 1))
  kept = number <= opposite
  pair = (number < opposite)[kept]

  def waves(sides: Sides) -> np.ndarray:
    """The Fourier matrix [frequencies, pixels], complex, without conjugate duplicates."""
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

  Missing rows and columns are zero.
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
  matrices = (jnp.asarray(matrix, jnp.float32) for matrix in _matrices(grid))
  image_transform, kernel_transform, inverse = matrices
  batch, (*taps, channels, width) = len(image), kernel.shape
  images = image_transform @ _every(image.transpose(1, 2, 0, 3), grid.period, stride)
  kernels = kernel_transform @ _every(kernel.reshape(*taps, 1, -1), grid.taps, stride)
  products = jnp.einsum(
    "nbc,ncd->nbd",
    images.reshape(-1, batch, stride**2 * channels),
    kernels.reshape(-1, stride**2 * channels, width),
  )
  result = jnp.einsum("pn,nbd->bpd", inverse, products).astype(image.dtype)
  return result.reshape(batch, *grid.positions, width)
