"""Compares reports of several seeds or runs: means and standard deviations, as tables.

Standard deviations are those of a sample, with n - 1. Accuracies are in percent.
"""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scae_jax.evaluation.displacement import displacement_table
from scae_jax.evaluation.provenance import hardware, versions
from scae_jax.evaluation.scores import PIXELS
from scae_jax.evaluation.tables import table

# By their keys in `metrics.json`, with the formats of `tables.cell`. Indices and nats lie near 0 or
# 1; good classifiers differ by hundredths of a percent.
_SEGMENTATION = {
  "accuracy": "",
  "adjusted_rand_index": ".3f",
  "variation_of_information": ".3f",
}
_ANSWERS = ("accuracy", "error", "both_right", "mean_confidence", "expected_calibration_error")
_ANSWER_FORMAT = ".2f"
# Keys of `metrics.json` that all reports of one evaluation share; the date is the first report's.
_SHARED = ("scored_on", "max_examples", "step", "date", "versions", "hardware", "provenance")


def figures(metrics: Mapping[str, Any]) -> dict[str, float]:
  """The numbers of one report that tables compare, by display name; accuracies in percent."""
  return {name: value for name, (value, _) in _figures_with_formats(metrics).items()}


def formats(report: Mapping[str, Any]) -> dict[str, str]:
  """Formats of numbers in a `metrics.json`, of one seed or of several, by display name."""
  if "by_seed" in report:
    return dict(report.get("formats", {}))  # older reports have none
  return {name: form for name, (_, form) in _figures_with_formats(report).items() if form}


def _figures_with_formats(metrics: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
  """Value and format of each number, by display name."""
  if "segmentation" in metrics:
    return {
      f"{_display_name(name)}, jitter {jitter}, {_display_name(kind)}": (
        _in_percent(name) * scores[name],
        form,
      )
      for name, form in _SEGMENTATION.items()
      for jitter, kinds in metrics["segmentation"].items()
      for kind, scores in kinds.items()
    }
  means = {
    _display_name(name): (_in_percent(name) * value, "")
    for name, value in metrics.get("metrics", {}).items()
  }
  if "classification" in metrics:
    scores = metrics["classification"]
    answers = {
      _display_name(name): (100 * scores[name], _ANSWER_FORMAT)
      for name in _ANSWERS
      if name in scores
    }
    # Scores of answers come first, and replace metrics of the same name.
    return answers | means | answers
  values = {}
  for name, entries in metrics["features"].items():
    values |= _probe_accuracies(name, entries)
    values[f"capsules in use, {name}"] = entries["capsules_in_use"], ""
  for name, entries in metrics.get("readings", {}).items():
    values |= _probe_accuracies(name, entries)
  return values | _probe_accuracies(PIXELS, metrics["pixels"]) | means


def _probe_accuracies(name: str, entries: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
  ways = {"LIN-MATCH": "lin_match", "LIN-PRED": "lin_pred"}
  return {f"{way}, {name}": (100 * entries[key], "") for way, key in ways.items() if key in entries}


def _display_name(name: str) -> str:
  """A key of `metrics.json` as tables write it."""
  return name.replace("_", " ")


def _in_percent(name: str) -> int:
  """The factor of a metric in tables: 100 for accuracies."""
  return 100 if name.endswith("accuracy") else 1


def figures_by_seed(report: Mapping[str, Any]) -> dict[int, dict[str, float]]:
  """The numbers in a run's `evaluation/metrics.json`, of one seed or of several, by seed."""
  if "by_seed" in report:
    return {int(seed): dict(values) for seed, values in report["by_seed"].items()}
  return {int(report["seed"]): figures(report)}


def scored_name(scored_on: Mapping[str, Any]) -> str:
  """Data set and split of a report for tables, with the path of the set if it has one."""
  path = f" in {scored_on['path']}" if "path" in scored_on else ""
  return f"{scored_on['dataset']} {scored_on['split']}{path}"


def conditions(metrics: Mapping[str, Any]) -> str:
  """Lines of text: the scored examples and step, the hardware and the versions."""
  scored = metrics["scored_on"]
  sentence = f"{scored['examples']:,} examples of {scored_name(scored)}"
  if "fitted_on" in metrics:
    fitted = metrics["fitted_on"]
    sentence += f"; clusters and probes are fitted on {fitted['examples']:,} of {fitted['split']}"
  return f"{sentence}. Step {metrics['step']:,}.\n{hardware(metrics)}\n{versions(metrics)}"


def conditions_of_all(reports: Sequence[Mapping[str, Any]]) -> list[str]:
  """The conditions of several reports, each sentence once, and when they were measured."""
  lines_by_report = [conditions(report).splitlines() for report in reports]
  lines = [line for same_lines in zip(*lines_by_report, strict=True) for line in same_lines]
  dates = sorted(report["date"][:10] for report in reports)
  if dates:
    lines.append(f"Measured {' to '.join(dict.fromkeys((dates[0], dates[-1])))}.")
  return list(dict.fromkeys(lines))


def summary(reports: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
  """Content of `metrics.json` of several seeds.

  `reports` are those of `report.write_reports` by seed: at least two, of one evaluation.
  """
  first = next(iter(reports.values()))
  by_seed = {seed: figures(metrics) for seed, metrics in reports.items()}
  values = {name: [row[name] for row in by_seed.values()] for name in figures(first)}
  return {
    "seeds": list(reports),
    "mean": {name: statistics.mean(column) for name, column in values.items()},
    "standard_deviation": {name: statistics.stdev(column) for name, column in values.items()},
    "by_seed": {str(seed): row for seed, row in by_seed.items()},
    "formats": formats(first),
    "notes": _notes(reports),
    **{key: first[key] for key in ("fitted_on", *_SHARED) if key in first},
  }


def seeds_text(reports: Mapping[int, Mapping[str, Any]]) -> str:
  """The table of reports by seed, then their conditions and notes, each sentence once.

  Moved images have a table for each seed by their displacement, too.
  """
  first = next(iter(reports.values()))
  by_seed = [(seed, figures(metrics)) for seed, metrics in reports.items()]
  facts = ["Accuracies in percent.", conditions(first)]
  notes = (f"Note: {note}" for note in _notes(reports))
  displacements = [
    f"\nSeed {seed}:\n\n{displacement_table(report['by_displacement'])}"
    for seed, report in reports.items()
    if "by_displacement" in report
  ]
  lines = [seeds_table(by_seed, formats(first)), *displacements, "", *facts, *notes]
  return "\n".join(lines)


def _notes(reports: Mapping[int, Mapping[str, Any]]) -> list[str]:
  return list(dict.fromkeys(note for report in reports.values() for note in report["notes"]))


def seeds_table(
  by_seed: Sequence[tuple[int, Mapping[str, float]]], formats: Mapping[str, str]
) -> str:
  """Markdown: a row for each number that all seeds have, a column for each seed, and the mean."""
  all_numbers = [numbers for _, numbers in by_seed]
  names = [name for name in all_numbers[0] if all(name in numbers for numbers in all_numbers)]
  rows = [[f"seed {seed}", *(numbers[name] for name in names)] for seed, numbers in by_seed]
  if len(by_seed) > 1:
    rows.append(["mean (sd)", *([numbers[name] for numbers in all_numbers] for name in names)])
  return table({"": "", **{name: formats.get(name, "") for name in names}}, rows, transposed=True)


def csv_table(reports: Mapping[str, Mapping[str, Any]]) -> str:
  """CSV of contents of `metrics.json` by the row's name.

  Columns are row, seed (a number, `mean` or `sd`), step, then every number of any row. A cell is
  empty where a row lacks the number, and in `sd` of a single seed.
  """
  names = _names(reports)
  text = io.StringIO()
  writer = csv.writer(text, lineterminator="\n")
  writer.writerow(["row", "seed", "step", *names])
  for row, report in reports.items():
    by_seed = figures_by_seed(report)
    values = [_values(by_seed, name) for name in names]
    lines: dict[int | str, list[float | str]] = {
      seed: [row_values.get(name, "") for name in names] for seed, row_values in by_seed.items()
    }
    lines["mean"] = [statistics.mean(column) if column else "" for column in values]
    lines["sd"] = [statistics.stdev(column) if len(column) > 1 else "" for column in values]
    writer.writerows([row, seed, report["step"], *cells] for seed, cells in lines.items())
  return text.getvalue()


def markdown_table(reports: Mapping[str, Mapping[str, Any]], unfinished: Sequence[str] = ()) -> str:
  """Markdown: a line for each row, a column for each number: mean and standard deviation.

  `reports` are contents of `metrics.json` by the row's name. The deviation is left out for a single
  seed. Below the table stand the conditions of the reports.
  """
  columns = {"": "", "seeds": "", **dict.fromkeys(_names(reports), "")}
  columns |= {name: form for report in reports.values() for name, form in formats(report).items()}
  rows = []
  for row, report in reports.items():
    by_seed = figures_by_seed(report)
    rows.append([row, len(by_seed), *(_values(by_seed, name) for name in [*columns][2:])])
  mean = "Mean over seeds (standard deviation, n - 1). Accuracies in percent."
  lines = [table(columns, rows), "", mean]
  lines += conditions_of_all(list(reports.values()))
  if unfinished:
    lines += ["", f"Not finished: {', '.join(unfinished)}."]
  return "\n".join(lines) + "\n"


def _names(reports: Mapping[str, Mapping[str, Any]]) -> list[str]:
  """The name of every number that some row has, in the order of first appearance."""
  by_seed = [values for report in reports.values() for values in figures_by_seed(report).values()]
  return list(dict.fromkeys(name for values in by_seed for name in values))


def _values(by_seed: Mapping[int, Mapping[str, float]], name: str) -> list[float]:
  return [values[name] for values in by_seed.values() if name in values]
