"""How a run ends before its last step: with a message for the user and an exit code.

0         trained to the last step
1         the run failed: a loss is not finite, a disk is full, the report of a saved training
          failed, or (with a traceback) the program has a defect
2         the run could not start as asked: config, data set, workdir or checkpoint
130, 143, 129  interrupted by Ctrl-C, SIGTERM or SIGHUP, saved; the same command resumes

This module imports nothing that is slow to import, see `interrupt`.
"""

import contextlib
import errno
import io
import os
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
  write_to,
)

# The cause in a message of tensorstore, which has many lines.
_DISK_ERRORS = (
  "No space left on device|Disk quota exceeded|File too large|Read-only file system"
  "|Permission denied|Input/output error"
)


class RunError(Exception):
  """The run cannot start as asked; the message has what is expected, what is given and a remedy."""

  exit_code = 2


class FailedError(RunError):
  """The run started and then failed."""

  exit_code = 1


class NonFiniteError(FailedError):
  """A loss term or a gradient is not finite; the message names it and the step."""


class WriteError(FailedError):
  """The run cannot be saved, for example on a full disk; earlier checkpoints stay."""


class ReportError(FailedError):
  """The training is finished and saved, but its report failed; the message says why."""


class Interrupted(RunError):
  """The run was asked to stop and has saved its state."""

  def __init__(self, message: str, signal_number: int):
    super().__init__(message)
    self.exit_code = 128 + signal_number  # as shells report it


@contextlib.contextmanager
def as_run_errors() -> Iterator[None]:
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
def keys_as_flags(flags: Mapping[str, str], config: object) -> Iterator[None]:
  """Rewrites a `RunError` of the block: config keys become the flags of a command.

  `flags` are by key, as `{"data.dir": "--data_dir"}`. Any other `config.<key>` in the message
  becomes `<key> of <config>`, where `config` is the saved file. `--config.<key>`, a flag of
  train.py, stays as it is.
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
    cause = re.search(_DISK_ERRORS, str(error))
    raise WriteError(
      f"{what} cannot be written to {folder}: {cause[0] if cause else error}. The checkpoints"
      " before it stand: make room there, and the same command goes on from the last one."
    ) from error


def _check_current_folder() -> None:
  """Raises `RunError` if the current folder was removed: no relative path means anything then."""
  try:
    os.getcwd()
  except FileNotFoundError as error:
    raise RunError("the current folder is not there any more; change to one that is.") from error


@contextlib.contextmanager
def exit_with_message(*, process_ends: bool = False) -> Iterator[None]:
  """Ends the process on a `RunError` or a signal, with a message on stderr and no traceback.

  Slow code belongs into the block, slow imports too: before it, Python would report a signal by a
  traceback. If the process ends after the block, signals are ignored from then on.
  """
  if process_ends:
    # Figures need no window, and that of a notebook may not be installed here.
    os.environ["MPLBACKEND"] = "agg"
    # Python writes its errors like that: a name in other letters than the terminal's is no error.
    if isinstance(sys.stdout, io.TextIOWrapper):
      sys.stdout.reconfigure(errors="backslashreplace")
  end_with_parent()
  with on_signal(lambda number: end(number, "nothing is lost; the same command starts again")):
    try:
      _check_current_folder()
      yield
    except RunError as error:
      tell(f"{'stopped' if isinstance(error, Interrupted) else 'error'}: {error}")
      sys.exit(error.exit_code)
    except KeyboardInterrupt:  # of a caller that receives signals itself
      tell("stopped: nothing is lost; the same command starts again")
      sys.exit(130)
    finally:
      if process_ends:
        write_to(sys.stdout, "")  # otherwise Python does it, and fails if the reader has ended
        ignore_signals()
