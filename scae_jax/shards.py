"""Operations over a batch that may be split over devices.

On several devices a training step runs inside `jax.shard_map`: each device computes the loss and
the gradient of its own examples, see `training.step`. Most of a model treats examples independently
and needs nothing from here. The functions below are for statistics over a batch and for noise.
Outside of a training step, on one device, and if each device trains its own seeds, their arguments
and results are those of the whole batch.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from scae_jax.typing import Array

AXIS = "data"  # the mesh axis over which batches are split


def count() -> int:
  """Number of shards of the batch if the caller has one shard; 1 if it has all examples."""
  mesh = jax.sharding.get_abstract_mesh()
  return mesh.size if AXIS in mesh.manual_axes else 1


def sum_over_batch(x: Array) -> Array:
  """Sum of x [b, ...] over the examples of all devices."""
  total = jnp.sum(x, axis=0)
  return total if count() == 1 else jax.lax.psum(total, AXIS)


def draw(
  sampler: Callable[[Array, Sequence[int]], Array], key: Array, shape: Sequence[int]
) -> Array:
  """`sampler(key, shape)` with shape [b, ...]; results do not depend on the number of devices."""
  if count() == 1:
    return sampler(key, shape)
  # Each device samples for the whole batch and keeps the rows of its own examples.
  rows, *rest = shape
  whole = sampler(key, (rows * count(), *rest))
  return jax.lax.dynamic_slice_in_dim(whole, jax.lax.axis_index(AXIS) * rows, rows)


def on_each_device(
  kernel: Callable[..., Any], shared: tuple[Any, ...], examples: tuple[Any, ...]
) -> Any:
  """`kernel(*shared, *examples)`, computed by each device on its own rows of `examples`.

  The compiler partitions its own operations over a mesh, but not a kernel. The mesh is not an
  argument: once `with_sharding_constraint` has split a batch over it, the types of all arrays that
  are computed from the batch have it.

  For use inside a `custom_vjp`; it is not differentiated. `shared` and `examples` are trees of
  arrays. The kernel returns arrays [b, ...], or one row for each device. If b is not a multiple of
  the number of devices, each device computes all rows.
  """
  # Constants are on no mesh.
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
    check_vma=False,  # Kernels do not declare which of their results differ between devices.
  )(*shared, *examples)
