"""Accuracies against steps and minutes, from the kept checkpoints of a run.

    python -m experiments.curve runs/mnist-modern results/mnist --max_examples=10000 \\
      --steps=5000,30000

Train with `--config.train.keep_checkpoints` large enough. Writes `curve-<workdir>.json` and `.png`
into the folder after each point. The same command continues where it was stopped, and keeps points
whose checkpoint is gone. Accuracies are LIN-MATCH and LIN-PRED or, for a model that is trained with
labels, that of its answers. Minutes are those of the steps alone.
"""

import json
import pathlib
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np

from experiments.accuracies import accuracies
from experiments.findings import command_line, images_of, write_record
from scae_jax.config import plain_parser
from scae_jax.errors import RunError, as_run_errors, exit_with_message
from scae_jax.evaluation.report_figures import save_figure
from scae_jax.figures import FIGURES
from scae_jax.files import read_json
from scae_jax.training.checkpoint import Checkpoints
from scae_jax.training.hosts import keep_compiled
from scae_jax.training.log import read_lines
from scae_jax.training.run import open_run
from scae_jax.training.workdir import checkpoint_directory, load_settings


def minutes_by_step(workdir: pathlib.Path) -> dict[int, float]:
  """Minutes taken by the steps up to each line of training metrics."""
  total, minutes = 0.0, {}
  for line in read_lines(workdir / "metrics.jsonl"):
    if line["split"] == "train":
      total += line["timing"]["seconds"] / 60
      minutes[line["step"]] = total
  return minutes


def chosen_steps(workdir: pathlib.Path, named: str) -> list[int]:
  """Steps to measure, in order: those in `named`, separated by commas, or all if ""."""
  with Checkpoints(checkpoint_directory(workdir), keep=1, writable=False) as checkpoints:
    steps = checkpoints.steps()
  if not named:
    return steps
  chosen = sorted({int(step) if step.isdecimal() else -1 for step in named.split(",")})
  if not set(chosen) <= set(steps):
    available = ", ".join(map(str, steps)) or "none"
    raise RunError(
      f"--steps={named} must name steps that have a checkpoint; there are {available}."
    )
  return chosen


def known_points(
  path: pathlib.Path, max_examples: int, minutes: dict[int, float]
) -> list[dict[str, Any]]:
  """Points of this run that an earlier call wrote; a run is recognised by its minutes.

  A checkpoint between two lines of metrics has no minutes; its points count if all others are of
  this run. Points that were measured on another number of examples raise RunError.
  """
  if not path.is_file():
    return []
  record = read_json(path, "max_examples", "points")
  if record["max_examples"] != max_examples:
    raise RunError(
      f"{path} was measured with --max_examples={record['max_examples']}, {max_examples} given."
      " Give the same, or name another folder."
    )
  same = [point for point in record["points"] if point["minutes"] == minutes.get(point["step"])]
  all_known = len(same) == len(record["points"])
  return [point for point in same if all_known or point["minutes"] is not None]


def measured_points(
  workdir: pathlib.Path, steps: Iterable[int], known: Collection[tuple[int, int]], max_examples: int
) -> Iterator[dict[str, Any]]:
  """Yields a point for each checkpoint and seed that is not `known`.

  A point has step, seed, minutes, and accuracies in percent.
  """
  minutes, seeds = minutes_by_step(workdir), load_settings(workdir).train.all_seeds
  for step in steps:
    missing = [seed for seed in seeds if (step, seed) not in known]
    if not missing:
      continue
    run = open_run(workdir, step)
    dataset, _, sizes = images_of(run)
    sizes["max_examples"] = max_examples
    for seed in missing:
      seed_variables = {seed: run.variables[seed]}
      shares_by_way = accuracies(run.system, seed_variables, dataset, [dataset], **sizes)
      shares = {way: 100 * by_set[dataset.name][seed] for way, by_set in shares_by_way.items()}
      yield {"step": step, "seed": seed, "minutes": minutes.get(step), **shares}


def draw(folder: pathlib.Path, name: str, points: list[dict[str, Any]]) -> None:
  """Draws means over seeds against the step."""
  steps = np.unique([point["step"] for point in points])
  ways = dict.fromkeys(way for p in points for way in p if way not in ("step", "seed", "minutes"))
  means = {
    way: np.array([np.mean([p.get(way, np.nan) for p in points if p["step"] == s]) for s in steps])
    for way in ways
  }
  save_figure(folder / f"{name}.png", lambda: FIGURES["training_curves"](steps, means))


def curve(workdir: pathlib.Path, folder: pathlib.Path, max_examples: int, named: str) -> None:
  """Measures the points that are not known, writes after each, and draws."""
  name = f"curve-{workdir.absolute().name}"
  path = folder / f"{name}.json"
  points = known_points(path, max_examples, minutes_by_step(workdir))
  known = {(point["step"], point["seed"]) for point in points}
  steps = chosen_steps(workdir, named)
  for point in measured_points(workdir, steps, known, max_examples):
    print(json.dumps(point), flush=True)
    points = sorted([*points, point], key=lambda point: (point["step"], point["seed"]))
    write_record(
      path, {"points": points, "max_examples": max_examples, "command": command_line("curve")}
    )
    draw(folder, name, points)
  if points:
    draw(folder, name, points)  # also if all points were known


def main() -> None:
  """Measures, writes and draws."""
  parser = plain_parser(__doc__)
  parser.add_argument("workdir", type=pathlib.Path)
  parser.add_argument("folder", type=pathlib.Path)
  parser.add_argument("--max_examples", type=int, default=0, help="of each split; 0 is all")
  parser.add_argument("--steps", default="", help="of checkpoints, with commas; all if not given")
  options = parser.parse_args()
  with exit_with_message(), as_run_errors():
    keep_compiled("")
    curve(options.workdir, options.folder, options.max_examples, options.steps)


if __name__ == "__main__":
  main()
