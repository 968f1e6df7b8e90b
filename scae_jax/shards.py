"""Batches that are split over devices.

On several devices a training step runs inside `jax.shard_map`: each device computes the loss and
the gradient of its own examples, see `training.step`. Models treat every example alike, so they
need not know. A device that trains seeds of its own sees whole batches. The functions below are for
the few places that see more than one example or draw noise. Outside of a training step, and on one
device, their arguments and results are of the whole batch.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from scae_jax.typing import Array

AXIS = "data"  # of the mesh


def count() -> int:
  """Number of shards of the batch, if the caller sees one of them; 1 if it sees all examples."""
  mesh = jax.sharding.get_abstract_mesh()
  return mesh.size if AXIS in mesh.manual_axes else 1


def sum_over_batch(x: Array) -> Array:
  """Sum of x [b, ...] over the examples of all devices."""
  total = jnp.sum(x, axis=0)
  return total if count() == 1 else jax.lax.psum(total, AXIS)


def draw(
  sampler: Callable[[Array, Sequence[int]], Array], key: Array, shape: Sequence[int]
) -> Array:
  """`sampler(key, shape)`, shape [b, ...]: what an example gets does not depend on the devices."""
  if count() == 1:
    return sampler(key, shape)
  # Each device draws for the whole batch and keeps the rows of its own examples.
  rows, *rest = shape
  whole = sampler(key, (rows * count(), *rest))
  return jax.lax.dynamic_slice_in_dim(whole, jax.lax.axis_index(AXIS) * rows, rows)


def on_each_device(
  kernel: Callable[..., Any], shared: tuple[Any, ...], examples: tuple[Any, ...]
) -> Any:
  """`kernel(*shared, *examples)`, computed by each device on its own rows of `examples`.

  The compiler splits its own operations over a mesh, but not a kernel. The mesh need not be handed
  down: once `with_sharding_constraint` has spread a batch over it, the types of all arrays that are
  computed from the batch name it.

  For the inside of a `custom_vjp`: no gradient is taken through it. `shared` and `examples` are
  trees of arrays. The kernel returns arrays [b, ...], or one row a device. Where b does not divide
  by the devices, each computes all.
  """
  # A constant is on no mesh.
  arrays = jax.tree.leaves(examples)
  mesh = max((jax.typeof(array).sharding.mesh for array in arrays), key=lambda mesh: mesh.size)
  if mesh.size < 2 or mesh.manual_axes or arrays[0].shape[0] % mesh.size:
    return kernel(*shared, *examples)
  split = PartitionSpec(mesh.axis_names)
  return jax.shard_map(
    kernel,
    mesh=mesh,
    in_specs=(*(PartitionSpec() for _ in shared), *(split for _ in examples)),
    out_specs=split,
    check_vma=False,  # `pallas_call` does not say which of its results differ between devices.
  )(*shared, *examples)
