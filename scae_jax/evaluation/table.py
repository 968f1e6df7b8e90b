"""The report's figures as a table to read."""

import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from scae_jax.evaluation.summary import classification_figures

_COLUMNS = ("", "LIN-MATCH", "LIN-PRED", "capsules in use")


def print_table(metrics: Mapping[str, Any]) -> None:
  """Prints the figures of a report to stdout: framed on a terminal, plain elsewhere.

  Args:
    metrics: what `write_report` returns.
  """
  if not sys.stdout.isatty():
    print(plain_table(metrics))
    return
  table = Table(title=_heading(metrics), title_justify="left", title_style="bold")
  for i, column in enumerate(_COLUMNS):
    table.add_column(column, justify="right" if i else "left")
  for row in _rows(metrics):
    table.add_row(*row)
  console = Console(highlight=False)
  console.print(table)
  console.print("\n".join(_remarks(metrics)), markup=False)


def plain_table(metrics: Mapping[str, Any]) -> str:
  """The same as text: a heading, aligned columns, and what else was measured."""
  rows = [_COLUMNS, *_rows(metrics)]
  widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
  lines = [
    "  ".join(
      cell.rjust(width) if i else cell.ljust(width)
      for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ).rstrip()
    for row in rows
  ]
  return "\n".join([_heading(metrics), *lines, *_remarks(metrics)])


def plain_scene_table(metrics: Mapping[str, Any]) -> str:
  """The figures of a report on scenes of points as text: one row a jitter and kind of presence.

  Args:
    metrics: what `scene_report.write_scene_reports` returns of a seed.
  """
  scored = metrics["scored_on"]
  lines = [
    f"{scored['dataset']} {scored['split']}, {scored['examples']:,} scenes; step"
    f" {metrics['step']:,}",
    f"{'jitter':<8}{'':<20}{'accuracy':>10}{'Rand index':>12}{'VI, nats':>10}",
  ]
  for jitter, kinds in metrics["segmentation"].items():
    lines += [
      f"{jitter:<8}{kind.replace('_', ' '):<20}{_percent(scores['accuracy']):>10}"
      f"{scores['adjusted_rand_index']:>12.3f}{scores['variation_of_information']:>10.3f}"
      for kind, scores in kinds.items()
    ]
  return "\n".join([*lines, *(f"note: {note}" for note in metrics["notes"])])


def plain_classification_table(metrics: Mapping[str, Any]) -> str:
  """The figures of a report on a classifier as text: one a row, then what else was measured.

  Args:
    metrics: what `classification_report.write_classification_reports` returns of a seed.
  """
  scored = metrics["scored_on"]
  rows = classification_figures(metrics["classification"])
  lines = [f"{name:<28}{value:>7.2f} %" for name, value in rows.items()]
  heading = f"{scored['dataset']} {scored['split']}, {scored['examples']:,} examples"
  return "\n".join([f"{heading}; step {metrics['step']:,}", *lines, *_remarks(metrics)])


def _heading(metrics: Mapping[str, Any]) -> str:
  scored, fitted = metrics["scored_on"], metrics["fitted_on"]
  return (
    f"{scored['dataset']} {scored['split']}, {scored['examples']:,} examples; fitted on "
    f"{fitted['dataset']} {fitted['split']}, {fitted['examples']:,}; step {metrics['step']:,}"
  )


def _rows(metrics: Mapping[str, Any]) -> list[tuple[str, ...]]:
  rows = [
    (
      name.replace("_", " "),
      _percent(scores["lin_match"]),
      _percent(scores["lin_pred"]),
      f"{scores['capsules_in_use']} of {scores['capsules']}",
    )
    for name, scores in metrics["features"].items()
  ]
  if "readings" in metrics:
    rows += [
      (name.replace("_", " "), "", _percent(scores["lin_pred"]), "")
      for name, scores in metrics["readings"].items()
    ]
  pixels = metrics["pixels"]
  return [*rows, ("raw pixels", _percent(pixels["lin_match"]), _percent(pixels["lin_pred"]), "")]


def _remarks(metrics: Mapping[str, Any]) -> list[str]:
  measures = [
    f"{name.replace('_', ' ')}: {value:.4g} (mean over examples)"
    for name, value in metrics["measures"].items()
  ]
  return measures + [f"note: {note}" for note in metrics["notes"]]


def _percent(share: float) -> str:
  return f"{100 * share:.1f} %"
