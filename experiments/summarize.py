"""A table of runs that differ in their seed: mean and standard deviation, with their conditions.

    python -m experiments.summarize results/digits runs/digits-0 runs/digits-1 runs/digits-2

Reads each run's `evaluation/metrics.json` and `metrics.jsonl`, and writes `table.md` and
`runs.json` into the folder.
"""

import pathlib
from typing import Any

from scae_jax.config import plain_parser
from scae_jax.errors import as_run_errors, exit_with_message
from scae_jax.evaluation.comparison import conditions_of_all, figures, formats, seeds_table
from scae_jax.evaluation.provenance import recorded_folder
from scae_jax.files import read_json, write_json, write_whole
from scae_jax.training.log import read_lines


def read_run(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """Numbers, times and provenance of each seed of a run.

  Times are those of the run: several seeds that trained at once took that long together.
  """
  reports = list(workdir.glob("evaluation/seed-*/metrics.json"))
  reports = reports or [workdir / "evaluation" / "metrics.json"]
  lines = read_lines(workdir / "metrics.jsonl")
  timings = [line["timing"] for line in lines if line["split"] == "train"]
  times = {}
  if timings:  # a run that was stopped before its first line has none
    times["steps alone, minutes"] = sum(timing["seconds"] for timing in timings) / 60
    if all("wall_seconds" in timing for timing in timings):  # runs of older versions have none
      minutes = wall_seconds(timings) / 60
      times["training, minutes of wall clock without compilation"] = minutes
  metrics_by_seed = sorted(
    (read_json(path, "seed", "step") for path in reports), key=lambda metrics: metrics["seed"]
  )
  name = recorded_folder(workdir)
  return [
    {"workdir": name, "figures": figures(metrics) | times, "metrics": metrics}
    for metrics in metrics_by_seed
  ]


def wall_seconds(timings: list[dict[str, float]]) -> float:
  """Seconds of all sessions of a run by its training lines; a resumed session starts from 0."""
  total, previous = 0.0, 0.0
  for timing in timings:
    # The sum of the steps and the clock are rounded differently: hence the factor.
    if timing["wall_seconds"] < previous + 0.999 * timing["seconds"]:
      previous = 0.0
    total += timing["wall_seconds"] - previous
    previous = timing["wall_seconds"]
  return total


def table_of(runs: list[dict[str, Any]]) -> str:
  """Markdown: a row for each number, a column for each run, then mean and deviation (n - 1)."""
  by_seed = [(run["metrics"]["seed"], run["figures"]) for run in runs]
  text = seeds_table(by_seed, formats(runs[0]["metrics"]))
  return "\n".join([text, "", *conditions_of_all([run["metrics"] for run in runs])]) + "\n"


def main() -> None:
  """Writes and prints the table of the runs on the command line."""
  parser = plain_parser(__doc__)
  parser.add_argument("folder", type=pathlib.Path)
  parser.add_argument("workdirs", type=pathlib.Path, nargs="+", metavar="workdir")
  options = parser.parse_args()
  with exit_with_message(), as_run_errors():
    runs = [run for workdir in options.workdirs for run in read_run(workdir)]
    text = table_of(runs)
    write_json(options.folder / "runs.json", runs)
    write_whole(options.folder / "table.md", text.encode())
    print(text)


if __name__ == "__main__":
  main()
