"""Tables: of one report on stdout, and of any cells in Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

# Of a classifier, by their keys in `metrics.json`.
OF_ANSWERS = ("accuracy", "error", "both_right", "mean_confidence", "expected_calibration_error")


def print_table(metrics: Mapping[str, Any]) -> None:
  """Prints a seed's `metrics.json`: names on the left, numbers under each other on the right."""
  num_names, rows = _cells(metrics)
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  scored, fitted = metrics["scored_on"], metrics.get("fitted_on")
  unit = "scenes" if "segmentation" in metrics else "examples"
  heading = f"{scored['dataset']} {scored['split']}, {scored['examples']:,} {unit};"
  if fitted:
    heading += f" fitted on {fitted['dataset']} {fitted['split']}, {fitted['examples']:,};"
  print(f"{heading} step {metrics['step']:,}")
  for row in rows:
    cells = [*map(str.ljust, row[:num_names], widths)]
    cells += map(str.rjust, row[num_names:], widths[num_names:])
    print("  ".join(cells).rstrip())
  for name, value in metrics.get("measures", {}).items():
    print(f"{words(name)}: {value:.4g} (mean over examples)")
  for note in metrics["notes"]:
    print(f"note: {note}")


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


def _cells(metrics: Mapping[str, Any]) -> tuple[int, list[tuple[str, ...]]]:
  """The number of columns, from the left, that name a row; and the rows, titles first, if any."""
  if "segmentation" in metrics:
    others = ("adjusted_rand_index", "variation_of_information")
    rows = [("jitter", "", "accuracy", "Rand index", "VI, nats")]
    rows += [
      (jitter, words(kind), _percent(one["accuracy"]), *(f"{one[name]:.3f}" for name in others))
      for jitter, kinds in metrics["segmentation"].items()
      for kind, one in kinds.items()
    ]
    return 2, rows
  if "classification" in metrics:
    found = classification_figures(metrics["classification"])
    return 1, [(name, f"{value:.2f} %") for name, value in found.items()]
  rows = [("", "LIN-MATCH", "LIN-PRED", "capsules in use")]
  for name, one in [*metrics["features"].items(), ("raw_pixels", metrics["pixels"])]:
    used = f"{one['capsules_in_use']} of {one['capsules']}" if "capsules" in one else ""
    rows.append((words(name), _percent(one["lin_match"]), _percent(one["lin_pred"]), used))
  rows[-1:-1] = [
    (words(name), "", _percent(one["lin_pred"]), "")
    for name, one in metrics.get("readings", {}).items()
  ]
  return 1, rows


def _percent(share: float) -> str:
  return f"{100 * share:.1f} %"
