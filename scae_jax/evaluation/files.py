"""Files that are either whole or not there, whatever interrupts, and the folders they go to."""

import json
import os
import pathlib
import re
import tempfile
from collections.abc import Collection
from typing import Any


def write_whole(path: pathlib.Path, content: bytes) -> None:
  """Writes a file so that whoever looks, or interrupts, finds the old one or the new one.

  Raises:
    OSError: the folder cannot be written to; nothing is left behind.
  """
  descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
  try:
    with os.fdopen(descriptor, "wb") as file:
      file.write(content)
      file.flush()
      os.fsync(file.fileno())
    pathlib.Path(draft).chmod(0o666 & ~_umask())  # mkstemp makes files for the owner alone
    os.replace(draft, path)
  except BaseException:
    pathlib.Path(draft).unlink(missing_ok=True)
    raise


def write_json(path: pathlib.Path, content: Any) -> None:
  """Writes JSON whole; raises ValueError for NaN and infinity, which JSON does not have."""
  write_whole(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def file_name(text: str) -> str:
  """The text with all but letters, digits, `_`, `.` and `-` made `_`: "a/b:1" gives "a_b_1"."""
  return re.sub(r"[^\w.-]", "_", text)


def make_writable(directory: pathlib.Path) -> None:
  """Makes the directory; raises OSError when files cannot be written there."""
  directory.mkdir(parents=True, exist_ok=True)
  probe = directory / ".writable"
  probe.write_bytes(b"")
  probe.unlink()


def seed_folders(directory: pathlib.Path, seeds: Collection[int]) -> dict[int, pathlib.Path]:
  """Where the report on each seed goes: of several, to `seed-<number>` in the directory."""
  if len(seeds) == 1:
    return dict.fromkeys(seeds, directory)
  return {seed: directory / f"seed-{seed}" for seed in seeds}


def _umask() -> int:
  mask = os.umask(0)
  os.umask(mask)
  return mask
