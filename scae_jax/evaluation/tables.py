"""The one writer of Markdown tables."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def table(
  columns: Mapping[str, str], rows: Iterable[Sequence[Any]], *, transposed: bool = False
) -> str:
  """A Markdown table.

  Args:
    columns: name and format of each column, such as `{"accuracy": ".1f"}`; see `cell`.
    rows: values, one for each column.
    transposed: whether columns become rows; formats stay those of `columns`.
  """
  lines = [list(columns)]
  for row in rows:
    lines.append([cell(value, form) for value, form in zip(row, columns.values(), strict=True)])
  head, *body = map(list, zip(*lines, strict=True)) if transposed else lines
  texts = [f"|{''.join(f' {name} |' if name else ' |' for name in head)}", "|---" * len(head) + "|"]
  return "\n".join([*texts, *(f"| {' | '.join(cells)} |" for cells in body)])


def cell(value: Any, form: str = "") -> str:
  """A value as text.

  Text stays as it is, None is empty, and whole numbers have commas. Other numbers have the format;
  without one they have three decimals below 1, else one. Of a list of numbers the mean is written,
  and the standard deviation (n - 1) in brackets if there are several.
  """
  if value is None or isinstance(value, str):
    return value or ""
  if isinstance(value, list):
    if len(value) < 2:
      return "".join(cell(number, form) for number in value)
    mean = float(statistics.mean(value))
    form = form or _default_format(mean)
    return f"{mean:{form}} ({statistics.stdev(value):{form}})"
  if isinstance(value, int):
    return f"{value:,}"
  return f"{value:{form or _default_format(value)}}"


def _default_format(value: float) -> str:
  return ".3f" if 0 < abs(value) < 1 else ".1f"
