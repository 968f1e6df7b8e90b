"""Ways to damage a folder, drawn at random."""

import json
import pathlib
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

WRONG_JSON = (
  b"[1]",
  b"null",
  b"3",
  b'"text"',
  b"{}",
  b'{"step": null}',
  b'{"a": {"b": [1, {}]}}',
  b"[" * 100_000,
  b'{"a": ' * 5_000,
  b"\xff\xfe\x00",
  b'{"system": "os.path"}',
)
WRONG_VALUES = (None, True, -1, 0, 1e400, 10**30, "", "text", [], {}, [[1]], {"a": 1})


def damage(folder: pathlib.Path, rng: np.random.Generator) -> list[str]:
  """Applies one to three random damages to the folder; returns a line for each."""
  done = []
  for _ in range(rng.integers(1, 4)):
    way = WAYS[rng.integers(len(WAYS))]
    done.append(f"{way.__name__} {way(folder, rng)}")
  return done


def truncate(folder: pathlib.Path, rng: np.random.Generator) -> str:
  path, content = _draw_file(folder, rng)
  path.write_bytes(content[: rng.integers(len(content) + 1)])
  return _name(folder, path)


def empty(folder: pathlib.Path, rng: np.random.Generator) -> str:
  path, _ = _draw_file(folder, rng)
  path.write_bytes(b"")
  return _name(folder, path)


def flip_bits(folder: pathlib.Path, rng: np.random.Generator) -> str:
  path, content = _draw_file(folder, rng)
  changed = np.frombuffer(content, np.uint8).copy()
  places = rng.integers(max(len(changed), 1), size=rng.integers(1, 5) if len(changed) else 0)
  changed[places] ^= (1 << rng.integers(8, size=len(places))).astype(np.uint8)
  path.write_bytes(changed.tobytes())
  return f"{_name(folder, path)} at {places.tolist()}"


def overwrite(folder: pathlib.Path, rng: np.random.Generator) -> str:
  """Overwrites a block with zeros or noise, as a broken disk does."""
  path, content = _draw_file(folder, rng)
  start = int(rng.integers(len(content) + 1))
  block = bytes(64) if rng.integers(2) else rng.bytes(64)
  path.write_bytes(content[:start] + block + content[start + 64 :])
  return f"{_name(folder, path)} at {start}"


def append(folder: pathlib.Path, rng: np.random.Generator) -> str:
  path, content = _draw_file(folder, rng)
  path.write_bytes(content + (content[-50:] if rng.integers(2) else rng.bytes(20)))
  return _name(folder, path)


def delete(folder: pathlib.Path, rng: np.random.Generator) -> str:
  path = _draw(_paths(folder), rng)
  shutil.rmtree(path) if path.is_dir() else path.unlink()
  return _name(folder, path)


def swap(folder: pathlib.Path, rng: np.random.Generator) -> str:
  """Swaps two files or folders of one name, such as those of two checkpoints, or any two files."""
  first = _draw(_paths(folder), rng)
  others = [path for path in _paths(folder) if path.name == first.name and path != first]
  if first.name.isdecimal():
    others = [path for path in first.parent.iterdir() if path != first]
  if not others:
    first, others = _draw_file(folder, rng)[0], [_draw_file(folder, rng)[0]]
  second = _draw(others, rng)
  if first != second and first not in second.parents and second not in first.parents:
    spare = folder / "spare"
    first.rename(spare)
    second.rename(first)
    spare.rename(second)
  return f"{_name(folder, first)} and {_name(folder, second)}"


def make_folder(folder: pathlib.Path, rng: np.random.Generator) -> str:
  path, _ = _draw_file(folder, rng)
  path.unlink()
  path.mkdir()
  return _name(folder, path)


def make_file(folder: pathlib.Path, rng: np.random.Generator) -> str:
  folders = [path for path in _paths(folder) if path.is_dir()]
  if not folders:
    return "nothing"
  path = _draw(folders, rng)
  shutil.rmtree(path)
  path.write_bytes(b"" if rng.integers(2) else b"text")
  return _name(folder, path)


def put_other_json(folder: pathlib.Path, rng: np.random.Generator) -> str:
  path, _ = _draw_file(folder, rng, _is_json)
  content = _draw(WRONG_JSON, rng)
  path.write_bytes(content)
  return f"{_name(folder, path)}: {content[:30]!r}"


def change_json(folder: pathlib.Path, rng: np.random.Generator) -> str:
  """Changes one value or key of a JSON file, or of one line of a .jsonl file."""
  path, content = _draw_file(folder, rng, _is_json)
  lines = content.splitlines() if path.suffix == ".jsonl" else [content]
  if not lines:
    return "nothing"
  number = int(rng.integers(len(lines)))
  try:
    value = json.loads(lines[number])
  except (ValueError, RecursionError):  # is damaged already
    return "nothing"
  lines[number] = json.dumps(_changed(value, rng)).encode()
  path.write_bytes(b"\n".join(lines) + b"\n")
  return f"{_name(folder, path)}: {lines[number][:200]!r}"


WAYS: tuple[Callable[[pathlib.Path, np.random.Generator], str], ...] = (
  truncate,
  empty,
  flip_bits,
  overwrite,
  append,
  delete,
  swap,
  make_folder,
  make_file,
  put_other_json,
  change_json,
)


def _changed(value: Any, rng: np.random.Generator) -> Any:
  if isinstance(value, dict) and value and rng.integers(6):
    key = _draw(sorted(value), rng)
    if not rng.integers(6):
      return {name: item for name, item in value.items() if name != key}
    return value | {key: _changed(value[key], rng)}
  if isinstance(value, int | float) and rng.integers(2):
    return value + 1
  return _draw(WRONG_VALUES, rng)


def _paths(folder: pathlib.Path) -> list[pathlib.Path]:
  return sorted(folder.rglob("*"))


def _draw(items: Sequence[Any], rng: np.random.Generator) -> Any:
  return items[int(rng.integers(len(items)))]


def _draw_file(
  folder: pathlib.Path,
  rng: np.random.Generator,
  may_be: Callable[[pathlib.Path], bool] = lambda path: True,
) -> tuple[pathlib.Path, bytes]:
  """A random file and its content; every second one lies directly in the folder.

  Checkpoints have many more files than the folder itself.
  """
  files = [path for path in _paths(folder) if path.is_file() and may_be(path)]
  top_level = [path for path in files if path.parent == folder]
  path = _draw(top_level if top_level and rng.integers(2) else files or [_new(folder)], rng)
  return path, path.read_bytes()


def _is_json(path: pathlib.Path) -> bool:
  names = ("_METADATA", "_CHECKPOINT_METADATA", "_sharding", "metadata", "process_0")
  return path.suffix in (".json", ".jsonl") or path.name in names


def _new(folder: pathlib.Path) -> pathlib.Path:
  path = folder / "new"
  path.write_bytes(b"")
  return path


def _name(folder: pathlib.Path, path: pathlib.Path) -> str:
  return str(path.relative_to(folder))
