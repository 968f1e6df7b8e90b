"""Tables runs that differ in their seed: mean and standard deviation, and where they come from.

    python results/summarize.py results/digits runs/digits-0 runs/digits-1 runs/digits-2

Reads each run's `evaluation/metrics.json` and `metrics.jsonl`, and writes `table.md` and
`runs.json` into the folder. Nothing in either is typed by hand.
"""

import json
import pathlib
import statistics
import sys
from typing import Any


def read_run(workdir: pathlib.Path) -> dict[str, Any]:
  """What a run's files say: figures in percent, time, provenance."""
  metrics = json.loads((workdir / "evaluation" / "metrics.json").read_text())
  lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  timings = [line["timing"] for line in lines if line["split"] == "train"]
  figures = {}
  for name, scores in metrics["features"].items():
    figures[f"LIN-MATCH, {name}"] = 100 * scores["lin_match"]
    figures[f"LIN-PRED, {name}"] = 100 * scores["lin_pred"]
    figures[f"capsules in use, {name}"] = float(scores["capsules_in_use"])
  figures["LIN-MATCH, raw pixels"] = 100 * metrics["pixels"]["lin_match"]
  figures["LIN-PRED, raw pixels"] = 100 * metrics["pixels"]["lin_pred"]
  figures["squared error an image"] = metrics["measures"]["squared_error"]
  figures["steps alone, minutes"] = sum(timing["seconds"] for timing in timings) / 60
  if all("wall_seconds" in timing for timing in timings):  # runs of older versions have none
    name = "training, minutes of wall clock without compilation"
    figures[name] = wall_seconds(timings) / 60
  return {"workdir": str(workdir), "figures": figures, "metrics": metrics}


def wall_seconds(timings: list[dict[str, float]]) -> float:
  """Seconds of all sessions of a run, evaluations and checkpoints included.

  Each session counts to its last line of training metrics, before the evaluation that follows. A
  resumed one starts from 0: its clock does not show the time of its own steps on top of the line
  before.

  Args:
    timings: of the training lines, in order.
  """
  total, before = 0.0, 0.0
  for timing in timings:
    # A thousandth: the sum of the steps is rounded differently from the clock.
    if timing["wall_seconds"] < before + 0.999 * timing["seconds"]:
      before = 0.0
    total += timing["wall_seconds"] - before
    before = timing["wall_seconds"]
  return total


def table(runs: list[dict[str, Any]]) -> str:
  """Markdown: one row a figure, one column a run, then mean and standard deviation (n - 1)."""
  seeds = [run["metrics"]["seed"] for run in runs]
  rows = [
    "| | " + " | ".join(f"seed {seed}" for seed in seeds) + " | mean (sd) |",
    "|---|" + "---|" * (len(runs) + 1),
  ]
  for name in runs[0]["figures"]:
    if not all(name in run["figures"] for run in runs):
      continue
    values = [run["figures"][name] for run in runs]
    deviation = statistics.stdev(values) if len(values) > 1 else float("nan")
    cells = [f"{value:.1f}" for value in values]
    cells.append(f"{statistics.mean(values):.1f} ({deviation:.1f})")
    rows.append(f"| {name} | " + " | ".join(cells) + " |")
  first = runs[0]["metrics"]
  hardware, versions = first["hardware"], first["versions"]
  scored = first["scored_on"]
  rows += [
    "",
    f"{scored['examples']:,} examples of {scored['dataset']} {scored['split']}; clusters and probes"
    f" are fitted on {first['fitted_on']['examples']:,} of {first['fitted_on']['split']}."
    f" Step {first['step']:,}.",
    f"Hardware: {hardware['cpu_count']} x {hardware['cpu_model']}, jax on"
    f" {hardware['device_count']} {hardware['device_kind']}. Date: {first['date'][:10]}.",
    "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + ".",
  ]
  return "\n".join(rows) + "\n"


def main(arguments: list[str]) -> None:
  """Writes the table of the runs named on the command line."""
  if len(arguments) < 2:
    sys.exit("expected: summarize.py FOLDER WORKDIR [WORKDIR ...]")
  folder, workdirs = pathlib.Path(arguments[0]), arguments[1:]
  runs = [read_run(pathlib.Path(workdir)) for workdir in workdirs]
  folder.mkdir(parents=True, exist_ok=True)
  (folder / "runs.json").write_text(json.dumps(runs, indent=1) + "\n")
  (folder / "table.md").write_text(table(runs))
  print(table(runs))


if __name__ == "__main__":
  main(sys.argv[1:])
