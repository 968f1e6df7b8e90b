"""Several seeds in one table: each one's figures, their mean and standard deviation."""

import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scae_jax.evaluation.files import write_json

_FINE = ("adjusted rand index", "variation of information")
# Of a classifier, in percent and by their keys in `metrics.json`; few errors are told apart by
# hundredths.
_OF_ANSWERS = ("accuracy", "error", "both_right", "mean_confidence", "expected_calibration_error")
_HUNDREDTHS = tuple(name.replace("_", " ") for name in _OF_ANSWERS)
# What all reports of one evaluation share, in `metrics.json`; the date is the first one's.
_SHARED = ("scored_on", "max_examples", "step", "date", "versions", "hardware", "provenance")


def figures(metrics: Mapping[str, Any]) -> dict[str, float]:
  """The figures of one report to compare with others; accuracies in percent."""
  if "segmentation" in metrics:
    return {
      f"{name.replace('_', ' ')}, jitter {jitter}, {kind.replace('_', ' ')}": (
        100 * value if name == "accuracy" else value
      )
      for name in ("accuracy", "adjusted_rand_index", "variation_of_information")
      for jitter, kinds in metrics["segmentation"].items()
      for kind, value in ((kind, scores[name]) for kind, scores in kinds.items())
    }
  if "classification" in metrics:
    # They come first, and stand for a measure of the same name, which says it once more.
    of_answers = classification_figures(metrics["classification"])
    return of_answers | _measures(metrics) | of_answers
  found = {}
  for name, scores in metrics["features"].items():
    found[f"LIN-MATCH, {name}"] = 100 * scores["lin_match"]
    found[f"LIN-PRED, {name}"] = 100 * scores["lin_pred"]
    found[f"capsules in use, {name}"] = float(scores["capsules_in_use"])
  if "readings" in metrics:
    found |= {
      f"LIN-PRED, {name}": 100 * scores["lin_pred"] for name, scores in metrics["readings"].items()
    }
  found["LIN-MATCH, raw pixels"] = 100 * metrics["pixels"]["lin_match"]
  found["LIN-PRED, raw pixels"] = 100 * metrics["pixels"]["lin_pred"]
  return found | _measures(metrics)


def classification_figures(entries: Mapping[str, Any]) -> dict[str, float]:
  """The figures under `classification` in a report, in percent; without the confusion matrix."""
  shares = {name: entries[name] for name in _OF_ANSWERS if name in entries}
  return {name.replace("_", " "): 100 * share for name, share in shares.items()}


def decimals(name: str) -> int:
  """Decimals that a figure has in tables: indices and nats lie near 0 or 1, the others are percent,
  counts and the like."""
  if name in _HUNDREDTHS:
    return 2
  return 3 if name.startswith(_FINE) else 1


def conditions(metrics: Mapping[str, Any]) -> str:
  """What was scored, at which step, on what hardware and with what versions: three sentences."""
  scored, hardware = metrics["scored_on"], metrics["hardware"]
  sentence = f"{scored['examples']:,} examples of {scored['dataset']} {scored['split']}"
  if "fitted_on" in metrics:
    fitted = metrics["fitted_on"]
    sentence += f"; clusters and probes are fitted on {fitted['examples']:,} of {fitted['split']}"
  versions = ", ".join(f"{name} {version}" for name, version in metrics["versions"].items())
  return (
    f"{sentence}. Step {metrics['step']:,}.\n"
    f"Hardware: {hardware['cpu_count']} x {hardware['cpu_model']}, jax on"
    f" {hardware['device_count']} {hardware['device_kind']}.\n"
    f"Versions: {versions}."
  )


def seeds_table(by_seed: Sequence[tuple[int, Mapping[str, float]]]) -> str:
  """Markdown: one row a figure, one column a seed, then mean and standard deviation (n - 1).

  Args:
    by_seed: seeds and their figures; only those that all have are shown. A single one has no mean.
  """
  several = len(by_seed) > 1
  columns = [f"seed {seed}" for seed, _ in by_seed] + ["mean (sd)"] * several
  rows = ["| | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
  for name in by_seed[0][1]:
    if all(name in found for _, found in by_seed):
      values = [found[name] for _, found in by_seed]
      digits = decimals(name)
      cells = [f"{value:.{digits}f}" for value in values]
      if several:
        mean, deviation = statistics.mean(values), statistics.stdev(values)
        cells.append(f"{mean:.{digits}f} ({deviation:.{digits}f})")
      rows.append(f"| {name} | " + " | ".join(cells) + " |")
  return "\n".join(rows)


def write_summary(directory: pathlib.Path, reports: Mapping[int, Mapping[str, Any]]) -> None:
  """Writes `metrics.json` of several seeds, and prints them as a table.

  Args:
    directory: where.
    reports: what `report.write_report` returned, by seed; two at least, of one evaluation.
  """
  first = next(iter(reports.values()))
  by_seed = {seed: figures(metrics) for seed, metrics in reports.items()}
  values = {name: [found[name] for found in by_seed.values()] for name in figures(first)}
  summary = {
    "seeds": list(reports),
    "mean": {name: statistics.mean(each) for name, each in values.items()},
    "standard_deviation": {name: statistics.stdev(each) for name, each in values.items()},
    "by_seed": {str(seed): found for seed, found in by_seed.items()},
    **{key: first[key] for key in ("fitted_on", *_SHARED) if key in first},
  }
  write_json(directory / "metrics.json", summary)
  print(f"\n{seeds_table(list(by_seed.items()))}")


def _measures(metrics: Mapping[str, Any]) -> dict[str, float]:
  """Means of measures under their names in words; accuracies in percent."""
  return {
    name.replace("_", " "): (100 if name.endswith("accuracy") else 1) * value
    for name, value in metrics["measures"].items()
  }
