"""What an evaluator yields: entries, figures and files of a report, each of one seed."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import matplotlib.figure


class Entry(NamedTuple):
  """An entry of `metrics.json`."""

  seed: int
  key: str
  value: Any  # as JSON has it


class Figure(NamedTuple):
  """A figure, drawn when it is saved."""

  seed: int
  name: str  # of the file, without its ending
  function: Callable[..., matplotlib.figure.Figure]
  arguments: Mapping[str, Any]

  def draw(self) -> matplotlib.figure.Figure:
    """The figure."""
    return self.function(**self.arguments)


class Pictured(NamedTuple):
  """The examples that the model's own figures show, see `System.pictures`."""

  seed: int
  batch: Mapping[str, Any]
  class_names: tuple[str, ...] = ()  # of capsules that stand for classes; () stands for numbers


class File(NamedTuple):
  """Another file of the report, such as `clusters.json`."""

  seed: int
  name: str
  content: bytes


Item = Entry | Figure | Pictured | File
