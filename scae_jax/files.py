"""Files that are written whole or not at all, and the folders they go to."""

import json
import os
import pathlib
import re
import uuid
import zlib
from collections.abc import Mapping
from typing import Any

from absl import logging

_SEAL = "checksum"  # key of the CRC-32 of all others


def write_whole(path: pathlib.Path, content: bytes) -> None:
  """Writes a file so that whoever looks, or interrupts, finds the old one or the new one.

  Its folder is made if need be. An OSError names the file, and nothing is left behind.
  """
  write_together({}, {path: content})


def write_together(
  parts: Mapping[pathlib.Path, bytes], marks: Mapping[pathlib.Path, bytes]
) -> None:
  """Writes files that belong together, so that the `marks` stand only beside all of their `parts`.

  First all are written under names of their own, where a full disk does no harm. Then old marks are
  removed, unless there is but one file, and all take their names, the marks last, in their order.
  Folders are made if need be. An OSError names the file, and no draft is left behind.
  """
  drafts: dict[pathlib.Path, pathlib.Path] = {}
  path = pathlib.Path()
  try:
    for path, content in {**parts, **marks}.items():
      path.parent.mkdir(parents=True, exist_ok=True)
      drafts[path] = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
      with drafts[path].open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if len(drafts) > 1:
      for path in reversed(list(marks)):
        path.unlink(missing_ok=True)
    for path in (*parts, *marks):
      drafts[path].replace(path)
  except BaseException as error:
    for draft in drafts.values():
      draft.unlink(missing_ok=True)
    if isinstance(error, OSError) and error.errno:  # a full disk does not say by itself which
      raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
    raise


def write_json(path: pathlib.Path, content: Any) -> None:
  """Writes JSON whole; raises ValueError for NaN and infinity, which JSON does not have."""
  write_whole(path, json_bytes(content))


def json_bytes(content: Any) -> bytes:
  """JSON as `write_json` writes it."""
  return (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()


def sealed_json(content: Mapping[str, Any]) -> bytes:
  """An object as JSON, with a checksum by which `read_json` sees damage."""
  return (json.dumps({**content, _SEAL: _checksum(content)}, indent=2) + "\n").encode()


def read_json(path: pathlib.Path, *keys: str) -> dict[str, Any]:
  """Reads a JSON object that has these keys; warns if it was sealed and has changed since.

  Raises ValueError, which names the file, if it cannot be read or is no such object.
  """
  try:
    content = json.loads(path.read_text(encoding="utf-8"))
  except (OSError, ValueError, RecursionError) as error:  # the last of brackets without end
    raise ValueError(f"{path} cannot be read: {error}.") from error
  if not isinstance(content, dict):
    raise ValueError(f"{path} must be a JSON object; it is of type {type(content).__name__}.")
  if missing := [key for key in keys if key not in content]:
    raise ValueError(f"{path} must have {list(keys)}; it lacks {missing}.")
  if content.pop(_SEAL, None) not in (None, _checksum(content)):  # older versions sealed nothing
    logging.warning(
      "%s is not as it was written: it is damaged, or was edited. What it says now is used.", path
    )
  return content


def given_path(path: str | os.PathLike[str]) -> pathlib.Path:
  """A path as a user gives it, with `~` for the home folder; ValueError if there is none."""
  try:
    return pathlib.Path(path).expanduser()
  except RuntimeError as error:
    raise ValueError(f"{path} names the home folder of a user that is not known.") from error


def file_name(text: str) -> str:
  """The text with all but letters, digits, `_`, `.` and `-` made `_`: "a/b:1" gives "a_b_1"."""
  return re.sub(r"[^\w.-]", "_", text)


def _checksum(content: Mapping[str, Any]) -> int:
  """CRC-32 of what is saved as JSON, whatever the order of its keys."""
  return zlib.crc32(json.dumps(content, sort_keys=True).encode())
