"""Devices and hosts that train one run: the mesh, what hosts agree on, compiled programs."""

import contextlib
import dataclasses
import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from scae_jax.data.cache import cache_folder
from scae_jax.errors import RunError
from scae_jax.sections import Processes
from scae_jax.shards import AXIS
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


# Seconds without a heartbeat after which a process counts as dead; it sends them while it compiles.
HEARTBEAT_TIMEOUT = 30


def join(processes: Processes) -> None:
  """Connects to the other processes, or raises `RunError`; comes before JAX uses a device."""
  given = dataclasses.astuple(processes) if processes.coordinator else ()
  # It would take SIGTERM from us, see `interrupt`.
  jax.config.update("jax_enable_preemption_service", False)
  try:
    jax.distributed.initialize(*given, heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT)
  except (RuntimeError, ValueError) as error:
    raise RunError(
      f"the processes of the run did not meet: {error}. Give --coordinator=host:port,"
      " --num_processes and --process_id, the same port and number to all."
    ) from error


def shutdown() -> None:
  """Disconnects from the other processes; none waits for another after this."""
  if jax.process_count() > 1:
    jax.distributed.shutdown()


def is_first() -> bool:
  """Whether this is process 0, the only one that writes files and messages."""
  return jax.process_index() == 0


def barrier(name: str) -> None:
  """Returns when all processes have called it with this name."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)


def largest(number: int) -> int:
  """The largest of the numbers that the processes pass; waits for all of them."""
  if jax.process_count() == 1:
    return number
  return int(np.max(multihost_utils.process_allgather(np.int32(number))))


@contextlib.contextmanager
def all_or_none(what: str) -> Iterator[None]:
  """Raises `RunError` in all processes if the block, which is to do `what`, raises one in any."""
  failure = None
  try:
    yield
  except RunError as error:
    failure = error
  if largest(int(failure is not None)):
    raise failure or RunError(f"another process of the run could not {what}; see its message.")


def check_agreement(what: str, text: str) -> None:
  """Raises `RunError` in every process unless all pass the same text."""
  if jax.process_count() == 1:
    return
  own = np.uint32(zlib.crc32(text.encode()))
  others = np.ravel(multihost_utils.process_allgather(own))
  if different := [str(i) for i, other in enumerate(others) if other != others[0]]:
    raise RunError(
      f"all processes of a run must have the same {what}; that of process {', '.join(different)}"
      " differs from that of process 0."
    )


@contextlib.contextmanager
def lost_peers_explained() -> Iterator[None]:
  """Ends this process with a message when a collective operation fails: another one has died.

  Where a host vanishes without closing its connections, JAX's heartbeat notices and says so itself.
  """
  try:
    yield
  except jax.errors.JaxRuntimeError as error:
    if jax.process_count() == 1:
      raise
    reason = str(error).strip().splitlines()[0]
    print(
      f"error: process {jax.process_index()} of {jax.process_count()} can no longer work with the"
      f" others; one of them is most likely gone ({reason}). The last checkpoint"
      " stands: start all processes again with the same command to resume.",
      file=sys.stderr,
      flush=True,
    )
    os._exit(1)  # a normal exit would wait minutes for the process that is gone


OFF = "off"


def keep_compiled(folder: str) -> None:
  """Makes this process read and write JAX's persistent compilation cache; call it once, early.

  No folder means `$JAX_COMPILATION_CACHE_DIR` or else `compiled` in the cache folder of the data
  (`$SCAE_JAX_CACHE` or `~/.cache/scae_jax`); "off" means no cache.
  """
  if folder == OFF:
    jax.config.update("jax_enable_compilation_cache", False)
    return
  default = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(cache_folder("") / "compiled")
  jax.config.update("jax_compilation_cache_dir", os.path.expanduser(folder) or default)
