"""Convolutions as matrix products over patches, a few examples at a time, for CPUs.

XLA's CPU backend runs convolutions inside a `lax.scan` on one thread and without its fast kernels,
five to ten times slower; a training step is such a scan. A matrix product over all patches is fast,
but patches take many times the memory of their feature map. The patches of a few examples stay in
the cache of a core from layer to layer; the backward pass extracts them again.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from scae_jax.shards import on_each_device
from scae_jax.typing import Array

# By name: the function, and its derivative as a function of its value.
ACTIVATIONS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
  "none": (lambda x: x, jnp.ones_like),
  "relu": (jax.nn.relu, lambda y: (y > 0).astype(y.dtype)),
  "elu": (jax.nn.elu, lambda y: jnp.where(y > 0, 1, y + 1)),
}
MAX_NUMBERS = 2**20  # in the patches of a layer, over all examples that are computed together

Weights = tuple[tuple[Array, Array], ...]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def convolve_patches(
  image: Array, weights: Weights, strides: tuple[int, ...], activation: str
) -> Array:
  """`layers.convnet.convolve`, with the same arguments and result."""
  return _forward(image, weights, strides, activation)[0]


def examples_at_a_time(image: Array, weights: Weights, strides: tuple[int, ...]) -> int:
  """The largest divisor of the batch size for which no layer has more than `MAX_NUMBERS`."""
  batch, height, width, _ = image.shape
  limit = batch
  for (kernel, _), stride in zip(weights, strides, strict=True):
    rows, columns, channels, _ = kernel.shape
    height, width = (height - rows) // stride + 1, (width - columns) // stride + 1
    limit = min(limit, MAX_NUMBERS // (height * width * rows * columns * channels))
  return max((n for n in range(1, limit + 1) if batch % n == 0), default=1)


def _patches(image: Array, rows: int, columns: int, stride: int) -> Array:
  """The patches of a kernel of rows x columns at each position, [b, h', w', rows columns c].

  Pixels are in the order of the first three axes of a kernel [rows, columns, c, d].
  """

  def pixels_of(entry: int, side: int, kernel: int) -> slice:
    """The pixels that an entry of the kernel is multiplied with, along one axis."""
    return slice(entry, entry + (side - kernel) // stride * stride + 1, stride)

  down = [pixels_of(row, image.shape[1], rows) for row in range(rows)]
  across = [pixels_of(column, image.shape[2], columns) for column in range(columns)]
  return jnp.concatenate([image[:, row, column] for row in down for column in across], axis=-1)


def _patches_for(kernel: Array, stride: int) -> Callable[[Array], Array]:
  rows, columns, *_ = kernel.shape
  return functools.partial(_patches, rows=rows, columns=columns, stride=stride)


def _matrix(kernel: Array) -> Array:
  return kernel.reshape(-1, kernel.shape[-1])


def _split(x: Array, size: int) -> Array:
  """[b, ...] in blocks of `size` examples, [b / size, size, ...]."""
  return x.reshape(-1, size, *x.shape[1:])


def _join(blocks: Array) -> Array:
  return blocks.reshape(-1, *blocks.shape[2:])


def _forward(
  image: Array, weights: Weights, strides: tuple[int, ...], activation: str
) -> tuple[Array, tuple[Weights, list[Array]]]:
  function, _ = ACTIVATIONS[activation]

  def maps_of_block(weights: Weights, x: Array) -> list[Array]:
    maps = []
    for (kernel, bias), stride in zip(weights, strides, strict=True):
      x = function(_patches_for(kernel, stride)(x) @ _matrix(kernel) + bias[None, None, None])
      maps.append(x)
    return maps

  def on_device(weights: Weights, image: Array) -> list[Array]:
    blocks = _split(image, examples_at_a_time(image, weights, strides))
    maps = jax.lax.map(functools.partial(maps_of_block, weights), blocks)
    return jax.tree.map(_join, maps)

  maps = on_each_device(on_device, (weights,), (image,))
  return maps[-1], (weights, [image, *maps])


def _backward(
  strides: tuple[int, ...], activation: str, saved: tuple[Weights, list[Array]], cotangent: Array
) -> tuple[Array, Weights]:
  _, slope = ACTIVATIONS[activation]
  weights, maps = saved
  sum_type = jnp.promote_types(cotangent.dtype, jnp.float32)

  def block_gradients(weights: Weights, maps: list[Array], cotangent: Array) -> tuple[Any, Array]:
    gradients = []
    layers = list(zip(weights, strides, maps[:-1], maps[1:], strict=True))
    for (kernel, _), stride, x, y in reversed(layers):
      cotangent = cotangent * slope(y)
      patches, patches_vjp = jax.vjp(_patches_for(kernel, stride), x)
      # With patches as the first factor it would take up to two thirds longer.
      positions = (0, 1, 2)
      kernel_gradient = jnp.tensordot(
        cotangent.astype(sum_type), patches.astype(sum_type), (positions, positions)
      )
      bias_gradient = jnp.sum(cotangent, axis=positions, dtype=sum_type)
      gradients.append((kernel_gradient, bias_gradient))
      (cotangent,) = patches_vjp(cotangent @ _matrix(kernel).T)
    return gradients[::-1], cotangent

  def on_device(weights: Weights, maps: list[Array], cotangent: Array) -> tuple[Any, Array]:
    size = examples_at_a_time(maps[0], weights, strides)

    def add(sums: Any, block: Any) -> tuple[Any, Array]:
      gradients, image_gradient = block_gradients(weights, *block)
      return jax.tree.map(jnp.add, sums, gradients), image_gradient

    start = [
      (jnp.zeros(_matrix(kernel).T.shape, sum_type), jnp.zeros(bias.shape, sum_type))
      for kernel, bias in weights
    ]
    blocks = jax.tree.map(lambda x: _split(x, size), (maps, cotangent))
    sums, image_gradient = jax.lax.scan(add, start, blocks)
    return jax.tree.map(lambda x: x[None], sums), _join(image_gradient)

  sums, image_gradient = on_each_device(on_device, (weights,), (maps, cotangent))
  weight_gradients = tuple(
    (
      jnp.sum(kernel_sums, axis=0).T.reshape(kernel.shape).astype(kernel.dtype),
      jnp.sum(bias_sums, axis=0).astype(bias.dtype),
    )
    for (kernel_sums, bias_sums), (kernel, bias) in zip(sums, weights, strict=True)
  )
  return image_gradient, weight_gradients


convolve_patches.defvjp(_forward, _backward)
