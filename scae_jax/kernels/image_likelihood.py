"""Log-likelihood of images under their parts, in the fastest form for XLA's CPU backend.

Images are computed one at a time, value and gradient together. XLA's CPU backend computes an
operation for the whole batch before the next one starts. Arrays of one example stay in the cache of
a core; those of a batch go through memory several times.

The result equals that of `warping.warp_templates`, colours, `mixtures.pixel_mixture` and
`mixtures.log_prob`. With the gradient it is up to two times as fast:
- Templates are a table of the bilinear surface in each cell between four pixels. One lookup gives
  value and slopes; forward and backward pass share it.
- Each channel is a separate array [m, p] of p pixels. XLA does not vectorise loops over arrays with
  channels last or with two axes of pixels.
- The gradient of the mixture is explicit: the difference of two softmaxes.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from scae_jax.math import warping
from scae_jax.math.mixtures import HALF_LOG_2PI, safe_log
from scae_jax.shards import on_each_device
from scae_jax.typing import Array, Float, typed

Term = Callable[[Any, Any, Any], Array]


@typed
def cells_of(bank: Float[Array, "m t t c"]) -> Float[Array, "cells q"]:
  """Bilinear surfaces of templates that are zero outside, [m (t + 3)^2, 4 c].

  A row has the value at the cell's upper left pixel for all channels, then its differences to the
  right, then its differences downwards, then the mixed differences. Row and column of a cell in its
  template's (t + 3) x (t + 3) are those of the upper left pixel, plus one.
  """
  value = jnp.pad(bank, ((0, 0), (1, 2), (1, 2), (0, 0)))
  right, below = jnp.roll(value, -1, axis=2), jnp.roll(value, -1, axis=1)
  to_the_right = right - value
  both = jnp.roll(to_the_right, -1, axis=1) - to_the_right
  packed = jnp.concatenate([value, to_the_right, below - value, both], axis=-1)
  return packed.reshape(-1, packed.shape[-1])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def sample_cells(side: int, cells: Array, rows: Array, columns: Array) -> tuple[Array, ...]:
  """Each template at its positions: `warping.sample_bilinear`, one array [m, p] per channel.

  `cells` are those of `cells_of`; rows and columns are [m, p], in template pixels.
  """
  return _sample_forward(side, cells, rows, columns)[0]


def _sample_forward(side: int, cells: Array, rows: Array, columns: Array) -> tuple:
  channels, start = cells.shape[1] // 4, jnp.arange(len(rows), dtype=jnp.int32) * (side + 3) ** 2
  index, down, right = warping.locate(side, rows, columns)
  # Positions are clipped, so only NaN is out of bounds.
  index = jnp.clip(index + start[:, None], 0, len(cells) - 1).reshape(-1)
  packed = cells.at[index].get(mode="promise_in_bounds").reshape(*rows.shape, -1)

  def surfaces(packed: Array, down: Array, right: Array) -> Any:
    value, across, along, both = (
      [packed[..., kind * channels + i] for i in range(channels)] for kind in range(4)
    )
    slopes = [(across[i] + down * both[i], along[i] + right * both[i]) for i in range(channels)]
    values = tuple(value[i] + right * slopes[i][0] + down * along[i] for i in range(channels))
    return values, slopes

  def unreachable(*_: Array) -> Any:
    zero = jnp.zeros_like(rows)
    return (zero,) * channels, [(zero, zero)] * channels

  # The first branch is always taken. XLA stores the result of a branch; otherwise it would compute
  # the surfaces again in each loop that uses them.
  values, slopes = jax.lax.cond(index[0] >= 0, surfaces, unreachable, packed, down, right)
  return values, (cells, rows, columns, index, down, right, slopes)


def _sample_backward(side: int, saved: tuple, gradients: tuple[Array, ...]) -> tuple:
  cells, rows, columns, index, down, right, slopes = saved
  pairs = list(zip(gradients, slopes, strict=True))
  columns_gradient = sum(gradient * to_the_right for gradient, (to_the_right, _) in pairs)
  rows_gradient = sum(gradient * downwards for gradient, (_, downwards) in pairs)
  # (1, down) x (1, right) x gradients, in the order of `cells_of`. Without a concatenation, which
  # XLA would evaluate by branching.
  second = jnp.array([0.0, 1.0]).reshape(1, 1, 2)
  by_row = (1 - second) + second * down[..., None]
  by_column = (1 - second) + second * right[..., None]
  weights = by_row[..., :, None] * by_column[..., None, :]
  shares = weights[..., None] * jnp.stack(gradients, axis=-1)[..., None, None, :]
  shares = shares.reshape(-1, cells.shape[1])
  cells_gradient = jnp.zeros_like(cells).at[index].add(shares, mode="promise_in_bounds")

  def inside(position: Array) -> Array:
    return (position > -1) & (position < side)

  rows_gradient = jnp.where(inside(rows), rows_gradient, 0)
  columns_gradient = jnp.where(inside(columns), columns_gradient, 0)
  return cells_gradient, rows_gradient, columns_gradient


sample_cells.defvjp(_sample_forward, _sample_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def mixture_log_prob(
  means: Sequence[Array],
  logits: Array,
  background_mean: Array,
  background_logit: Array,
  target: Sequence[Array],
  scale: float,
) -> Array:
  """Sum over pixels of `mixtures.log_prob`, [], nats.

  For each channel there are the parts' means [m, p] and the target [p], which gets no gradient.
  Mixing logits [m, p] include log presence. Background mean and logit are []; `scale` is the
  standard deviation of a pixel.
  """
  return _mixture_forward(means, logits, background_mean, background_logit, target, scale)[0]


def _mixture_forward(*inputs: Any) -> tuple:
  means, logits, background_mean, background_logit, target, scale = inputs
  errors = [(x[None] - mean) / scale for x, mean in zip(target, means, strict=True)]
  background_errors = [(x - background_mean) / scale for x in target]
  joint = logits - 0.5 * sum(jnp.square(error) for error in errors)
  background_joint = background_logit - 0.5 * sum(map(jnp.square, background_errors))
  log_joint, posterior, background_posterior = _softmax(joint, background_joint)
  log_mixing, mixing, background_mixing = _softmax(logits, background_logit)
  constant = (jnp.log(scale) + HALF_LOG_2PI) * sum(x.size for x in target)
  gradients = (
    [posterior * error / scale for error in errors],
    posterior - mixing,
    sum(jnp.sum(background_posterior * error) for error in background_errors) / scale,
    jnp.sum(background_posterior - background_mixing),
  )
  return jnp.sum(log_joint - log_mixing) - constant, gradients


def _softmax(logits: Array, last: Array) -> tuple[Array, Array, Array]:
  """Softmax over parts [m, p] and a last component, [p] or []: log of the sum, and the shares."""
  largest = jnp.maximum(jnp.max(logits, axis=0), last)
  exp_parts, exp_last = jnp.exp(logits - largest[None]), jnp.exp(last - largest)
  total = jnp.sum(exp_parts, axis=0) + exp_last
  inverse = 1 / total
  return jnp.log(total) + largest, exp_parts * inverse[None], exp_last * inverse


def _mixture_backward(scale: float, gradients: tuple, cotangent: Array) -> tuple:
  del scale
  return *jax.tree.map(lambda gradient: cotangent * gradient, gradients), None


mixture_log_prob.defvjp(_mixture_forward, _mixture_backward)


def image_log_prob(
  shared: tuple[Array, Array, Array, Array | None],
  parts: tuple[Array, Array, Array],
  target: Array,
  *,
  side: int,
  scale: float,
) -> Array:
  """log p(target [h, w, c]) of one image, [], summed over pixels, nats; a term of `sum_by_example`.

  `shared`: `cells_of` the templates, without colour; mean and mixing logit of the background; and
  the temperature of coupled mixing or None, see `PartDecoder`. `parts`: poses [m, 2, 3], presences
  [m] and colours [m, c or 2 c], see `pcae.coloured`. `side` is that of a template, pixels; `scale`
  is the standard deviation of a pixel.
  """
  cells, *background, temperature = shared
  poses, presence, colours = parts
  height, width, channels = target.shape

  def position(pose: Array) -> tuple[Array, Array]:
    rows, columns = warping.template_position(pose, side, height, width)
    return rows.reshape(-1), columns.reshape(-1)

  rows, columns = jax.vmap(position)(poses)
  sampled: Any = sample_cells(side, cells, rows, columns)
  means = [sampled[i] * colours[:, i, None] for i in range(channels)]
  if colours.shape[1] > channels:
    grounds = colours[:, channels:]
    means = [mean + (1 - sampled[i]) * grounds[:, i, None] for i, mean in enumerate(means)]
  logits = sampled[-1] if temperature is None else sum(means) / (channels * temperature)
  pixels = [target[..., i].reshape(-1) for i in range(channels)]
  logits = logits + safe_log(presence)[:, None]
  return mixture_log_prob(means, logits, *background, pixels, scale)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def sum_by_example(term: Term, shared: Any, examples: Any, constants: Any) -> Array:
  """sum_i term(shared, examples_i, constants_i), [].

  `term` is a pure function that returns a scalar and closes over no array. The other arguments are
  trees of arrays: `shared` by all examples, `examples` [b, ...], and `constants` [b, ...], which
  get no gradient. One loop over examples computes value and gradient. Each device of a mesh
  computes its own examples; see `shards`.
  """

  def device_sum(shared: Any, examples: Any, constants: Any) -> Array:
    def add(total: Array, example: Any) -> tuple[Array, None]:
      return total + term(shared, *example), None

    total, _ = jax.lax.scan(add, jnp.zeros(()), (examples, constants))
    return total[None]

  return jnp.sum(on_each_device(device_sum, (shared,), (examples, constants)))


def _forward(
  term: Term, shared: Any, examples: Any, constants: Any
) -> tuple[Array, tuple[Any, Any]]:
  value_and_gradient = jax.value_and_grad(term, argnums=(0, 1))

  def device_sum(shared: Any, examples: Any, constants: Any) -> Any:
    def add(sums: Any, example: Any) -> tuple[Any, Any]:
      value, (shared_gradient, example_gradient) = value_and_gradient(shared, *example)
      return jax.tree.map(jnp.add, sums, (value, shared_gradient)), example_gradient

    start = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, shared))
    sums, example_gradients = jax.lax.scan(add, start, (examples, constants))
    return jax.tree.map(lambda array: array[None], sums), example_gradients

  sums, example_gradients = on_each_device(device_sum, (shared,), (examples, constants))
  total, shared_gradient = jax.tree.map(lambda by_device: jnp.sum(by_device, axis=0), sums)
  return total, (shared_gradient, example_gradients)


def _backward(term: Term, gradients: tuple[Any, Any], cotangent: Array) -> tuple[Any, Any, None]:
  del term
  shared_gradient, example_gradients = jax.tree.map(lambda array: cotangent * array, gradients)
  return shared_gradient, example_gradients, None


sum_by_example.defvjp(_forward, _backward)
