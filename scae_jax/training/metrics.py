"""Training metrics: `metrics.jsonl` and, if asked for, TensorBoard.

A line is `{"split": "train", "validation" or "test", "step", "terms", "total", ..., "timing"}`.
Everything but `timing` is a function of the config alone: an interrupted and resumed run writes the
same lines as an uninterrupted one. Where several seeds train at once, numbers are means over them
and `"seeds": {"0": {"terms", "total", ...}, ...}` has those of each.

`timing` of a training line has `steps_per_second` and `seconds` of the steps since the last line,
without compilation, evaluation and checkpoints. `wall_seconds`, with both, count from when this
process had compiled. A held-out line has the `seconds` of its evaluation.
"""

import contextlib
import json
import os
import pathlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from scae_jax.files import write_whole
from scae_jax.training.errors import RunError, writing


class Window:
  """Running sums of per-step training metrics since the last line, or [seeds] of several at once.

  They are taken step by step in float64: neither the dispatch length nor a resumption changes them.
  """

  def __init__(self, contents: Mapping[str, Any] | None = None):
    """A new window, or the one that `to_json` stored."""
    self.count = int(contents["count"]) if contents else 0
    sums = contents["sums"] if contents else {}
    self._sums: dict[str, Any] = {name: np.float64(value) for name, value in sums.items()}

  def add(self, rows: Mapping[str, np.ndarray]) -> None:
    """Adds steps: `{name: [n] or [n, seeds]}`."""
    for name, values in rows.items():
      for value in values.astype(np.float64):
        self._sums[name] = self._sums.get(name, 0.0) + value
    self.count += len(next(iter(rows.values())))

  def means(self) -> dict[str, Any]:
    """Mean of each metric over the window, `terms/...` in a dict of their own."""
    means = {name: total / self.count for name, total in self._sums.items()}
    return unflatten_dict(means, sep="/")

  def to_json(self) -> dict[str, Any]:
    """What a checkpoint stores."""
    sums = {name: np.asarray(value).tolist() for name, value in self._sums.items()}
    return {"count": self.count, "sums": sums}


class MetricsWriter:
  """Appends lines to `metrics.jsonl` and, if asked for, to TensorBoard's files beside it.

  A line is on its way to the disk when `write` returns; `checksum` is the CRC-32 of all lines.
  """

  def __init__(self, workdir: pathlib.Path, *, after_step: int, tensorboard: bool):
    """Opens the files and drops lines after a step, which will be written again.

    Raises `RunError` as `read_lines`, and `WriteError` if the file cannot be written.
    """
    self._workdir = workdir
    path = workdir / "metrics.jsonl"
    written = read_lines(path) if path.exists() else []
    kept = "".join(_dump(line) for line in written if line["step"] <= after_step).encode()
    self.checksum = zlib.crc32(kept)
    with writing("a line of metrics", workdir):
      write_whole(path, kept)
      self._file = path.open("ab")
      self._tensorboard = None
      if tensorboard:
        folder = str(workdir / "tensorboard")
        self._tensorboard = import_tensorboard().SummaryWriter(folder, purge_step=after_step + 1)

  def write(self, line: Mapping[str, Any]) -> None:
    """Records a line; raises `WriteError` if it cannot be."""
    text = _dump(line).encode()
    with writing("a line of metrics", self._workdir):
      self._file.write(text)
      self._file.flush()
      os.fsync(self._file.fileno())
      self.checksum = zlib.crc32(text, self.checksum)
      if self._tensorboard is not None:
        for name, value in flatten_dict(dict(line), sep="/").items():
          if isinstance(value, float):
            self._tensorboard.add_scalar(f"{line['split']}/{name}", value, line["step"])

  def close(self) -> None:
    with contextlib.suppress(OSError):  # of a line that `write` has refused
      self._file.close()
    if self._tensorboard is not None:
      self._tensorboard.close()


def read_lines(path: pathlib.Path) -> list[dict[str, Any]]:
  """The lines of the file, without an unfinished last one.

  Raises `RunError` if the file cannot be read, or a line before the last is not one of metrics.
  """
  try:
    texts = path.read_bytes().split(b"\n")
  except OSError as error:
    raise RunError(f"{path} cannot be read: {error}. Move it away and start again.") from error
  lines = []
  # What follows the last newline is empty, or a line that was not finished.
  for number, text in enumerate(texts[:-1], start=1):
    try:
      lines.append(_parse(text))
    except (ValueError, RecursionError) as error:
      raise RunError(
        f"{path} line {number} is not JSON of a line of metrics ({error}). Repair or remove that"
        " line and start again."
      ) from error
  return lines


def _parse(text: bytes) -> dict[str, Any]:
  """A line of the file; raises ValueError if it lacks what every line has."""
  line = json.loads(text.decode())
  if not isinstance(line, dict):
    raise ValueError(f"expected a JSON object, got {text[:40]!r}")
  for name, kind in (("step", int), ("split", str), ("timing", dict)):
    if type(line.get(name)) is not kind:
      raise ValueError(f"expected {name!r} of type {kind.__name__}, got {line.get(name)!r}")
  return line


def of_seeds(numbers: Mapping[str, Any], seeds: Sequence[int]) -> dict[str, Any]:
  """Nested numbers as entries of a line; of arrays [seeds] the means, and `seeds` with each."""
  if len(seeds) == 1:
    return jax.tree.map(float, dict(numbers))
  each = {
    str(seed): jax.tree.map(lambda values, i=i: float(values[i]), dict(numbers))
    for i, seed in enumerate(seeds)
  }
  return jax.tree.map(lambda values: float(np.mean(values)), dict(numbers)) | {"seeds": each}


def _dump(line: Mapping[str, Any]) -> str:
  return json.dumps(line) + "\n"


def import_tensorboard() -> Any:
  """The module that writes TensorBoard's files; raises `RunError` if it is not installed."""
  try:
    import tensorboardX
  except ImportError as error:
    raise RunError(
      "config.train.tensorboard=True needs the package tensorboardX, which is not installed."
      " Install it with `pip install -r requirements-tensorboard.txt`, or leave the key False."
    ) from error
  return tensorboardX
