"""A kernel on several devices: each computes its own examples.

Over the devices of a mesh the compiler splits its own operations, but not a kernel: each device
would compute all examples.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec


def on_each_device(
  kernel: Callable[..., Any], shared: tuple[Any, ...], examples: tuple[Any, ...]
) -> Any:
  """`kernel(*shared, *examples)`, computed by each device on its own rows of `examples`.

  The mesh need not be handed down: once `with_sharding_constraint` has spread a batch over it, the
  type of the batch names it, and so do the types of all that is computed from the batch.

  For the inside of a `custom_vjp`: no gradient is taken through it.

  Args:
    kernel: treats every example alike, however many it is given.
    shared: trees of arrays that each device needs whole.
    examples: trees of arrays [b, ...]. Where b does not divide by the devices, each computes all.

  Returns:
    What the kernel returns, arrays [b, ...]; or of one row a device, arrays [devices, ...].
  """
  # A constant is on no mesh.
  arrays = jax.tree.leaves(examples)
  mesh = max((jax.typeof(array).sharding.mesh for array in arrays), key=lambda mesh: mesh.size)
  if mesh.size < 2 or arrays[0].shape[0] % mesh.size:
    return kernel(*shared, *examples)
  split = PartitionSpec(mesh.axis_names)
  return jax.shard_map(
    kernel,
    mesh=mesh,
    in_specs=(*(PartitionSpec() for _ in shared), *(split for _ in examples)),
    out_specs=split,
    check_vma=False,  # `pallas_call` does not say which of its results differ between devices.
  )(*shared, *examples)
