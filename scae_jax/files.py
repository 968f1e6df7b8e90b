"""Files that are written completely or not at all, and names of files and folders."""

import json
import os
import pathlib
import re
import uuid
import zlib
from collections.abc import Mapping
from typing import Any

from absl import logging

_SEAL = "checksum"  # key of the CRC-32 of all other keys and values


def write_whole(path: pathlib.Path, content: bytes) -> None:
  """Writes a file so that at any moment either the old or the new one is there, even after a kill.

  Creates its folder. An OSError names the file, and no unfinished file is left.
  """
  write_together({}, {path: content})


def write_together(
  parts: Mapping[pathlib.Path, bytes], marks: Mapping[pathlib.Path, bytes]
) -> None:
  """Writes files that belong together: a file of `marks` exists only if all `parts` are complete.

  First all files are written under temporary names, where a full disk does no harm. Then old marks
  are removed, unless there is only one file, and all files are renamed, the marks last, in their
  order. Creates folders. An OSError names the file, and no temporary file is left.
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
    if isinstance(error, OSError) and error.errno:  # the error of a full disk names no file
      raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
    raise


def write_json(path: pathlib.Path, content: Any) -> None:
  """`write_whole` of JSON; raises ValueError for NaN and infinity, which JSON does not have."""
  write_whole(path, json_bytes(content))


def json_bytes(content: Any) -> bytes:
  """JSON as `write_json` writes it."""
  return (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()


def sealed_json(content: Mapping[str, Any]) -> bytes:
  """An object as JSON, with a checksum by which `read_json` detects damage."""
  return (json.dumps({**content, _SEAL: _checksum(content)}, indent=2) + "\n").encode()


def read_json(path: pathlib.Path, *keys: str) -> dict[str, Any]:
  """Reads a JSON object that has these keys; warns if its checksum does not match.

  Raises ValueError, which names the file, if it cannot be read, is not an object or lacks a key.
  """
  try:
    content = json.loads(path.read_text(encoding="utf-8-sig"))  # Windows may write a mark first
  except (OSError, ValueError, RecursionError) as error:  # the last for deeply nested brackets
    raise ValueError(f"{path} cannot be read: {error}.") from error
  if not isinstance(content, dict):
    raise ValueError(f"{path} must be a JSON object; it is of type {type(content).__name__}.")
  if missing := [key for key in keys if key not in content]:
    raise ValueError(f"{path} must have {list(keys)}; it lacks {missing}.")
  if content.pop(_SEAL, None) not in (None, _checksum(content)):  # older files have no checksum
    logging.warning(
      "%s is not as it was written: it is damaged, or was edited. What it says now is used.", path
    )
  return content


def given_path(path: str | os.PathLike[str]) -> pathlib.Path:
  """The path that a user has typed, with `~` expanded; ValueError for an unknown home folder."""
  try:
    return pathlib.Path(path).expanduser()
  except RuntimeError as error:
    raise ValueError(f"{path} names the home folder of a user that is not known.") from error


def file_name(text: str) -> str:
  """The text as a file name: all but letters, digits, `_`, `.` and `-` becomes `_`."""
  return re.sub(r"[^\w.-]", "_", text)


def _checksum(content: Mapping[str, Any]) -> int:
  """CRC-32 of the content as JSON; it does not depend on the order of the keys."""
  return zlib.crc32(json.dumps(content, sort_keys=True).encode())
