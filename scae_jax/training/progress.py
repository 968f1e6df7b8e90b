"""What the user sees while a run trains: a progress bar on a terminal, plain lines elsewhere."""

import contextlib
import datetime
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column


class Display:
  """Shows messages, lines of metrics and how far the run is; use as a context manager."""

  def __init__(self, *, num_steps: int, file: TextIO | None = None, silent: bool = False):
    """A display of a run of `num_steps`, on `file` or standard error, or nowhere if `silent`."""
    self._num_steps = num_steps
    stream: Any = _Lasting(file or sys.stderr)
    self._console = Console(file=stream, highlight=False, quiet=silent)
    self._bar = _BarAboveNumbers(
      TextColumn("training"),
      BarColumn(),  # the only column that gives way on a narrow terminal
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
    """A message for the user, above the bar if there is one."""
    self._console.print(message, markup=False, soft_wrap=True)

  def advance(self, step: int, steps_per_second: float) -> None:
    """Moves the bar to `step`."""
    speed = self._speed(step, steps_per_second)
    self._bar.update(self._task, completed=step, speed=speed)

  def line(self, line: Mapping[str, Any]) -> None:
    """Prints a line of metrics; on a terminal, training losses go below the bar instead."""
    numbers = _numbers({"total": line["total"], **line["terms"]})
    if line["split"] == "train":
      if self._console.is_terminal:
        self._bar.numbers = numbers
        return
      numbers.append(self._speed(line["step"], line["timing"]["steps_per_second"]))
    else:
      numbers += _numbers(line["metrics"])
    # The longest name of a split, validation, has ten letters.
    self.say(f"step {line['step']}/{self._num_steps}  {line['split']:10}  {'  '.join(numbers)}")

  def _speed(self, step: int, steps_per_second: float) -> str:
    left = datetime.timedelta(seconds=round((self._num_steps - step) / steps_per_second))
    return f"{steps_per_second:.4g} steps/s  {left} left"


class _Lasting:
  """A stream whose reader may go, as with a closed terminal; what is written then is lost."""

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
  """A progress bar, and below it numbers, each "name value", in as many columns as fit."""

  numbers: Sequence[str] = ()

  def get_renderables(self) -> Iterable[RenderableType]:
    yield from super().get_renderables()
    if self.numbers:
      yield Columns(self.numbers, padding=(0, 2))


def _numbers(values: Mapping[str, float]) -> list[str]:
  return [f"{name} {value:.4g}" for name, value in values.items()]
