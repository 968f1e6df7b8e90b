"""Writes one seed of a run to pretrained/, for `evaluate.py --pretrained=NAME`.

    python -m experiments.export runs/mnist-official pretrained/mnist --step=best --dtype=float16

Pretrained parameters themselves are written anew, with their clusters, by

    python -m experiments.export pretrained/digits pretrained/digits --dtype=float32

Without --seed it writes the seed with the lowest held-out loss at that step or, if the step has no
held-out loss, at the last one before. Labels do not choose.
"""

import pathlib
from typing import Any

from scae_jax.evaluation.comparison import figures
from scae_jax.files import read_json
from scae_jax.training.build import open_run
from scae_jax.training.config import plain_parser
from scae_jax.training.errors import RunError, exit_with_message, explained
from scae_jax.training.metrics import read_lines
from scae_jax.training.parameters import DTYPES, FILE, is_exported
from scae_jax.training.pretrained import save_pretrained


def best_seed(workdir: pathlib.Path, step: int, seeds: list[int]) -> int:
  """The seed of the lowest held-out loss at the last step up to this one that has any; says which.

  Without any it raises RunError.
  """
  if len(seeds) == 1:
    return seeds[0]
  found = read_lines(workdir / "metrics.jsonl")
  lines = [line for line in found if line["split"] != "train" and line["step"] <= step]
  if not lines:
    raise RunError(
      f"the run has no held-out loss up to step {step} to choose among its seeds by; name one of"
      f" {seeds} by --seed, or train on."
    )
  losses = lines[-1]["seeds"]
  best = min(seeds, key=lambda seed: losses[str(seed)]["selection_loss"])
  print(f"seed {best} of {seeds} has the lowest held-out loss, at step {lines[-1]['step']}")
  return best


def measured(workdir: pathlib.Path, step: int, seed: int) -> dict[str, Any]:
  """What the reports in the workdir say of that step and seed, by the name of the scored split."""
  found = {}
  for path in sorted(workdir.glob("evaluation/**/metrics.json")):
    metrics = read_json(path, "step", "scored_on")
    if metrics["step"] == step and metrics.get("seed") == seed:
      scored = metrics["scored_on"]
      found[f"{scored['dataset']} {scored['split']}, {scored['examples']}"] = figures(metrics)
  return found


def main() -> None:
  """Exports as the command line says."""
  parser = plain_parser(__doc__)
  parser.add_argument("workdir", type=pathlib.Path)
  parser.add_argument("folder", type=pathlib.Path)
  parser.add_argument("--step", default="latest", help="a number, latest or best")
  parser.add_argument("--seed", type=int, default=None)
  parser.add_argument("--dtype", choices=DTYPES, default="float16")
  options = parser.parse_args()
  with exit_with_message(), explained():
    run = open_run(options.workdir, options.step)
    seeds = list(run.variables)
    seed = best_seed(options.workdir, run.step, seeds) if options.seed is None else options.seed
    if seed not in seeds:
      parser.error(f"the run has seeds {seeds}, not {seed}")
    if is_exported(options.workdir):
      found = read_json(options.workdir / "source.json", "figures")["figures"]
    else:
      found = measured(options.workdir, run.step, seed)
    save_pretrained(run, seed, options.folder, options.dtype, found)
  size = (options.folder / FILE).stat().st_size
  print(f"step {run.step} of seed {seed}: {options.folder}, {size / 1e6:.1f} MB")


if __name__ == "__main__":
  main()
