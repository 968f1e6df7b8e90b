"""What the user sees while a run trains: a progress bar on a terminal, plain lines elsewhere."""

import datetime
from collections.abc import Mapping
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn


class Display:
  """Shows messages, lines of metrics and how far the run is; use as a context manager."""

  def __init__(self, *, num_steps: int, file: TextIO | None = None):
    """A display of a run of `num_steps`, on `file` or standard error."""
    self._num_steps = num_steps
    self._console = Console(file=file, stderr=file is None, highlight=False, soft_wrap=True)
    self._bar = Progress(
      TextColumn("training"),
      BarColumn(),
      MofNCompleteColumn(),
      TextColumn("{task.fields[speed]}"),
      TextColumn("{task.fields[losses]}"),
      console=self._console,
      disable=not self._console.is_terminal,
    )
    self._task = self._bar.add_task("", total=num_steps, speed="", losses="")

  def __enter__(self) -> "Display":
    self._bar.start()
    return self

  def __exit__(self, *_: object) -> None:
    self._bar.stop()

  def say(self, message: str) -> None:
    """A message for the user, above the bar if there is one."""
    self._console.print(message, markup=False)

  def advance(self, step: int, steps_per_second: float) -> None:
    """The run has come to `step`."""
    speed = self._speed(step, steps_per_second)
    self._bar.update(self._task, completed=step, speed=speed)

  def line(self, line: Mapping[str, Any]) -> None:
    """A line of metrics; a terminal shows the training losses beside the bar instead."""
    losses = f"total {line['total']:.4g}  " + _numbers(line["terms"])
    if line["split"] == "train":
      self._bar.update(self._task, losses=losses)
      if self._console.is_terminal:
        return
      losses += "  " + self._speed(line["step"], line["timing"]["steps_per_second"])
    else:
      losses += "  " + _numbers(line["measures"])
    self.say(f"step {line['step']}/{self._num_steps}  {line['split']:5}  {losses}")

  def _speed(self, step: int, steps_per_second: float) -> str:
    if not steps_per_second:
      return ""
    left = datetime.timedelta(seconds=round((self._num_steps - step) / steps_per_second))
    return f"{steps_per_second:.4g} steps/s  {left} left"


def _numbers(values: Mapping[str, float]) -> str:
  return "  ".join(f"{name} {value:.4g}" for name, value in values.items())
