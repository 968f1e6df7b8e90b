"""Metrics of a run: means over steps, lines of `metrics.jsonl`, and what the terminal shows."""

import contextlib
import datetime
import json
import os
import pathlib
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column

from scae_jax.errors import RunError, writing
from scae_jax.files import write_whole
from scae_jax.training.hosts import is_first


class Window:
  """Sums of the training metrics since the last line; with several seeds, each sum is [seeds].

  Steps are added one by one in float64, so the sums do not depend on the dispatch length or on
  where a run was resumed.
  """

  def __init__(self, contents: Mapping[str, Any] | None = None):
    """A new window, or the one that `to_json` stored."""
    self.count = int(contents["count"]) if contents else 0
    # Of these steps; checkpoints of version 0.1 have none.
    self.seconds = float(contents.get("seconds", 0.0)) if contents else 0.0
    sums = contents["sums"] if contents else {}
    self._sums: dict[str, Any] = {name: np.float64(value) for name, value in sums.items()}

  def add(self, rows: Mapping[str, np.ndarray], seconds: float) -> None:
    """Adds steps, `{name: [n] or [n, seeds]}`, and their duration."""
    for name, values in rows.items():
      for value in values.astype(np.float64):
        self._sums[name] = self._sums.get(name, 0.0) + value
    self.count += len(next(iter(rows.values())))
    self.seconds += seconds

  def means(self) -> dict[str, Any]:
    """Mean of each metric over the window; the loss terms, `terms/...`, are a nested dict."""
    means = {name: total / self.count for name, total in self._sums.items()}
    return unflatten_dict(means, sep="/")

  def to_json(self) -> dict[str, Any]:
    """What a checkpoint stores."""
    sums = {name: np.asarray(value).tolist() for name, value in self._sums.items()}
    return {"count": self.count, "sums": sums, "seconds": self.seconds}


class MetricsWriter:
  """Appends lines to `metrics.jsonl` and, if asked for, to TensorBoard's files beside it.

  It is a context manager. When `write` returns, the line is on the disk and shown. `checksum` is
  the CRC-32 of all lines. Of several processes, only the first one writes.
  """

  def __init__(
    self,
    workdir: pathlib.Path,
    display: "Display",
    *,
    after_step: int,
    saved_checksum: int | None = None,
    tensorboard: bool = False,
  ):
    """Opens the files; removes lines of steps later than `after_step`, which are trained again.

    Says so if the remaining lines have another checksum than was saved. Raises `RunError` as
    `read_lines`, and `WriteError` if the file cannot be written.
    """
    self._workdir = workdir
    self._display = display
    self._file = self._tensorboard = self.checksum = None
    if not is_first():
      return
    path = workdir / "metrics.jsonl"
    lines = read_lines(path) if path.exists() else []
    kept = "".join(_dump(line) for line in lines if line["step"] <= after_step).encode()
    self.checksum = zlib.crc32(kept)
    if saved_checksum not in (None, self.checksum):
      display.say(
        f"{path} differs from what was written up to step {after_step}: lines are changed or"
        " missing. They stay as they are."
      )
    with writing("a line of metrics", workdir):
      write_whole(path, kept)
      self._file = path.open("ab")
      if tensorboard:
        folder = str(workdir / "tensorboard")
        self._tensorboard = import_tensorboard().SummaryWriter(folder, purge_step=after_step + 1)

  def __enter__(self) -> "MetricsWriter":
    return self

  def __exit__(self, *_: object) -> None:
    if self._file is not None:
      with contextlib.suppress(OSError):  # `write` has already raised it
        self._file.close()
    if self._tensorboard is not None:
      self._tensorboard.close()

  def write(self, line: Mapping[str, Any]) -> None:
    """Shows a line and appends it; raises `WriteError` if it cannot be written."""
    self._display.line(line)
    if self._file is None or self.checksum is None:
      return
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


def read_lines(path: pathlib.Path) -> list[dict[str, Any]]:
  """The lines of the file; an unfinished last line is left out.

  Raises `RunError` if the file cannot be read, or an earlier line is not a line of metrics.
  """
  try:
    texts = path.read_bytes().split(b"\n")
  except OSError as error:
    raise RunError(f"{path} cannot be read: {error}. Move it away and start again.") from error
  lines = []
  # The text after the last newline is empty or an unfinished line.
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
  """A line of the file; raises ValueError if it lacks an entry that every line has."""
  line = json.loads(text.decode("utf-8-sig"))  # Windows may write a mark before the first line
  if not isinstance(line, dict):
    raise ValueError(f"expected a JSON object, got {text[:40]!r}")
  for name, kind in (("step", int), ("split", str), ("timing", dict)):
    if type(line.get(name)) is not kind:
      raise ValueError(f"expected {name!r} of type {kind.__name__}, got {line.get(name)!r}")
  return line


def mean_over_seeds(numbers: Mapping[str, Any], seeds: Sequence[int]) -> dict[str, Any]:
  """Nested metrics as entries of a line.

  With several seeds, metrics are [seeds]: the entries are their means, and `seeds` has the values
  of each seed.
  """
  if len(seeds) == 1:
    return jax.tree.map(float, dict(numbers))
  by_seed = {
    str(seed): jax.tree.map(lambda values, i=i: float(values[i]), dict(numbers))
    for i, seed in enumerate(seeds)
  }
  return jax.tree.map(lambda values: float(np.mean(values)), dict(numbers)) | {"seeds": by_seed}


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


class Display:
  """Shows messages, lines of metrics and a progress bar; use as a context manager."""

  def __init__(self, *, num_steps: int, file: TextIO | None = None, silent: bool = False):
    """A display for a run of `num_steps` on `file` (standard error if None); none if `silent`."""
    self._num_steps = num_steps
    stream: Any = _ClosableStream(file or sys.stderr)
    self._console = Console(file=stream, highlight=False, quiet=silent)
    self._bar = _BarAboveNumbers(
      TextColumn("training"),
      BarColumn(),  # the only column that shrinks on a narrow terminal
      MofNCompleteColumn(table_column=Column(no_wrap=True)),
      TextColumn("{task.fields[speed]}"),
      console=self._console,
      disable=not self._console.is_terminal,
    )
    self._task = self._bar.add_task("", total=num_steps, speed="")

  def __enter__(self) -> "Display":
    self._bar.start()
    return self

  def __exit__(self, *_: object) -> None:
    self._bar.stop()

  def say(self, message: str) -> None:
    """Prints a message, above the bar if there is one."""
    self._console.print(message, markup=False, soft_wrap=True)

  def advance(self, step: int, steps_per_second: float) -> None:
    """Moves the bar to `step`."""
    speed = self._speed(step, steps_per_second)
    self._bar.update(self._task, completed=step, speed=speed)

  def line(self, line: Mapping[str, Any]) -> None:
    """Prints a line of metrics; on a terminal, training losses appear below the bar instead."""
    numbers = _numbers({"total": line["total"], **line["terms"]})
    if line["split"] == "train":
      if self._console.is_terminal:
        self._bar.numbers = numbers
        return
      numbers.append(self._speed(line["step"], line["timing"]["steps_per_second"]))
    else:
      numbers += _numbers(line["metrics"])
    # "validation", the longest name of a split, has ten letters.
    self.say(f"step {line['step']}/{self._num_steps}  {line['split']:10}  {'  '.join(numbers)}")

  def _speed(self, step: int, steps_per_second: float) -> str:
    left = datetime.timedelta(seconds=round((self._num_steps - step) / steps_per_second))
    return f"{steps_per_second:.4g} steps/s  {left} left"


class _ClosableStream:
  """A stream whose reader may disappear, for example a closed terminal; output is then lost."""

  def __init__(self, stream: TextIO):
    self._stream = stream

  def __getattr__(self, name: str) -> Any:
    return getattr(self._stream, name)

  def write(self, text: str) -> int:
    with contextlib.suppress(OSError):
      self._stream.write(text)
    return len(text)

  def flush(self) -> None:
    with contextlib.suppress(OSError):
      self._stream.flush()


class _BarAboveNumbers(Progress):
  """A progress bar above numbers, each "name value", in as many columns as fit."""

  numbers: Sequence[str] = ()

  def get_renderables(self) -> Iterable[RenderableType]:
    yield from super().get_renderables()
    if self.numbers:
      yield Columns(self.numbers, padding=(0, 2))


def _numbers(values: Mapping[str, float]) -> list[str]:
  return [f"{name} {value:.4g}" for name, value in values.items()]
