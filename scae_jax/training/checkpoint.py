"""Checkpoints: the state of a step, what a resumed run must know besides, and checksums of both.

Each step has a folder in `<workdir>/checkpoints`. Orbax writes it in the background and renames it
into place when it is complete, so that a kill leaves either a whole checkpoint or none.
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
  """What a resumed run must know besides the state."""

  step: int
  window: dict[str, Any]  # `Window.to_json`: sums of metrics that no line has reported yet
  selection_loss: float | None  # held out, ranks the checkpoints; None if it was not computed
  lines: int | None = None  # checksum of all lines of metrics; None where another process writes


class Checkpoints:
  """The checkpoints of one workdir; use as a context manager, leaving waits for the last write."""

  def __init__(
    self,
    directory: pathlib.Path,
    *,
    keep: int,
    writable: bool,
    say: Callable[[str], None] = logging.warning,
  ):
    """Opens a folder, an absolute path; makes it and clears it up if `writable`.

    The `keep` latest checkpoints stay, beside that of the lowest held-out loss. `say` takes a
    message about a checkpoint that cannot be read. Raises `RunError` if it is a file.
    """
    if directory.exists() and not directory.is_dir():
      raise RunError(f"{directory} must be a folder; it is a file. Move it away.")
    self._directory = directory
    self._say = say
    self._losses: dict[int, float] = {}
    self._options = ocp.CheckpointManagerOptions(
      create=writable,
      cleanup_tmp_directories=writable,
      lightweight_initialize=True,  # one damaged checkpoint would keep all from being read
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
        self._say(f"{path} is no checkpoint that can be read: passed over")

  def __enter__(self) -> "Checkpoints":
    return self

  def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
    try:
      with writing("a checkpoint", self._directory):
        self._manager.close()
    except WriteError:
      if kind is None:  # else it is said already
        raise

  def steps(self) -> list[int]:
    """Steps that have a checkpoint, from the first to the last."""
    return sorted(self._manager.all_steps())

  def save(self, state: TrainState, progress: Progress) -> None:
    """Starts writing; returns as soon as the state may be donated.

    Orbax writes in the background: an error is a `WriteError` of the next call of any method.
    """
    if progress.selection_loss is not None:
      self._losses[progress.step] = progress.selection_loss
    contents = dataclasses.asdict(progress)
    sums = {"progress_checksum": _checksum(None, progress), "checksum": _checksum(state, progress)}
    items = {"state": ocp.args.StandardSave(state), "progress": ocp.args.JsonSave(contents | sums)}
    with writing("a checkpoint", self._directory):
      saved = self._manager.save(progress.step, args=ocp.args.Composite(**items))
    if not saved:
      raise RuntimeError(f"orbax declined step {progress.step}; it has {self.steps()}")

  def wait(self) -> None:
    """Returns when everything saved is on the disk; raises `WriteError` if it cannot be."""
    with writing("a checkpoint", self._directory):
      self._manager.wait_until_finished()

  def restore(self, template: TrainState, which: Which = "latest") -> tuple[TrainState, Progress]:
    """Reads a checkpoint onto the mesh of the template.

    `which` is 'latest', 'best' (lowest held-out loss, in which labels have no part) or a step. A
    damaged checkpoint is passed over with a message: for 'latest' follows the one before, for
    'best' that of the next higher loss. Raises `RunError` if there is none that can be read.
    """
    candidates = self._candidates(which)
    failures = []
    for step, fallback in zip(candidates, [*candidates[1:], None], strict=True):
      result = _quietly(lambda step=step: self._read(step, template))
      if not isinstance(result, Unreadable):
        return result
      failures.append(f"step {step}: {result}")
      then = "no other is left" if fallback is None else f"going back to that of step {fallback}"
      self._say(f"the checkpoint of step {step} cannot be read, {then} ({result})")
    raise RunError(
      f"no checkpoint in {self._directory} can be read by this program and config"
      f" ({'; '.join(failures)}). Evaluate another --step, or train in a new --workdir."
    )

  def check(self, which: Which) -> None:
    """Raises `RunError` if there is no such checkpoint to `restore`; reads no state."""
    self._candidates(which)

  def describe_params(self) -> Any:
    """Shapes and types of the parameters in the latest checkpoint that can be read."""
    handler = ocp.StandardCheckpointHandler()
    for step in self._candidates("latest"):
      folder: Any = self._directory / str(step) / "state"  # orbax declares a type of its own
      result = _quietly(lambda folder=folder: handler.metadata(folder).tree["params"])
      if not isinstance(result, Unreadable):
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), result)
    raise RunError(f"no checkpoint in {self._directory} can be read. Train in a new --workdir.")

  def set_aside_after(self, step: int) -> None:
    """Moves unreadable checkpoints of later steps away, so that new ones can be written."""
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
      self._manager.close()  # `reload` would read more of the others than it needs to
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
    """State, None without a template, and progress of a step; ValueError if they are damaged."""
    items: dict[str, Any] = {"progress": ocp.args.JsonRestore()}
    if template is not None:
      items["state"] = ocp.args.StandardRestore(template)
    restored = self._manager.restore(step, args=ocp.args.Composite(**items))
    contents, state = dict(restored["progress"]), restored.get("state")
    of_all, of_progress = contents.pop("checksum"), contents.pop("progress_checksum")
    progress = Progress(**contents)
    expected = of_progress if state is None else of_all
    if expected != _checksum(state, progress) or progress.step != step:
      raise ValueError("its checksum does not match its contents")
    return state, progress


class Unreadable(str):
  """Why a checkpoint could not be read."""


@dataclasses.dataclass(frozen=True)
class _Best(checkpoint_managers.PreservationPolicy):
  """Keeps the checkpoint of the lowest held-out loss.

  Orbax's `BestN` would read the losses of an earlier process all at once and fail at a damaged one.
  """

  losses: Mapping[int, float]  # by step; `Checkpoints` goes on filling it

  def should_preserve(
    self, checkpoints: Sequence[checkpoint_managers.PolicyCheckpointInfo], *, context: Any
  ) -> list[bool]:
    steps = [checkpoint.step for checkpoint in checkpoints]
    best = min(
      (step for step in steps if step in self.losses), key=self.losses.__getitem__, default=None
    )
    return [step == best for step in steps]


def _checksum(state: TrainState | None, progress: Progress) -> int:
  """CRC-32 of the values; our own, because orbax notices a truncated file but no flipped bit."""
  value = zlib.crc32(json.dumps(dataclasses.asdict(progress), sort_keys=True).encode())
  for leaf in jax.tree.leaves(state):
    is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    numbers = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
    value = zlib.crc32(numbers.tobytes(), value)
  return value


def _quietly(read: Callable[[], Result]) -> Result | Unreadable:
  """What `read` returns, or why it failed.

  When one array cannot be read, orbax drops the unfinished reads of the others, and Python would
  print a traceback of each: when they end, when it collects them, or when the program ends.
  """
  if not isinstance(sys.unraisablehook, _DroppedReads):
    sys.unraisablehook = _DroppedReads(sys.unraisablehook)
  try:
    return read()
  except Exception as error:  # which one depends on where the damage is
    text = str(error).strip() or repr(error)
    reason = f"{type(error).__name__}: {text.splitlines()[0][:160]}"
  gc.collect()
  return Unreadable(reason)


@dataclasses.dataclass(frozen=True)
class _DroppedReads:
  """Ignores dropped reads; passes everything else to the hook before."""

  before: Callable[[Any], object]

  def __call__(self, unraisable: Any) -> None:
    ended_late = str(unraisable.exc_value) == "Event loop is closed"
    if not ended_late and "_read_array" not in repr(unraisable.object):
      self.before(unraisable)
