"""Checkpoints: the training state of a step, the progress of its run, and checksums of both.

Each step has a folder in `<workdir>/checkpoints`. Orbax writes it in the background and renames it
when it is complete. A killed process leaves a complete checkpoint or none.
"""

import dataclasses
import gc
import json
import pathlib
import shutil
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from orbax.checkpoint import checkpoint_managers

from scae_jax.errors import RunError, WriteError, writing
from scae_jax.training.hosts import barrier, is_first
from scae_jax.training.state import TrainState
from scae_jax.training.workdir import Which

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Progress:
  """What a resumed run needs in addition to the training state."""

  step: int
  window: dict[str, Any]  # `Window.to_json`: sums of metrics that are not written yet
  selection_loss: float | None  # held-out loss that ranks checkpoints; None if not computed
  lines: int | None = None  # checksum of metrics.jsonl; None in processes that do not write it


class Checkpoints:
  """The checkpoints of one workdir, as a context manager that waits for the last write."""

  def __init__(
    self,
    directory: pathlib.Path,
    *,
    keep: int,
    writable: bool,
    say: Callable[[str], None] = logging.warning,
  ):
    """Opens a folder, given by its absolute path.

    If `writable`, the folder is created, and unfinished checkpoints in it are removed. The `keep`
    latest checkpoints and the one of the lowest held-out loss are kept. `say` receives a message
    about every checkpoint that cannot be read. Raises `RunError` if the path is a file.
    """
    if directory.exists() and not directory.is_dir():
      raise RunError(f"{directory} must be a folder; it is a file. Move it away.")
    self._directory = directory
    self._say = say
    self._losses: dict[int, float] = {}
    self._options = ocp.CheckpointManagerOptions(
      create=writable,
      cleanup_tmp_directories=writable,
      lightweight_initialize=True,  # otherwise one damaged checkpoint makes all unreadable
      preservation_policy=checkpoint_managers.AnyPreservationPolicy(
        [checkpoint_managers.LatestN(keep), _Best(self._losses)]
      ),
    )
    self._manager = ocp.CheckpointManager(directory, options=self._options)
    for step in self._manager.all_steps():
      loss = _quietly(lambda step=step: self._read(step, None)[1].selection_loss)
      if isinstance(loss, Unreadable):
        self._say(f"the checkpoint of step {step} has no readable held-out loss ({loss})")
      elif loss is not None:
        self._losses[step] = loss
    for path in directory.iterdir() if directory.is_dir() else ():
      if path.name.isdecimal() and int(path.name) not in self._manager.all_steps():
        self._say(f"{path} is skipped: it is not a readable checkpoint")

  def __enter__(self) -> "Checkpoints":
    return self

  def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
    try:
      with writing("a checkpoint", self._directory):
        self._manager.close()
    except WriteError:
      if kind is None:  # otherwise the block's own error goes on
        raise

  def steps(self) -> list[int]:
    """Steps that have a checkpoint, in ascending order."""
    return sorted(self._manager.all_steps())

  def save(self, state: TrainState, progress: Progress) -> None:
    """Starts to write a checkpoint; returns as soon as the state may be donated.

    Orbax writes in the background. If that fails, the next call of a method raises `WriteError`.
    """
    if progress.selection_loss is not None:
      self._losses[progress.step] = progress.selection_loss
    contents = dataclasses.asdict(progress)
    contents["progress_checksum"] = _checksum(None, progress)
    contents["checksum"] = _checksum(state, progress)
    items = {"state": ocp.args.StandardSave(state), "progress": ocp.args.JsonSave(contents)}
    with writing("a checkpoint", self._directory):
      saved = self._manager.save(progress.step, args=ocp.args.Composite(**items))
    if not saved:
      raise RuntimeError(f"orbax declined step {progress.step}; it has {self.steps()}")

  def wait(self) -> None:
    """Waits until all checkpoints are on the disk; raises `WriteError` if writing fails."""
    with writing("a checkpoint", self._directory):
      self._manager.wait_until_finished()

  def restore(self, template: TrainState, which: Which = "latest") -> tuple[TrainState, Progress]:
    """Reads a checkpoint onto the mesh of the template.

    `which` is a step, 'latest' or 'best' (lowest held-out loss, computed without labels). If a
    checkpoint is damaged, a message says so and the next one is read: for 'latest' the one before
    it, for 'best' that of the next higher loss. Raises `RunError` if none can be read.
    """
    candidates = self._candidates(which)
    failures = []
    for step, fallback in zip(candidates, [*candidates[1:], None], strict=True):
      result = _quietly(lambda step=step: self._read(step, template))
      if not isinstance(result, Unreadable):
        return result
      failures.append(f"step {step}: {result}")
      outcome = "no other is left" if fallback is None else f"going back to that of step {fallback}"
      self._say(f"the checkpoint of step {step} cannot be read, {outcome} ({result})")
    raise RunError(
      f"no checkpoint in {self._directory} can be read by this program and config"
      f" ({'; '.join(failures)}). Evaluate another --step, or train in a new --workdir."
    )

  def check(self, which: Which) -> None:
    """Raises `RunError` if `restore` would find no such checkpoint; reads no state."""
    self._candidates(which)

  def describe_params(self) -> Any:
    """Shapes and types of the parameters in the latest readable checkpoint."""
    handler = ocp.StandardCheckpointHandler()
    for step in self._candidates("latest"):
      folder: Any = self._directory / str(step) / "state"  # Any: orbax has its own path type
      result = _quietly(lambda folder=folder: handler.metadata(folder).tree["params"])
      if not isinstance(result, Unreadable):
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), result)
    raise RunError(f"no checkpoint in {self._directory} can be read. Train in a new --workdir.")

  def set_aside_after(self, step: int) -> None:
    """Moves the unreadable checkpoints of later steps away; new ones can then be written."""
    unreadable = [later for later in self.steps() if later > step]
    barrier("unreadable checkpoints known")
    for later in unreadable:
      target = self._directory.parent / "unreadable_checkpoints" / str(later)
      if is_first():
        try:
          shutil.rmtree(target, ignore_errors=True)
          target.parent.mkdir(exist_ok=True)
          shutil.move(self._directory / str(later), target)
        except OSError as error:
          raise RunError(
            f"the unreadable checkpoint of step {later} cannot be moved to {target}: {error}. Move"
            f" it out of {self._directory} yourself."
          ) from error
      self._losses.pop(later, None)
      self._say(f"the unreadable checkpoint of step {later} is now {target}")
    barrier("unreadable checkpoints moved")
    if unreadable:
      self._manager.close()  # `reload` would read the other checkpoints, which is not needed
      self._manager = ocp.CheckpointManager(self._directory, options=self._options)

  def _candidates(self, which: Which) -> list[int]:
    steps = self.steps()
    if not steps:
      raise RunError(f"there is no checkpoint in {self._directory}. Train first, with train.py.")
    if which == "latest":
      return steps[::-1]
    if which == "best":
      if not self._losses:
        raise RunError(f"no checkpoint in {self._directory} has a held-out loss; name a step.")
      return sorted(self._losses, key=self._losses.__getitem__)
    if str(which) not in map(str, steps):
      raise RunError(
        f"there is no checkpoint of step {which}; there are those of {steps}, 'latest' and 'best'."
      )
    return [int(which)]

  def _read(self, step: int, template: TrainState | None) -> tuple[Any, Progress]:
    """State (None without a template) and progress of a step; ValueError if they are damaged."""
    items: dict[str, Any] = {"progress": ocp.args.JsonRestore()}
    if template is not None:
      items["state"] = ocp.args.StandardRestore(template)
    restored = self._manager.restore(step, args=ocp.args.Composite(**items))
    contents, state = dict(restored["progress"]), restored.get("state")
    full_checksum = contents.pop("checksum")
    progress_checksum = contents.pop("progress_checksum")
    progress = Progress(**contents)
    expected = progress_checksum if state is None else full_checksum
    if expected != _checksum(state, progress) or progress.step != step:
      raise ValueError("its checksum does not match its contents")
    # Without its metadata, Orbax returns a random key as plain numbers.
    types = [[leaf.dtype for leaf in jax.tree.leaves(tree)] for tree in (state, template)]
    if types[0] != types[1]:
      raise ValueError("its arrays are of other types than those that were saved")
    return state, progress


class Unreadable(str):
  """Why a checkpoint could not be read."""


@dataclasses.dataclass(frozen=True)
class _Best(checkpoint_managers.PreservationPolicy):
  """Keeps the checkpoint of the lowest held-out loss.

  Orbax's `BestN` reads the losses of all checkpoints at once, and fails if one is damaged.
  """

  losses: Mapping[int, float]  # by step; `Checkpoints` adds to it later

  def should_preserve(
    self, checkpoints: Sequence[checkpoint_managers.PolicyCheckpointInfo], *, context: Any
  ) -> list[bool]:
    steps = [checkpoint.step for checkpoint in checkpoints]
    best = min(
      (step for step in steps if step in self.losses), key=self.losses.__getitem__, default=None
    )
    return [step == best for step in steps]


def _checksum(state: TrainState | None, progress: Progress) -> int:
  """CRC-32 of all values: orbax notices a truncated file, but not a flipped bit."""
  value = zlib.crc32(json.dumps(dataclasses.asdict(progress), sort_keys=True).encode())
  for leaf in jax.tree.leaves(state):
    is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    numbers = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
    value = zlib.crc32(numbers.tobytes(), value)
  return value


def _quietly(read: Callable[[], Result]) -> Result | Unreadable:
  """The result of `read`, or the reason why it failed.

  When one array cannot be read, orbax abandons the unfinished reads of the others. Python would
  print a traceback for each of them, sooner or later.
  """
  if not isinstance(sys.unraisablehook, _DroppedReads):
    sys.unraisablehook = _DroppedReads(sys.unraisablehook)
  try:
    return read()
  except Exception as error:  # its type depends on where the damage is
    text = str(error).strip() or repr(error)
    reason = f"{type(error).__name__}: {text.splitlines()[0][:160]}"
  gc.collect()
  return Unreadable(reason)


@dataclasses.dataclass(frozen=True)
class _DroppedReads:
  """An unraisable hook that ignores abandoned reads and passes the rest to the previous hook."""

  previous_hook: Callable[[Any], object]

  def __call__(self, unraisable: Any) -> None:
    ended_late = str(unraisable.exc_value) == "Event loop is closed"
    if not ended_late and "_read_array" not in repr(unraisable.object):
      self.previous_hook(unraisable)
