"""How a run ends before its last step: one message for the user and an exit code.

0         trained to the last step
1         the run failed: a loss that is not finite, a full disk, a report that failed after a
          training that is saved, or (with a traceback) a defect of the program
2         the run could not start as asked: config, data set, workdir or checkpoint
130, 143, 129  interrupted by Ctrl-C, SIGTERM or SIGHUP, saved; the same command resumes

This module imports nothing that takes time, see `interrupt`.
"""

import contextlib
import errno
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping

from scae_jax.interrupt import (
  end,
  end_with_parent,
  ignore_signals,
  on_signal,
  tell,
)

# What a message of tensorstore has to say to the user, somewhere in its many lines.
_DISK = (
  "No space left on device|Disk quota exceeded|File too large|Read-only file system"
  "|Permission denied|Input/output error"
)


class RunError(Exception):
  """The run cannot start as asked; the message says what was expected, what came, what to do."""

  exit_code = 2


class FailedError(RunError):
  """The run started, and failed."""

  exit_code = 1


class NonFiniteError(FailedError):
  """A loss term or a gradient is not finite; the message names it and the step."""


class WriteError(FailedError):
  """The run cannot be saved, for example on a full disk; what was saved before stands."""


class ReportError(FailedError):
  """The training is finished and saved, but its report failed; the message says why."""


class Interrupted(RunError):
  """The run was asked to stop and has saved its state."""

  def __init__(self, message: str, signal_number: int):
    super().__init__(message)
    self.exit_code = 128 + signal_number  # as shells report it


@contextlib.contextmanager
def explained() -> Iterator[None]:
  """Turns a `ValueError` or `OSError` of the block into a `RunError` with the same message."""
  try:
    yield
  except (ValueError, OSError) as error:
    number = error.errno if isinstance(error, OSError) else None
    hint = ""
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
      hint = ". Make room there and give the same command again."
    elif number in (errno.EACCES, errno.EPERM, errno.EROFS):
      hint = ". Give permission there, or name another folder."
    raise RunError(f"{error}{hint}") from error


@contextlib.contextmanager
def in_flags(flags: Mapping[str, str], config: object) -> Iterator[None]:
  """Names keys of a saved config, in a `RunError` of the block, as the command's user can set them.

  `flags` are by key, as `{"data.dir": "--data_dir"}`. Other keys that a message names as
  `config.<key>` are those of the file `config`. `train.py --config.<key>` stays as it is.
  """
  try:
    yield
  except RunError as error:
    text = str(error)
    for key, flag in flags.items():
      text = re.sub(
        rf"(?<![\w./-])(config\.)?{re.escape(key)}\b(?!\.)", lambda _, to=flag: to, text
      )
    text = re.sub(
      r"(?<![\w./-])config\.(?!json)(\w+(\.\w+)*)", lambda key: f"{key[1]} of {config}", text
    )
    error.args = (text,)
    raise


@contextlib.contextmanager
def writing(what: str, folder: pathlib.Path) -> Iterator[None]:
  """Turns an error of the block into a `WriteError`."""
  try:
    yield
  except (OSError, ValueError) as error:
    cause = re.search(_DISK, str(error))
    raise WriteError(
      f"{what} cannot be written to {folder}: {cause[0] if cause else error}. The checkpoints"
      " before it stand: make room there, and the same command goes on from the last one."
    ) from error


@contextlib.contextmanager
def exit_with_message(*, process_ends: bool = False) -> Iterator[None]:
  """Ends the process on a `RunError` or a signal: the message on stderr, no traceback.

  What takes time, imports too, comes inside: a signal before would be Python's to report. Where the
  process ends after the block, signals are ignored from there on.
  """
  end_with_parent()
  with on_signal(lambda number: end(number, "nothing is lost; the same command starts again")):
    try:
      yield
    except RunError as error:
      tell(f"{'stopped' if isinstance(error, Interrupted) else 'error'}: {error}")
      sys.exit(error.exit_code)
    except KeyboardInterrupt:  # of a caller that receives signals itself
      tell("stopped: nothing is lost; the same command starts again")
      sys.exit(130)
    finally:
      if process_ends:
        ignore_signals()
