"""Reports of several recipes in one table: each one's mean and standard deviation over seeds."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scae_jax.evaluation.summary import conditions, decimals, figures


def figures_by_seed(report: Mapping[str, Any]) -> dict[int, dict[str, float]]:
  """The figures in a run's `evaluation/metrics.json`, be it of one seed or of several at once."""
  if "by_seed" in report:
    return {int(seed): dict(found) for seed, found in report["by_seed"].items()}
  return {int(report["seed"]): figures(report)}


def csv_table(reports: Mapping[str, Mapping[str, Any]]) -> str:
  """One line a seed, and for each row a line of means and one of standard deviations (n - 1).

  Args:
    reports: contents of `metrics.json` by the row's name.

  Returns:
    CSV with a header: row, seed (a number, `mean` or `sd`), step, then every figure; a cell is
    empty where a row has no such figure, and the deviation of one seed is.
  """
  names = _names(reports)
  text = io.StringIO()
  writer = csv.writer(text, lineterminator="\n")
  writer.writerow(["row", "seed", "step", *names])
  for row, report in reports.items():
    by_seed = figures_by_seed(report)
    for seed, found in by_seed.items():
      writer.writerow([row, seed, report["step"], *(found.get(name, "") for name in names)])
    values = [_values(by_seed, name) for name in names]
    means = [statistics.mean(each) if each else "" for each in values]
    deviations = [statistics.stdev(each) if len(each) > 1 else "" for each in values]
    writer.writerow([row, "mean", report["step"], *means])
    writer.writerow([row, "sd", report["step"], *deviations])
  return text.getvalue()


def markdown_table(reports: Mapping[str, Mapping[str, Any]], unfinished: Sequence[str] = ()) -> str:
  """One line a row, one column a figure: mean and, of several seeds, standard deviation (n - 1).

  Below it stand what was scored, hardware, versions and dates, and the rows that are missing.

  Args:
    reports: contents of `metrics.json` by the row's name.
    unfinished: names of rows without a report.
  """
  names = _names(reports)
  lines = ["| | seeds | " + " | ".join(names) + " |", "|---|---|" + "---|" * len(names)]
  for row, report in reports.items():
    by_seed = figures_by_seed(report)
    cells = [_mean_and_deviation(name, _values(by_seed, name)) for name in names]
    lines.append(f"| {row} | {len(by_seed)} | " + " | ".join(cells) + " |")
  lines += ["", "Mean over seeds (standard deviation, n - 1). Accuracies in percent."]
  # A sentence that holds for several rows stands once.
  each = [conditions(report).splitlines() for report in reports.values()]
  lines += dict.fromkeys(
    sentence for sentences in zip(*each, strict=True) for sentence in sentences
  )
  dates = sorted(report["date"][:10] for report in reports.values())
  if dates:
    lines.append(f"Measured {' to '.join(dict.fromkeys((dates[0], dates[-1])))}.")
  if unfinished:
    lines += ["", f"Not finished: {', '.join(unfinished)}."]
  return "\n".join(lines) + "\n"


def _names(reports: Mapping[str, Mapping[str, Any]]) -> list[str]:
  """Every figure that some row has, in the order of their first appearance."""
  found = [each for report in reports.values() for each in figures_by_seed(report).values()]
  return list(dict.fromkeys(name for each in found for name in each))


def _values(by_seed: Mapping[int, Mapping[str, float]], name: str) -> list[float]:
  return [found[name] for found in by_seed.values() if name in found]


def _mean_and_deviation(name: str, values: Sequence[float]) -> str:
  if not values:
    return ""
  digits = decimals(name)
  mean = f"{statistics.mean(values):.{digits}f}"
  return f"{mean} ({statistics.stdev(values):.{digits}f})" if len(values) > 1 else mean
