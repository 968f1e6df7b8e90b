"""The mesh of all devices: batches, or on a CPU seeds, are split over it, the rest is on each."""

import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from scae_jax.shards import AXIS
from scae_jax.training.errors import RunError
from scae_jax.typing import Array

MIN_EXAMPLES = 8  # of a device; with fewer, communication takes longer than computation


def use_all_cores(batch_size: int, views: int) -> None:
  """Makes every core of this machine's processor a device; call it before JAX is first used.

  A loop over examples, as in `sum_by_example`, runs on one thread of each device. Fewer cores
  are used where they do not divide the batch, or its images with `views` of each, or where it is
  small. Nothing changes on accelerators, or where XLA_FLAGS or JAX_NUM_CPU_DEVICES set the number.
  """
  is_set = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
  if is_set or jax.config.values["jax_num_cpu_devices"] != -1:
    return
  cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
  most = max(1, min(cores, batch_size // MIN_EXAMPLES))
  divide = (count for count in range(most, 0, -1) if batch_size % (views * count) == 0)
  devices = next(divide, 1)
  jax.config.update("jax_num_cpu_devices", devices)


def find_devices() -> Sequence[Any]:
  """The devices of all processes; `RunError` if JAX has none here. Call it before JAX is used."""
  global _user
  check_not_forked()
  try:
    devices = jax.devices()
  except (RuntimeError, AssertionError) as error:  # the latter of cuda, without a GPU
    platforms = jax.config.values["jax_platforms"] or ""
    reason = " ".join(str(error).split()) or type(error).__name__
    raise RunError(
      f"JAX finds no device: JAX_PLATFORMS is {platforms!r}. Leave it"
      f" unset, or set it to cpu. ({reason})"
    ) from error
  _user = os.getpid()
  return devices


_user: int | None = None  # the process that used JAX: this one, or one that it was forked from


def check_not_forked() -> None:
  """Raises `RunError` in a forked child of a process that has used JAX: it would wait forever."""
  if _user not in (None, os.getpid()):
    raise RunError(
      "this process is a fork of one that has used JAX, whose threads a fork does not have. Start"
      " it by `multiprocessing.get_context('spawn')` (a PyTorch DataLoader by"
      " multiprocessing_context='spawn'), and load the model in it."
    )


def make_mesh(devices: Sequence[Any] | None = None) -> Mesh:
  """A mesh with one axis, `shards.AXIS`, over the given devices, or over those of all processes."""
  devices = find_devices() if devices is None else devices
  return jax.make_mesh((len(devices),), (AXIS,), axis_types=(AxisType.Auto,), devices=devices)


def replicated(mesh: Mesh) -> NamedSharding:
  """The sharding of arrays that every device has whole: state and data set."""
  return NamedSharding(mesh, PartitionSpec())


def put(tree: Any, mesh: Mesh) -> Any:
  """Copies host arrays, the same in every process, to each device of the mesh."""
  return jax.make_array_from_process_local_data(replicated(mesh), jax.tree.map(np.asarray, tree))


def check_batch_size(batch_size: int, mesh: Mesh, views: int = 1) -> None:
  """Raises `RunError` unless the images of a batch, of which it has `views`, split evenly."""
  if batch_size % (views * mesh.size):
    of_each = f" times {views} with config.data.two_views" if views > 1 else ""
    raise RunError(
      f"config.train.batch_size must be a multiple of the number of devices, {mesh.size}{of_each};"
      f" it is {batch_size}. Change it, or show fewer devices (CUDA_VISIBLE_DEVICES)."
    )


def split_examples(array: Array, mesh: Mesh) -> Array:
  """Inside jit: spreads the leading axis over the devices.

  An axis that they do not divide, such as a small held-out set's, stays whole on each: the values
  are the same, and every device does all the work. Kernels read the mesh from the type of the
  result and of arrays computed from it, see `shards`.
  """
  axis = None if array.shape[0] % mesh.size else AXIS
  return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, PartitionSpec(axis)))
