"""One run in many processes, one a host or one a device.

All run the same program on the same config and see the same files. Only process 0 writes files and
messages.
"""

import contextlib
import dataclasses
import os
import sys
import zlib
from collections.abc import Iterator

import jax
import numpy as np
from jax.experimental import multihost_utils

from scae_jax.training.errors import RunError

# Seconds without a heartbeat after which a process counts as dead; it sends them while it compiles.
HEARTBEAT_TIMEOUT = 30


@dataclasses.dataclass(frozen=True)
class Processes:
  """How the processes of a run find each other.

  Process 0 listens at the coordinator, `host:port`. Without one, JAX detects the cluster (TPU pods,
  Slurm, Open MPI, Kubernetes), and the numbers are not read.
  """

  coordinator: str
  num_processes: int
  process_id: int

  def __post_init__(self):
    if not self.coordinator:
      return
    host, _, port = self.coordinator.rpartition(":")
    if not host or not port.isdecimal():
      raise RunError(f"--coordinator must be host:port; it is {self.coordinator!r}.")
    if not 0 <= self.process_id < self.num_processes:
      raise RunError(
        "--coordinator needs --num_processes and, in each of them, its own --process_id from 0 to"
        f" one less; they are {self.num_processes} and {self.process_id}."
      )


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
