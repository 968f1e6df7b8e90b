"""Template warping: bilinear resampling of templates under poses.

Corners are aligned: pixel 0 is at -1 and the last at +1, in templates and in images. A template is
zero outside; within one pixel of its outermost pixel centres it falls to zero linearly, so that the
result is continuous in the pose.

`warp_template` is the definition, for one template. `warp_templates` warps a bank that all examples
share, with the same result, by one of two methods.
"""

import jax
import jax.numpy as jnp

from scae_jax.math import geometry
from scae_jax.typing import Array, Float, Int, typed

# Methods of `warp_templates`; results and gradients are equal up to rounding.
METHODS = ("gather", "products")


@typed
def template_position(
  pose: Float[Array, "2 3"], side: int, height: int, width: int
) -> tuple[Float[Array, "h w"], Float[Array, "h w"]]:
  """The position in a template that each pixel of an image samples: pose^-1 of the pixel.

  Returns rows and columns, in template pixels; 0 is the centre of the first pixel.
  """
  y, x = jnp.meshgrid(jnp.linspace(-1, 1, height), jnp.linspace(-1, 1, width), indexing="ij")
  grid = jnp.stack([x, y, jnp.ones_like(x)]).reshape(3, height * width)
  inverse = geometry.invert(pose)

  def coordinate(row: Array) -> Array:
    # One matrix product for all poses of a batch, and one for its gradient. In full precision: the
    # lower default of an accelerator would move a template by a tenth of a pixel.
    position = jnp.matmul(row, grid, precision="highest")
    return ((position + 1) * ((side - 1) / 2)).reshape(height, width)

  columns, rows = coordinate(inverse[0]), coordinate(inverse[1])
  return rows, columns


@typed
def sample_bilinear(
  template: Float[Array, "t t c"], rows: Float[Array, "h w"], columns: Float[Array, "h w"]
) -> Float[Array, "h w c"]:
  """Template values at fractional positions, in template pixels; bilinear, zero outside."""
  index, down, right = locate(template.shape[0], rows, columns)
  packed = _neighbours(template).at[index].get(mode="clip")
  down, right = down[..., None], right[..., None]
  top_left, top_right, low_left, low_right = jnp.split(packed, 4, axis=-1)
  top = top_left + right * (top_right - top_left)
  low = low_left + right * (low_right - low_left)
  return top + down * (low - top)


@typed
def warp_template(
  template: Float[Array, "t t c"], pose: Float[Array, "2 3"], height: int, width: int
) -> Float[Array, "h w c"]:
  """One template as it appears in an image: pixel p has the template's value at pose^-1 p."""
  rows, columns = template_position(pose, template.shape[0], height, width)
  return sample_bilinear(template, rows, columns)


@typed
def warp_templates(
  templates: Float[Array, "m t t c"],
  poses: Float[Array, "b m 2 3"],
  height: int,
  width: int,
  method: str | None = None,
) -> Float[Array, "b m h w c"]:
  """Every template of a shared bank, warped by its pose in every example.

  It is `warp_template` vmapped, with a faster gradient. `gather`: the backward pass gathers the
  corners again instead of storing them, and adds to the bank in one scatter of packed shares.
  `products`: matrix products, without gather or scatter. None: `products` on a TPU, where it is
  expected to be faster (no TPU was measured), otherwise `gather`, which is faster on a CPU and on
  an H100 (results/benchmarks). ValueError for another method.
  """
  method = method or ("products" if jax.default_backend() == "tpu" else "gather")
  if method not in METHODS:
    raise ValueError(f"no method {method!r}; expected one of {', '.join(METHODS)}")

  def position(pose: Array) -> tuple[Array, Array]:
    return template_position(pose, templates.shape[1], height, width)

  rows, columns = jax.vmap(jax.vmap(position))(poses)
  if method == "products":
    return _sample_by_products(templates, rows, columns)
  return _gather_bank(templates, rows, columns)


@typed
def every_nth_pixel(
  poses: Float[Array, "m 2 3"], target: Float[Array, "h w c"], phase: Int[Array, "2"], stride: int
) -> tuple[Float[Array, "m 2 3"], Float[Array, "h2 w2 c"]]:
  """Every n-th pixel of an image as a small image, and the poses in it; n is the stride.

  Returns the poses in coordinates of the small image, and that image. Templates that are warped to
  it have the values of these pixels in the whole image. The whole image is a square whose side is a
  multiple of the stride. `phase` is row and column of the first pixel, below the stride.
  """
  side, _, channels = target.shape
  small = side // stride
  target = target.reshape(small, stride, small, stride, channels)[:, phase[0], :, phase[1]]
  # From coordinates of the small image to those of the image: corners are aligned in both.
  scale = stride * (small - 1) / (side - 1)
  shift = scale - 1 + 2 * phase[::-1].astype(jnp.float32) / (side - 1)
  to_grid = jnp.concatenate([jnp.eye(2), -shift[:, None]], axis=1) / scale
  return jax.vmap(geometry.compose, in_axes=(None, 0))(to_grid, poses), target


def _sample_by_products(templates: Array, rows: Array, columns: Array) -> Array:
  """`sample_bilinear` of templates [m, t, t, c] at positions [b, m, h, w], by matrix products.

  The value at row r and column c of a template is

    sum_ij [1 - |r - i|]+ [1 - |c - j|]+ template[i, j]

  (Jaderberg et al. 2015, "Spatial Transformer Networks", equation 5). It takes t^2 products instead
  of the four of a gather, but no access by index. Returns [b, m, h, w, c].
  """

  pixels = jnp.arange(templates.shape[1], dtype=rows.dtype).reshape(1, 1, 1, 1, -1)

  def weights(position: Array) -> Array:
    distance = position[..., None] - pixels
    # At whole positions the slope is the one to the right, as for a gather.
    weight = jnp.where(distance < 0, 1 + distance, 1 - distance)
    return jnp.where((distance >= -1) & (distance < 1), weight, 0)

  # In full precision: the lower default of an accelerator would blur a template.
  across = jnp.einsum("bmhwj,mijc->bmhwic", weights(columns), templates, precision="highest")
  return jnp.einsum("bmhwic,bmhwi->bmhwc", across, weights(rows), precision="highest")


def locate(side: int, rows: Array, columns: Array) -> tuple[Int[Array, "..."], Array, Array]:
  """The row of `_neighbours` with a position's corners, and its offsets down and right in the cell.

  Positions, in template pixels, are clipped to one pixel beyond the outermost.
  """
  rows, columns = jnp.clip(rows, -1.0, side) + 1.0, jnp.clip(columns, -1.0, side) + 1.0
  row, column = jnp.floor(rows), jnp.floor(columns)
  index = row.astype(jnp.int32) * (side + 3) + column.astype(jnp.int32)
  return index, rows - row, columns - column


def _neighbours(template: Array) -> Array:
  """Each pixel with its right, lower and lower right neighbour, [(t + 3)^2, 4 c].

  One gather of 4 c numbers then replaces four. The template has a ring of zeros around it, and a
  second one below and on the right, so that neighbours never come from another row.
  """
  side, _, channels = template.shape
  stride = side + 3
  flat = jnp.pad(template, ((1, 2), (1, 2), (0, 0))).reshape(stride * stride, channels)
  shifted = [jnp.roll(flat, -offset, axis=0) for offset in (0, 1, stride, stride + 1)]
  return jnp.concatenate(shifted, axis=-1)


def _bank_table(templates: Array) -> Array:
  """`_neighbours` of all templates, one below the other."""
  tables = jax.vmap(_neighbours)(templates)
  return tables.reshape(-1, tables.shape[-1])


@jax.custom_vjp
def _gather_bank(templates: Array, rows: Array, columns: Array) -> Array:
  """`sample_bilinear` of every template [m, t, t, c] at its positions [b, m, h, w]."""
  return jax.vmap(jax.vmap(sample_bilinear), in_axes=(None, 0, 0))(templates, rows, columns)


def _gather_bank_forward(*inputs: Array) -> tuple[Array, tuple[Array, ...]]:
  return _gather_bank(*inputs), inputs


def _gather_bank_backward(saved: tuple[Array, ...], gradient: Array) -> tuple[Array, Array, Array]:
  templates, rows, columns = saved
  num_templates, side, _, channels = templates.shape
  index, down, right = locate(side, rows, columns)
  start = jnp.arange(num_templates, dtype=jnp.int32) * (side + 3) ** 2
  index = index + start[None, :, None, None]
  packed = _bank_table(templates).at[index].get(mode="clip")
  # Top left, top right, low left and low right, each channel a separate array [b, m, h, w]: with
  # channels last the gradient would take a CPU five times as long.
  corners = [[packed[..., corner * channels + i] for i in range(channels)] for corner in range(4)]
  rows_gradient, columns_gradient = jnp.zeros_like(rows), jnp.zeros_like(columns)
  for i, (top_left, top_right, low_left, low_right) in enumerate(zip(*corners, strict=True)):
    across, lower_across = top_right - top_left, low_right - low_left
    along, right_along = low_left - top_left, low_right - top_right
    columns_gradient += gradient[..., i] * (across + down * (lower_across - across))
    rows_gradient += gradient[..., i] * (along + right * (right_along - along))

  def inside(position: Array) -> Array:
    return ((position > -1) & (position < side)).astype(position.dtype)

  bank_gradient = _scattered(templates, index, down, right, gradient)
  return bank_gradient, inside(rows) * rows_gradient, inside(columns) * columns_gradient


def _scattered(templates: Array, index: Array, down: Array, right: Array, gradient: Array) -> Array:
  """Gradient of a bank [m, t, t, c]: each pixel's gradient is added to its four corners."""
  side, channels = templates.shape[2:]
  # Weights (1 - d, d) of the two rows and the two columns; their products are those of the corners,
  # in the order of `_neighbours`. Without a concatenation, which XLA would evaluate by branching.
  second = jnp.array([0.0, 1.0]).reshape(1, 1, 1, 1, 2)
  by_row = (1 - down)[..., None] + second * (2 * down - 1)[..., None]
  by_column = (1 - right)[..., None] + second * (2 * right - 1)[..., None]
  weights = by_row[..., :, None, None] * by_column[..., None, :, None]
  shares = weights * gradient[..., None, None, :]
  shares = shares.reshape(*index.shape, 4 * channels)
  table = jnp.zeros((len(templates) * (side + 3) ** 2, 4 * channels), shares.dtype)
  table = table.at[index].add(shares, mode="drop")
  (bank,) = jax.linear_transpose(_bank_table, templates)(table)
  return bank


_gather_bank.defvjp(_gather_bank_forward, _gather_bank_backward)
