"""Tables of results from the records' JSON: docs/results.md, README.md and the records' pages.

    python -m experiments.table

`results/table.toml` names the figures and the file of each. A table replaces what stands between
the lines `<!-- table -->` and `<!-- end of table -->` of its page.
"""

import argparse
import csv
import fnmatch
import itertools
import json
import pathlib
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORDS = ROOT / "results"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"
MINUTES = "*/figures/steps alone, minutes"


class Row(NamedTuple):
  """A measure of a system, of each of its runs."""

  record: str  # the folder in results/
  system: str
  data: str
  measure: str
  values: list[float]  # of each run
  digits: int  # after the point
  published: str
  minutes: str  # of training steps
  command: str
  note: str  # what qualifies the figure, such as "not finished"
  detail: bool  # only the record's page has it


def values_at(content: Any, path: str) -> list[Any]:
  """Values of nested lists and dicts at a path such as "*/figures/accuracy".

  Names are separated by "/" and may be patterns of fnmatch; elements of a list go by number.
  """
  nodes = [content]
  for name in path.split("/"):
    nodes = [
      child
      for node in nodes
      for key, child in (node.items() if isinstance(node, dict) else enumerate(node))
      if fnmatch.fnmatchcase(str(key), name)
    ]
  return nodes


def contents(folder: pathlib.Path, pattern: str, split: str) -> list[Any]:
  """Contents of the files of a folder that a pattern matches, in alphabetical order.

  Of a JSONL file it is the last line of the split, of a sweep's CSV file `{row: {seed: figures}}`.
  """
  read = {".jsonl": lambda path: _last_line(path, split), ".csv": _by_row_and_seed}
  return [
    read.get(path.suffix, lambda path: json.loads(path.read_text()))(path)
    for path in sorted(folder.glob(pattern))
  ]


def _figures(folder: pathlib.Path, files: Sequence[str], path: str, split: str = "") -> list[float]:
  """Values at a path in files of a record. ValueError if there are none."""
  read = [content for name in files for content in contents(folder, name, split)]
  figures = [value for content in read for value in values_at(content, path)]
  if not figures:
    raise ValueError(f"table.toml: {path!r} is in none of {list(files)} of {folder.name}.")
  return figures


def _by_row_and_seed(path: pathlib.Path) -> dict[str, dict[str, dict[str, float]]]:
  figures: dict[str, dict[str, dict[str, float]]] = {}
  with path.open(newline="") as file:
    for line in csv.DictReader(file):
      name, seed = line.pop("row"), line.pop("seed")
      numbers = {column: float(cell) for column, cell in line.items() if cell}
      figures.setdefault(name, {})[seed] = numbers
  return figures


def _last_line(path: pathlib.Path, split: str) -> dict[str, Any]:
  lines = [json.loads(line) for line in path.read_text().splitlines()]
  return [line for line in lines if line["split"] == split][-1]


def read_rows(folder: pathlib.Path = RECORDS) -> list[Row]:
  """All rows of a folder's table.toml, in its order. ValueError for a figure that is not there."""
  systems = tomllib.loads((folder / "table.toml").read_text())["systems"]
  return [_row(folder, {**system, **row}) for system in systems for row in system["rows"]]


def _row(folder: pathlib.Path, options: Mapping[str, Any]) -> Row:
  record, split = options["record"], options.get("split", "")

  def figures_at(path: str) -> list[float]:
    return _figures(folder / record, options["files"], path, split)

  minutes = options.get("minutes")
  if "steps_of" in options:  # the metrics.jsonl of each run in turn
    runs = [sorted((folder / record).glob(name)) for name in options["steps_of"]]
    minutes = " + ".join(_range([_minutes(path) for path in paths]) for paths in runs)
    minutes += options["cores"]
  elif minutes is None:
    minutes = _range(figures_at(MINUTES)) + options["cores"]
  note = options.get("note", "")
  if "step_at" in options:
    note = note.format(step=figures_at(options["step_at"])[-1])
  return Row(
    record=record,
    system=options["name"],
    data=options["data"],
    measure=options["measure"],
    values=[value * options.get("scale", 1) for value in figures_at(options["at"])],
    digits=options.get("digits", 1),
    published=str(options.get("published", "")),
    minutes=minutes,
    command=options["command"],
    note=note,
    detail=options.get("detail", False),
  )


def _minutes(path: pathlib.Path) -> float:
  """Minutes of training steps by the lines of a run's metrics.jsonl."""
  lines = [json.loads(line) for line in path.read_text().splitlines()]
  return sum(line["timing"]["seconds"] for line in lines if line["split"] == "train") / 60


def _range(values: Sequence[float]) -> str:
  least, most = f"{min(values):.1f}", f"{max(values):.1f}"
  return least if least == most else f"{least} to {most}"


def figure(row: Row) -> str:
  """Mean and, of several runs, standard deviation (n - 1) of a row; then its note."""
  text = _mean_and_deviation(row.values, row.digits)
  return f"{text}, {row.note}" if row.note else text


def _mean_and_deviation(values: Sequence[float], digits: int) -> str:
  text = f"{statistics.mean(values):,.{digits}f}"
  return f"{text} ({statistics.stdev(values):.{digits}f})" if len(values) > 1 else text


def all_results(rows: Sequence[Row]) -> str:
  """The table of docs/results.md."""
  head = ["system", "data", "measure", "published", "here, mean (sd)", "runs", "minutes", "command"]
  lines = [
    [
      row.system,
      row.data,
      row.measure,
      row.published,
      figure(row),
      str(len(row.values)),
      row.minutes,
      f"[`{row.command}`](../results/{row.record}/README.md)",
    ]
    for row in rows
    if not row.detail
  ]
  return markdown([head, *lines])


def of_record(rows: Sequence[Row], record: str) -> str:
  """The table of a record's page: its rows with the figure of each run, then minutes of training.

  Names of systems and data stand once. Empty columns are left out.
  """
  head = ["system", "data", "measure", "each run", "mean (sd)", "published"]
  lines = []
  of_record = [row for row in rows if row.record == record]
  for system, group in itertools.groupby(of_record, key=lambda row: row.system):
    system_rows = list(group)
    data = ""
    for i, row in enumerate(system_rows):
      cells = [row.measure, _figures_of_runs(row), figure(row), row.published]
      lines.append([system if i == 0 else "", row.data if row.data != data else "", *cells])
      data = row.data
    if system_rows[0].minutes:
      lines.append(["", "", "minutes of steps", "", system_rows[0].minutes, ""])
  columns = [column for column in zip(head, *lines, strict=True) if any(column[1:])]
  return markdown(list(zip(*columns, strict=True)))


def _figures_of_runs(row: Row) -> str:
  """The figure of each run, or the range of more than five."""
  few = len(row.values) <= 5
  shown = row.values if few else [min(row.values), max(row.values)]
  texts = [f"{value:,.{row.digits}f}" for value in shown]
  if not few:
    return " to ".join(texts)
  return ", ".join(texts) if len(texts) > 1 else ""


def of_readme(rows: Sequence[Row], folder: pathlib.Path = RECORDS) -> str:
  """The table of README.md: what `readme` of table.toml names. ValueError for an unknown row."""
  head = ["system", "data", "measure, %", "published", "here, mean (sd)", "minutes", "command"]
  by_key = {(row.record, row.system, row.data, row.measure): row for row in rows}
  lines = []
  for entry in tomllib.loads((folder / "table.toml").read_text())["readme"]:
    start = [entry["name"], entry["data"], entry["measure"]]
    if "text" in entry:
      link = f"[`{entry['command']}`]({entry['link']})"
      lines.append([*start, entry["published"], entry["text"], "", link])
      continue
    key = (entry["record"], entry["system"], entry["data"], entry["measure"])
    if key not in by_key:
      raise ValueError(f"table.toml: readme {entry['name']!r} names no row; got {key}.")
    row = by_key[key]
    runs = "" if row.note else ", 1 run" if len(row.values) == 1 else f", {len(row.values)} runs"
    link = f"[`{row.command}`](results/{row.record}/README.md)"
    lines.append([*start, row.published, figure(row) + runs, row.minutes, link])
  return markdown([head, *lines])


def of_grid(grid: Mapping[str, Any], folder: pathlib.Path = RECORDS) -> str:
  """A table of one figure for each row and column. ValueError for a figure that is not there.

  `at` of a column is the path of its figures, in which `{name}` is a key of the row.
  """
  head = [grid["name"], *(column["name"] for column in grid["columns"])]
  lines = []
  for row in grid["rows"]:
    cells = [row["name"]]
    for column in grid["columns"]:
      files = column["files"] if "files" in column else row["files"]
      figures = _figures(folder / grid["record"], files, column["at"].format(**row))
      scaled = [figure * grid.get("scale", 1) for figure in figures]
      cells.append(_mean_and_deviation(scaled, digits=1))
    lines.append(cells)
  return markdown([head, *lines])


def tables() -> dict[pathlib.Path, str]:
  """The table of each page, by the page's path."""
  rows = read_rows()
  pages = {ROOT / "docs" / "results.md": all_results(rows), ROOT / "README.md": of_readme(rows)}
  for record in dict.fromkeys(row.record for row in rows):
    pages[RECORDS / record / "README.md"] = of_record(rows, record)
  for grid in tomllib.loads((RECORDS / "table.toml").read_text())["grids"]:
    pages[RECORDS / grid["record"] / "README.md"] = of_grid(grid)
  return pages


def parts_of(page: str) -> tuple[str, str, str]:
  """Text of a page before its table, the table, and the text after. ValueError if it has none."""
  before, begin, rest = page.partition(BEGIN)
  table, end, after = rest.partition(END)
  if not (begin and end):
    raise ValueError(f"the page has no lines {BEGIN} and {END} for its table.")
  return before + begin, table.strip(), end + after


def markdown(rows: Sequence[Sequence[str]]) -> str:
  """A Markdown table; the first row is its head."""
  lines = [f"| {' | '.join(cells)} |" for cells in rows]
  return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def main() -> None:
  """Writes the tables into their pages."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.parse_args()
  for path, table in tables().items():
    before, _, after = parts_of(path.read_text())
    path.write_text(f"{before}\n\n{table}\n\n{after}")


if __name__ == "__main__":
  main()
