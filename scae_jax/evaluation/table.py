"""Tables: of one report on stdout, and of any cells in Markdown."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

# Of a classifier, by their keys in `metrics.json`.
OF_ANSWERS = ("accuracy", "error", "both_right", "mean_confidence", "expected_calibration_error")


class _Cells(NamedTuple):
  """Titles of columns, "" for none; rows; and how many columns, from the left, name the row."""

  columns: tuple[str, ...]
  rows: list[tuple[str, ...]]
  num_names: int = 1


def print_table(metrics: Mapping[str, Any]) -> None:
  """Prints the figures of a report to stdout: framed on a terminal, plain elsewhere.

  Args:
    metrics: what `report.write_reports` returns of a seed.
  """
  if not sys.stdout.isatty():
    print(plain_table(metrics))
    return
  cells = _cells(metrics)
  table = Table(title=_heading(metrics), title_justify="left", title_style="bold")
  table.show_header = any(cells.columns)
  for i, column in enumerate(cells.columns):
    table.add_column(column, justify="left" if i < cells.num_names else "right")
  for row in cells.rows:
    table.add_row(*row)
  console = Console(highlight=False)
  console.print(table)
  console.print("\n".join(_remarks(metrics)), markup=False)


def plain_table(metrics: Mapping[str, Any]) -> str:
  """The same as text: a heading, aligned columns, and what else was measured."""
  cells = _cells(metrics)
  shown = [cells.columns, *cells.rows] if any(cells.columns) else cells.rows
  widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
  lines = [
    "  ".join(
      cell.ljust(width) if i < cells.num_names else cell.rjust(width)
      for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ).rstrip()
    for row in shown
  ]
  return "\n".join([_heading(metrics), *lines, *_remarks(metrics)])


def markdown(rows: Sequence[Sequence[str]]) -> str:
  """A table of cells in Markdown, whose first row is the head."""
  head = "".join(f" {cell} |" if cell else " |" for cell in rows[0])
  lines = [f"| {' | '.join(cells)} |" for cells in rows[1:]]
  return "\n".join([f"|{head}", "|---" * len(rows[0]) + "|", *lines])


def classification_figures(entries: Mapping[str, Any]) -> dict[str, float]:
  """The figures under `classification` in a report, in percent; without the confusion matrix."""
  return {words(name): 100 * entries[name] for name in OF_ANSWERS if name in entries}


def words(name: str) -> str:
  """A key of `metrics.json` as tables show it."""
  return name.replace("_", " ")


def _heading(metrics: Mapping[str, Any]) -> str:
  scored, fitted = metrics["scored_on"], metrics.get("fitted_on")
  unit = "scenes" if "segmentation" in metrics else "examples"
  text = f"{scored['dataset']} {scored['split']}, {scored['examples']:,} {unit};"
  if fitted:
    text += f" fitted on {fitted['dataset']} {fitted['split']}, {fitted['examples']:,};"
  return f"{text} step {metrics['step']:,}"


def _cells(metrics: Mapping[str, Any]) -> _Cells:
  if "segmentation" in metrics:
    columns = ("jitter", "", "accuracy", "Rand index", "VI, nats")
    others = ("adjusted_rand_index", "variation_of_information")
    rows = [
      (jitter, words(kind), _percent(one["accuracy"]), *(f"{one[name]:.3f}" for name in others))
      for jitter, kinds in metrics["segmentation"].items()
      for kind, one in kinds.items()
    ]
    return _Cells(columns, rows, num_names=2)
  if "classification" in metrics:
    found = classification_figures(metrics["classification"])
    return _Cells(("", ""), [(name, f"{value:.2f} %") for name, value in found.items()])
  readings, rows = metrics.get("readings", {}), []
  for name, one in [*metrics["features"].items(), ("raw_pixels", metrics["pixels"])]:
    used = f"{one['capsules_in_use']} of {one['capsules']}" if "capsules" in one else ""
    rows.append((words(name), _percent(one["lin_match"]), _percent(one["lin_pred"]), used))
  rows[-1:-1] = [(words(name), "", _percent(one["lin_pred"]), "") for name, one in readings.items()]
  return _Cells(("", "LIN-MATCH", "LIN-PRED", "capsules in use"), rows)


def _remarks(metrics: Mapping[str, Any]) -> list[str]:
  measures = metrics.get("measures", {})
  lines = [f"{words(name)}: {value:.4g} (mean over examples)" for name, value in measures.items()]
  return lines + [f"note: {note}" for note in metrics["notes"]]


def _percent(share: float) -> str:
  return f"{100 * share:.1f} %"
