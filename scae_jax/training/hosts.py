"""Devices and hosts that train one run: mesh, agreement between hosts, compilation cache."""

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

MIN_EXAMPLES = 8  # per device; with fewer, communication takes longer than computation


def use_all_cores(batch_size: int, views: int) -> None:
  """Makes every core of this machine's processor a device; call it before JAX is first used.

  A loop over examples, as in `sum_by_example`, runs on one thread per device. Fewer cores are used
  for a small batch, or if `views` times their number does not divide the batch size. Accelerators
  are not affected. A number set by XLA_FLAGS or JAX_NUM_CPU_DEVICES stays, and so does that of a
  process that has used JAX already.
  """
  is_set = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
  if is_set or jax.config.values["jax_num_cpu_devices"] != -1:
    return
  import joblib  # slow to import

  # The cores that this process may use, also by the quota of a container.
  max_devices = max(1, min(joblib.cpu_count(), batch_size // MIN_EXAMPLES))
  divisors = (count for count in range(max_devices, 0, -1) if batch_size % (views * count) == 0)
  with contextlib.suppress(RuntimeError):  # JAX has its devices already, as in a notebook
    jax.config.update("jax_num_cpu_devices", next(divisors, 1))


def find_devices() -> Sequence[Any]:
  """The devices of all processes; `RunError` if JAX has none here. Call it before JAX is used."""
  global _jax_process
  check_not_forked()
  try:
    devices = jax.devices()
  except (RuntimeError, AssertionError) as error:  # the latter for cuda without a GPU
    platforms = jax.config.values["jax_platforms"] or ""
    reason = " ".join(str(error).split()) or type(error).__name__
    raise RunError(
      f"JAX finds no device: JAX_PLATFORMS is {platforms!r}. Leave it"
      f" unset, or set it to cpu. ({reason})"
    ) from error
  _jax_process = os.getpid()
  return devices


# Number of the process that has used JAX: this one, or the one that it was forked from.
_jax_process: int | None = None


def check_not_forked() -> None:
  """Raises `RunError` in a forked child of a process that has used JAX: it would wait forever."""
  if _jax_process not in (None, os.getpid()):
    raise RunError(
      "this process is a fork of one that has used JAX, and JAX's threads do not survive a fork."
      " Start it by `multiprocessing.get_context('spawn')` (a PyTorch DataLoader by"
      " multiprocessing_context='spawn'), and load the model in it."
    )


def make_mesh(devices: Sequence[Any] | None = None) -> Mesh:
  """A mesh with one axis, `shards.AXIS`, over these devices, or over those of all processes."""
  devices = find_devices() if devices is None else devices
  return jax.make_mesh((len(devices),), (AXIS,), axis_types=(AxisType.Auto,), devices=devices)


def replicated(mesh: Mesh) -> NamedSharding:
  """The sharding of arrays of which every device has a full copy: state and data set."""
  return NamedSharding(mesh, PartitionSpec())


def put(tree: Any, mesh: Mesh) -> Any:
  """Copies host arrays, which are the same in every process, to each device of the mesh."""
  return jax.make_array_from_process_local_data(replicated(mesh), jax.tree.map(np.asarray, tree))


def check_batch_size(batch_size: int, mesh: Mesh, views: int = 1) -> None:
  """Raises `RunError` unless a batch splits evenly over the devices.

  The `views` of an image stay on one device.
  """
  if batch_size % (views * mesh.size):
    factor = f" times {views} with config.data.two_views" if views > 1 else ""
    raise RunError(
      f"config.train.batch_size must be a multiple of the number of devices, {mesh.size}{factor};"
      f" it is {batch_size}. Change it, or show fewer devices (CUDA_VISIBLE_DEVICES)."
    )


def split_examples(array: Array, mesh: Mesh) -> Array:
  """Inside jit: splits the leading axis over the devices.

  If its length is not a multiple of their number, as that of a small held-out set, every device has
  all of it and does all the work; the values are the same. Kernels read the mesh from the type of
  the result and of arrays computed from it, see `shards`.
  """
  axis = None if array.shape[0] % mesh.size else AXIS
  return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, PartitionSpec(axis)))


# Seconds without a heartbeat until a process counts as dead. A compiling process sends them, too.
HEARTBEAT_TIMEOUT = 30


def join(processes: Processes) -> None:
  """Connects to the other processes; call it before JAX uses a device.

  Raises `RunError` if they cannot be reached.
  """
  addresses = dataclasses.astuple(processes) if processes.coordinator else ()
  # The service would handle SIGTERM in place of `interrupt`.
  jax.config.update("jax_enable_preemption_service", False)
  try:
    jax.distributed.initialize(*addresses, heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT)
  except (RuntimeError, ValueError) as error:
    raise RunError(
      f"the processes of the run cannot connect: {error}. Give --coordinator=host:port,"
      " --num_processes and --process_id, the same port and number to all."
    ) from error


def shutdown() -> None:
  """Disconnects from the other processes; from then on none waits for another."""
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
  """The largest number that any process passes; waits for all of them."""
  if jax.process_count() == 1:
    return number
  return int(np.max(multihost_utils.process_allgather(np.int32(number))))


@contextlib.contextmanager
def all_or_none(what: str) -> Iterator[None]:
  """Raises `RunError` in all processes if the block raises one in any; `what` names its task."""
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
  checksum = np.uint32(zlib.crc32(text.encode()))
  checksums = np.ravel(multihost_utils.process_allgather(checksum))
  if different := [str(i) for i, value in enumerate(checksums) if value != checksums[0]]:
    raise RunError(
      f"all processes of a run must have the same {what}; that of process {', '.join(different)}"
      " differs from that of process 0."
    )


@contextlib.contextmanager
def lost_peers_explained() -> Iterator[None]:
  """Ends this process with a message when a collective operation fails: another one has died.

  If a host vanishes without closing its connections, JAX notices by the heartbeat and reports it.
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
  """Turns on JAX's persistent compilation cache in this process; call it once, early.

  If `folder` is empty, it is `$JAX_COMPILATION_CACHE_DIR`, or else `compiled` in the data cache
  (`$SCAE_JAX_CACHE` or `~/.cache/scae_jax`). "off" means no cache.
  """
  if folder == OFF:
    jax.config.update("jax_enable_compilation_cache", False)
    return
  default = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(cache_folder("") / "compiled")
  jax.config.update("jax_compilation_cache_dir", os.path.expanduser(folder) or default)
