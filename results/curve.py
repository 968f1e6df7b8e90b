"""LIN-MATCH against steps and minutes, from the checkpoints that a run has kept.

    python -m results.curve runs/mnist-modern results/mnist --max_examples=10000

Train with `--config.train.keep_checkpoints` large enough. Writes `curve-<workdir>.json` and `.png`
into the folder. Minutes are of the steps alone, without compilation, evaluation and checkpoints.
"""

import argparse
import json
import pathlib
from typing import Any

import numpy as np

from scae_jax.data.dataset import Dataset
from scae_jax.evaluation.examples import load_split
from scae_jax.evaluation.features import collect, make_forward
from scae_jax.evaluation.files import write_json
from scae_jax.evaluation.pictures import save_figures
from scae_jax.evaluation.provenance import measured_with
from scae_jax.evaluation.scores import labelled, score_each
from scae_jax.figures import FIGURES
from scae_jax.training.build import open_run
from scae_jax.training.checkpoints import Checkpoints
from scae_jax.training.compilation import keep_compiled
from scae_jax.training.errors import RunError, exit_with_message
from scae_jax.training.workdir import checkpoint_directory


def minutes_by_step(workdir: pathlib.Path) -> dict[int, float]:
  """Minutes that the steps up to each line of training metrics took."""
  total, found = 0.0, {}
  for text in (workdir / "metrics.jsonl").read_text().splitlines():
    line = json.loads(text)
    if line["split"] == "train":
      total += line["timing"]["seconds"] / 60
      found[line["step"]] = total
  return found


def curve(workdir: pathlib.Path, max_examples: int) -> list[dict[str, Any]]:
  """One point a checkpoint and seed: step, seed, minutes, and accuracies in percent."""
  with Checkpoints(checkpoint_directory(workdir), keep=1, writable=False) as checkpoints:
    steps = checkpoints.steps()
  minutes, points, forward = minutes_by_step(workdir), [], None
  for step in steps:
    run = open_run(workdir, step)
    if not isinstance(run.dataset, Dataset):
      raise RunError("LIN-MATCH is of images; a run on generated scenes has no such curve.")
    canvas, batch_size = run.config.data.canvas, run.config.evaluation.batch_size
    forward = forward or make_forward(run.system, canvas=canvas)
    splits = [
      load_split(run.dataset, name, max_examples) for name in ("train", run.dataset.held_out)
    ]
    for seed, variables in run.variables.items():
      sizes = {"canvas": canvas, "batch_size": batch_size, "forward": forward}
      train, test = (
        labelled(collect(run.system, variables, split, **sizes).features, split["label"])
        for split in splits
      )
      scores = score_each(train, test, num_classes=run.dataset.num_classes, seed=seed)
      point: dict[str, Any] = {"step": step, "seed": seed, "minutes": minutes.get(step)}
      for name, one in scores.items():
        point[f"LIN-MATCH, {name}"] = 100 * one.entries["lin_match"]
        point[f"LIN-PRED, {name}"] = 100 * one.entries["lin_pred"]
      points.append(point)
      print(json.dumps(point), flush=True)
  return points


def main() -> None:
  """Measures, writes and draws."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("workdir", type=pathlib.Path)
  parser.add_argument("folder", type=pathlib.Path)
  parser.add_argument("--max_examples", type=int, default=0, help="of each split; 0 is all")
  options = parser.parse_args()
  with exit_with_message():
    keep_compiled("")
    points = curve(options.workdir, options.max_examples)
  options.folder.mkdir(parents=True, exist_ok=True)
  name = f"curve-{options.workdir.name}"
  record = {"points": points, "max_examples": options.max_examples, **measured_with()}
  write_json(options.folder / f"{name}.json", record)
  steps = np.unique([point["step"] for point in points])
  means = {
    key: np.array([np.mean([p[key] for p in points if p["step"] == step]) for step in steps])
    for key in points[0]
    if key.startswith("LIN-")
  }
  save_figures(options.folder, {name: lambda: FIGURES["training_curves"](steps, means)})


if __name__ == "__main__":
  main()
