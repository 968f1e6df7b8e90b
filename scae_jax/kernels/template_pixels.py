"""What one program of `template_likelihood` does: a block of pixels, and one part after the other.

Bodies of Pallas kernels, in the subset of JAX that Triton knows: arrays are powers of two, are
neither cut nor joined, and only memory can be read at computed places.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from scae_jax.typing import Array

MIN_SIDE = 16  # of a matrix that Triton multiplies
# Numbers of an inverse pose, row by row.
POSE_SIZE = 6


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


class Sample(NamedTuple):
  """One channel of a template at every pixel of a block, [p] each."""

  value: Array  # bilinear, zero outside
  down: Array  # its slope along the rows of the template, per template pixel; zero outside
  right: Array  # and along the columns


def forward_kernel(
  grid: Any,  # [3, p], x, y and 1 of each pixel
  tables: Any,  # [m, n, (t + 3)^2], templates between rings of zeros
  background: Any,  # [2], mean and logit
  inverse: Any,  # [m, 6], inverse poses
  colours: Any,  # [m, c]
  log_presence: Any,  # [m]
  pixels: Any,  # [c, p], the image
  mixing: Any,  # [p], result, the first of the sums
  joint: Any,  # [p], result, the second
  *,
  sizes: Sizes,
) -> None:
  """Log sums of exp(logit) and of exp(logit + log density) over parts and background.

  Log densities are without their constant.
  """
  x, y = grid[0, :], grid[1, :]
  image = [pixels[channel, :] for channel in range(sizes.channels)]

  def visit(part: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
    rows, columns = _position([inverse[part, i] for i in range(POSE_SIZE)], x, y, sizes)
    *template, alpha = _samples(lambda c, place: tables[part, c, place], rows, columns, sizes)
    means = [colours[part, i] * sample.value for i, sample in enumerate(template)]
    logit = alpha.value + log_presence[part]
    joint_logit = logit + _log_density(image, means, sizes)
    largest, total, largest_joint, total_joint = sums
    return *_add_exp(largest, total, logit), *_add_exp(largest_joint, total_joint, joint_logit)

  ones = jnp.ones_like(x)
  logit = background[1] * ones
  first = logit + _log_density(image, [background[0]] * sizes.channels, sizes)
  largest, total, largest_joint, total_joint = jax.lax.fori_loop(
    0, log_presence.shape[0], visit, (logit, ones, first, ones)
  )
  mixing[:] = largest + jnp.log(total)
  joint[:] = largest_joint + jnp.log(total_joint)


def backward_kernel(
  grid: Any,  # [3, p], x, y and 1 of each pixel, zeros beyond the image
  tables: Any,  # [n, (t + 3)^2], the part's template between rings of zeros
  inverse: Any,  # [6], inverse pose
  colours: Any,  # [c]
  log_presence: Any,  # [1]
  pixels: Any,  # [c, p], the image
  mixing: Any,  # [p], of the forward pass
  joint: Any,  # [p], of the forward pass
  gradient: Any,  # [1], of the image's log-likelihood
  of_part: Any,  # [6 + 1 + c], result: of inverse pose, logit and colours
  of_bank: Any,  # [n padded * t padded, t padded], result: of the template, channel below channel
  *,
  sizes: Sizes,
) -> None:
  """Gradients of one part of one image, in steps of a block of pixels."""
  pose = [inverse[i] for i in range(POSE_SIZE)]
  colour = [colours[i] for i in range(sizes.channels)]
  half = (sizes.side - 1) / 2

  def visit(step: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
    block = pl.ds(step * sizes.block, sizes.block)
    x, y, weight = grid[0, block], grid[1, block], grid[2, block] * gradient[0]
    rows, columns = _position(pose, x, y, sizes)
    samples = _samples(lambda c, place: tables[c, place], rows, columns, sizes)
    *template, alpha = samples
    image = [pixels[channel, block] for channel in range(sizes.channels)]
    means = [shade * sample.value for shade, sample in zip(colour, template, strict=True)]
    logit = alpha.value + log_presence[0]
    posterior = probability(logit + _log_density(image, means, sizes) - joint[block])
    of_logit = weight * (posterior - probability(logit - mixing[block]))
    of_means = [
      weight * posterior * ((value - mean) / sizes.scale) / sizes.scale
      for value, mean in zip(image, means, strict=True)
    ]
    of_colours = [
      of_mean * sample.value for of_mean, sample in zip(of_means, template, strict=True)
    ]
    of_values = [of_mean * shade for of_mean, shade in zip(of_means, colour, strict=True)]
    of_values.append(of_logit)
    sampled = list(zip(of_values, samples, strict=True))
    of_rows = half * sum(of_value * sample.down for of_value, sample in sampled)
    of_columns = half * sum(of_value * sample.right for of_value, sample in sampled)
    of_pose = [of_columns * x, of_columns * y, of_columns, of_rows * x, of_rows * y, of_rows]
    numbers = [
      total + term for total, term in zip(sums[:-1], (*of_pose, of_logit, *of_colours), strict=True)
    ]

    def add_product(matrix: Array) -> Array:
      return matrix + _template_gradient(rows, columns, of_values, sizes.padded_side)

    # Most blocks see nothing of a part, and the product is most of the work.
    touched = _touches(rows, columns, sizes)
    return *numbers, jax.lax.cond(touched, add_product, lambda matrix: matrix, sums[-1])

  zeros = jnp.zeros(sizes.block, of_bank.dtype)
  matrix = jnp.zeros(of_bank.shape, of_bank.dtype)
  *numbers, matrix = jax.lax.fori_loop(
    0, sizes.num_blocks, visit, (*([zeros] * of_part.shape[0]), matrix)
  )
  for i, number in enumerate(numbers):
    of_part[i] = jnp.sum(number)
  of_bank[:, :] = matrix


def _template_gradient(rows: Array, columns: Array, gradients: list[Array], side: int) -> Array:
  """Gradient of every channel of a template, one below the other, [n * side, side].

  A pixel p that looks at (row_p, column_p) reads template pixel (i, j) with the weight tent(row_p -
  i) tent(column_p - j), tent(x) = [1 - |x|]+. With gradients G_p of what was read, the template's
  is sum_p tent(row_p - i) G_p tent(column_p - j), a matrix product, always in the same order. The
  number of channels is filled up to n, a power of two.
  """
  line = jax.lax.iota(jnp.int32, pl.next_power_of_2(len(gradients)) * side)
  channel, row = line // side, (line % side).astype(rows.dtype)
  gradient = jnp.zeros((line.shape[0], rows.shape[0]), rows.dtype)
  for number, values in enumerate(gradients):
    gradient = jnp.where(channel[:, None] == number, values[None, :], gradient)
  column = jax.lax.iota(jnp.int32, side).astype(rows.dtype)
  left = _tent(rows[None, :] - row[:, None]) * gradient
  return jnp.matmul(left, _tent(columns[:, None] - column[None, :]), precision="highest")


def _tent(distance: Array) -> Array:
  return jnp.maximum(1.0 - jnp.abs(distance), 0.0)


def probability(log_prob: Array) -> Array:
  """exp; at most 1, which a difference of large logits, rounded twice, would not be."""
  return jnp.exp(jnp.minimum(log_prob, 0.0))


def _position(pose: list[Array], x: Array, y: Array, sizes: Sizes) -> tuple[Array, Array]:
  """Row and column in the template of each pixel; see `warping.template_position`."""
  half = (sizes.side - 1) / 2
  columns = (pose[0] * x + pose[1] * y + pose[2] + 1) * half
  rows = (pose[3] * x + pose[4] * y + pose[5] + 1) * half
  return rows, columns


def _samples(look_up: Any, rows: Array, columns: Array, sizes: Sizes) -> list[Sample]:
  """Every channel of a template at these positions, mixing logits last; see `warping`."""
  stride = sizes.side + 3
  down, right = (jnp.clip(position, -1.0, sizes.side) + 1.0 for position in (rows, columns))
  row, column = jnp.floor(down), jnp.floor(right)
  down, right = down - row, right - column
  place = row.astype(jnp.int32) * stride + column.astype(jnp.int32)
  # A pose that is not a number must end in a loss that is none, not in a forbidden address.
  place = jnp.clip(place, 0, stride * (stride - 1) - 2)
  inside_rows, inside_columns = (
    (position > -1) & (position < sizes.side) for position in (rows, columns)
  )
  samples = []
  for channel in range(sizes.channels + 1):
    top_left, top_right, low_left, low_right = (
      look_up(channel, place + offset) for offset in (0, 1, stride, stride + 1)
    )
    across, low_across = top_right - top_left, low_right - low_left
    along, right_along = low_left - top_left, low_right - top_right
    top, low = top_left + right * across, low_left + right * low_across
    samples.append(
      Sample(
        value=top + down * (low - top),
        down=jnp.where(inside_rows, along + right * (right_along - along), 0.0),
        right=jnp.where(inside_columns, across + down * (low_across - across), 0.0),
      )
    )
  return samples


def _touches(rows: Array, columns: Array, sizes: Sizes) -> Array:
  """Whether any of the positions is inside the template, or is NaN."""
  outside = (rows <= -1) | (rows >= sizes.side) | (columns <= -1) | (columns >= sizes.side)
  return jnp.min(outside.astype(jnp.int32)) == 0


def _log_density(image: list[Array], means: list[Array], sizes: Sizes) -> Array:
  """Log density of a pixel, without the constant -c log(scale sqrt(2 pi))."""
  errors = [(value - mean) / sizes.scale for value, mean in zip(image, means, strict=True)]
  return -0.5 * sum((jnp.square(error) for error in errors[1:]), start=jnp.square(errors[0]))


def _add_exp(largest: Array, total: Array, term: Array) -> tuple[Array, Array]:
  """Running log-sum-exp: the sum so far is total * exp(largest)."""
  smaller = jnp.exp(-jnp.abs(largest - term))
  above = term > largest
  return jnp.maximum(largest, term), jnp.where(above, total * smaller + 1.0, total + smaller)
