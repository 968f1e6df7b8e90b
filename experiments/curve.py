"""LIN-MATCH against steps and minutes, from the reports on a run's checkpoints.

    for step in 1000 2000 4000 8000; do
      python evaluate.py --workdir=runs/digits --step=$step
    done
    python -m experiments.curve runs/digits results/digits

Train with `--config.train.keep_checkpoints` large enough. Writes `curve-<workdir>.json` and `.png`
into the folder, of all reports on the same examples as the run's own. Minutes are of the steps
alone.
"""

import pathlib
from typing import Any

import numpy as np

from experiments.findings import write_record
from experiments.transfer import each_report
from scae_jax.evaluation.comparison import figures_by_seed
from scae_jax.evaluation.pictures import save_figures
from scae_jax.figures import FIGURES
from scae_jax.training.config import plain_parser
from scae_jax.training.errors import RunError, exit_with_message, explained
from scae_jax.training.metrics import read_lines


def points_of(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """A point a step and seed, in order: step, seed, minutes, and accuracies in percent."""
  total, minutes, points = 0.0, {}, {}
  for line in read_lines(workdir / "metrics.jsonl"):
    if line["split"] == "train":
      total += line["timing"]["seconds"] / 60
      minutes[line["step"]] = total
  reports = [report for _, report in each_report(workdir)]
  for report in reports:
    if any(report[key] != reports[0][key] for key in ("scored_on", "max_examples")):
      continue
    for seed, figures in figures_by_seed(report).items():
      head = {"step": report["step"], "seed": seed, "minutes": minutes.get(report["step"])}
      shown = {name: value for name, value in figures.items() if name.startswith("LIN-")}
      points.setdefault((report["step"], seed), head | shown)
  if not any(name.startswith("LIN-") for point in points.values() for name in point):
    raise RunError(f"the reports in {workdir} have no LIN-MATCH; name a run that they cluster.")
  return [points[key] for key in sorted(points)]


def main() -> None:
  """Collects, writes, prints and draws; of several seeds the means are drawn."""
  parser = plain_parser(__doc__)
  parser.add_argument("workdir", type=pathlib.Path)
  parser.add_argument("folder", type=pathlib.Path)
  options = parser.parse_args()
  with exit_with_message(), explained():
    points = points_of(options.workdir)
    name = f"curve-{options.workdir.absolute().name}"
    write_record(options.folder / f"{name}.json", {"points": points})
    steps = np.unique([point["step"] for point in points])
    means = {
      key: np.array([np.mean([p[key] for p in points if p["step"] == step]) for step in steps])
      for key in points[0]
      if key.startswith("LIN-")
    }
    save_figures(options.folder, {name: lambda: FIGURES["training_curves"](steps, means)})
    print(*points, sep="\n")


if __name__ == "__main__":
  main()
