"""Reports of seeds and of runs compared: figures, means and standard deviations.

Standard deviations are those of a sample, with n - 1. Accuracies are in percent.
"""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scae_jax.evaluation.provenance import hardware, versions
from scae_jax.evaluation.scores import PIXELS


def _words(name: str) -> str:
  """A key of `metrics.json` as tables show it."""
  return name.replace("_", " ")


# By their keys in `metrics.json`.
_OF_SEGMENTS = ("accuracy", "adjusted_rand_index", "variation_of_information")
_OF_ANSWERS = ("accuracy", "error", "both_right", "mean_confidence", "expected_calibration_error")
# Indices and nats lie near 0 or 1; classifiers with few errors differ by hundredths of a percent.
_THOUSANDTHS = tuple(map(_words, _OF_SEGMENTS[1:]))
_HUNDREDTHS = tuple(map(_words, _OF_ANSWERS))
# What all reports of one evaluation share, in `metrics.json`; the date is the first one's.
_SHARED = ("scored_on", "max_examples", "step", "date", "versions", "hardware", "provenance")


def figures(metrics: Mapping[str, Any]) -> dict[str, float]:
  """The figures of one report to compare with others; accuracies in percent."""
  means = {
    _words(name): (100 if name.endswith("accuracy") else 1) * value
    for name, value in metrics.get("metrics", {}).items()
  }
  if "segmentation" in metrics:
    percent = {"accuracy": 100}
    return {
      f"{_words(name)}, jitter {jitter}, {_words(kind)}": one[name] * percent.get(name, 1)
      for name in _OF_SEGMENTS
      for jitter, kinds in metrics["segmentation"].items()
      for kind, one in kinds.items()
    }
  if "classification" in metrics:
    found = metrics["classification"]
    of_answers = {_words(name): 100 * found[name] for name in _OF_ANSWERS if name in found}
    # The answers' figures stand first, and win where a metric has the same name.
    return of_answers | means | of_answers
  found = {}
  for name, one in metrics["features"].items():
    found |= _linear(name, one) | {f"capsules in use, {name}": one["capsules_in_use"]}
  for name, one in metrics.get("readings", {}).items():
    found |= _linear(name, one)
  return found | _linear(PIXELS, metrics["pixels"]) | means


def _linear(name: str, entries: Mapping[str, Any]) -> dict[str, float]:
  ways = {"LIN-MATCH": "lin_match", "LIN-PRED": "lin_pred"}
  return {f"{way}, {name}": 100 * entries[key] for way, key in ways.items() if key in entries}


def figures_by_seed(report: Mapping[str, Any]) -> dict[int, dict[str, float]]:
  """The figures in a run's `evaluation/metrics.json`, be it of one seed or of several at once."""
  if "by_seed" in report:
    return {int(seed): dict(found) for seed, found in report["by_seed"].items()}
  return {int(report["seed"]): figures(report)}


def scored_name(scored_on: Mapping[str, Any]) -> str:
  """Data set and split of a report as tables show them, with the path of a set that has one."""
  path = f" in {scored_on['path']}" if "path" in scored_on else ""
  return f"{scored_on['dataset']} {scored_on['split']}{path}"


def conditions(metrics: Mapping[str, Any]) -> str:
  """Lines of text: the examples and the step that were scored, the hardware and the versions."""
  scored = metrics["scored_on"]
  sentence = f"{scored['examples']:,} examples of {scored_name(scored)}"
  if "fitted_on" in metrics:
    fitted = metrics["fitted_on"]
    sentence += f"; clusters and probes are fitted on {fitted['examples']:,} of {fitted['split']}"
  return f"{sentence}. Step {metrics['step']:,}.\n{hardware(metrics)}\n{versions(metrics)}"


def conditions_of_all(reports: Sequence[Mapping[str, Any]]) -> list[str]:
  """The conditions of several reports, each sentence once, and when they were measured."""
  each = [conditions(report).splitlines() for report in reports]
  lines = [sentence for sentences in zip(*each, strict=True) for sentence in sentences]
  dates = sorted(report["date"][:10] for report in reports)
  if dates:
    lines.append(f"Measured {' to '.join(dict.fromkeys((dates[0], dates[-1])))}.")
  return list(dict.fromkeys(lines))


def summary(reports: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
  """Content of `metrics.json` of several seeds.

  `reports` are what `report.write_reports` makes, by seed; two at least, of one evaluation.
  """
  first = next(iter(reports.values()))
  by_seed = {seed: figures(metrics) for seed, metrics in reports.items()}
  values = {name: [found[name] for found in by_seed.values()] for name in figures(first)}
  return {
    "seeds": list(reports),
    "mean": {name: statistics.mean(each) for name, each in values.items()},
    "standard_deviation": {name: statistics.stdev(each) for name, each in values.items()},
    "by_seed": {str(seed): found for seed, found in by_seed.items()},
    "notes": _notes(reports),
    **{key: first[key] for key in ("fitted_on", *_SHARED) if key in first},
  }


def seeds_text(reports: Mapping[int, Mapping[str, Any]]) -> str:
  """The table of reports by seed, what they are of, and what they note, each sentence once."""
  table = seeds_table([(seed, figures(metrics)) for seed, metrics in reports.items()])
  facts = ["Accuracies in percent.", conditions(next(iter(reports.values())))]
  return "\n".join([table, "", *facts, *(f"Note: {note}" for note in _notes(reports))])


def _notes(reports: Mapping[int, Mapping[str, Any]]) -> list[str]:
  return list(dict.fromkeys(note for report in reports.values() for note in report["notes"]))


def seeds_table(by_seed: Sequence[tuple[int, Mapping[str, float]]]) -> str:
  """Markdown: a row a figure that all seeds have, a column a seed, and of several the mean."""
  several = len(by_seed) > 1
  rows = [["", *(f"seed {seed}" for seed, _ in by_seed), *["mean (sd)"] * several]]
  for name in by_seed[0][1]:
    values = [found[name] for _, found in by_seed if name in found]
    if len(values) == len(by_seed):
      cells = [_mean(name, [value]) for value in values]
      rows.append([name, *cells, *[_mean(name, values)] * several])
  return markdown(rows)


def csv_table(reports: Mapping[str, Mapping[str, Any]]) -> str:
  """CSV of contents of `metrics.json` by the row's name, with a header: row, seed (a number, `mean`
  or `sd`), step, then every figure; empty where a row has none, or a single seed no deviation."""
  names = _names(reports)
  text = io.StringIO()
  writer = csv.writer(text, lineterminator="\n")
  writer.writerow(["row", "seed", "step", *names])
  for row, report in reports.items():
    by_seed = figures_by_seed(report)
    values = [_values(by_seed, name) for name in names]
    lines: dict[int | str, list[float | str]] = {
      seed: [found.get(name, "") for name in names] for seed, found in by_seed.items()
    }
    lines["mean"] = [statistics.mean(each) if each else "" for each in values]
    lines["sd"] = [statistics.stdev(each) if len(each) > 1 else "" for each in values]
    writer.writerows([row, seed, report["step"], *cells] for seed, cells in lines.items())
  return text.getvalue()


def markdown_table(reports: Mapping[str, Mapping[str, Any]], unfinished: Sequence[str] = ()) -> str:
  """One line a row, one column a figure: mean and, of several seeds, standard deviation.

  `reports` are contents of `metrics.json` by the row's name. Below stands what they are of.
  """
  names = _names(reports)
  rows = [["", "seeds", *names]]
  for row, report in reports.items():
    by_seed = figures_by_seed(report)
    cells = [_mean(name, _values(by_seed, name)) for name in names]
    rows.append([row, str(len(by_seed)), *cells])
  mean = "Mean over seeds (standard deviation, n - 1). Accuracies in percent."
  lines = [markdown(rows), "", mean]
  lines += conditions_of_all(list(reports.values()))
  if unfinished:
    lines += ["", f"Not finished: {', '.join(unfinished)}."]
  return "\n".join(lines) + "\n"


def _names(reports: Mapping[str, Mapping[str, Any]]) -> list[str]:
  """Every figure that some row has, in the order of their first appearance."""
  found = [each for report in reports.values() for each in figures_by_seed(report).values()]
  return list(dict.fromkeys(name for each in found for name in each))


def _values(by_seed: Mapping[int, Mapping[str, float]], name: str) -> list[float]:
  return [found[name] for found in by_seed.values() if name in found]


def _mean(name: str, values: Sequence[float]) -> str:
  """Mean and, of several values, standard deviation of a figure, as tables show it."""
  if not values:
    return ""
  mean = statistics.mean(values)
  if len(values) == 1 and isinstance(mean, int):  # a count
    return str(mean)
  is_small = name.startswith(_THOUSANDTHS) or 0 < abs(mean) < 1
  digits = 2 if name in _HUNDREDTHS else 3 if is_small else 1
  deviation = f" ({statistics.stdev(values):.{digits}f})" if len(values) > 1 else ""
  return f"{mean:.{digits}f}{deviation}"


def markdown(rows: Sequence[Sequence[str]]) -> str:
  """A table of cells in Markdown, whose first row is the head."""
  head = "".join(f" {cell} |" if cell else " |" for cell in rows[0])
  lines = [f"| {' | '.join(cells)} |" for cells in rows[1:]]
  return "\n".join([f"|{head}", "|---" * len(rows[0]) + "|", *lines])
