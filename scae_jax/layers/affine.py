"""Affine maps as arrays, which can be composed before they are applied to a batch."""

import math

import jax.numpy as jnp
from flax import linen as nn

from scae_jax.typing import Array


class Affine(nn.Module):
  """The parameters of an `nn.DenseGeneral`: kernel [*inputs, *outputs] and bias [*outputs]."""

  inputs: tuple[int, ...]  # shape of an input
  outputs: tuple[int, ...]

  @nn.compact
  def __call__(self) -> tuple[Array, Array]:
    def kernel_init(key: Array, shape: tuple[int, ...]) -> Array:
      flat = (math.prod(self.inputs), math.prod(self.outputs))
      return nn.initializers.lecun_normal()(key, flat, jnp.float32).reshape(shape)

    kernel = self.param("kernel", kernel_init, (*self.inputs, *self.outputs))
    zeros = nn.initializers.zeros_init()
    return kernel, self.param("bias", zeros, self.outputs, jnp.float32)


def compose(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
  """Kernel and bias of second(first(x)); `first` maps vectors to vectors."""
  (kernel, bias), (next_kernel, next_bias) = first, second
  return jnp.tensordot(kernel, next_kernel, 1), jnp.tensordot(bias, next_kernel, 1) + next_bias
