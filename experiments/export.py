"""Writes one seed of a run to pretrained/, for `evaluate.py --pretrained=NAME`.

    python -m experiments.export runs/mnist-official pretrained/mnist --step=best --dtype=float16

Pretrained parameters can be written again, with their clusters, by

    python -m experiments.export pretrained/digits pretrained/digits --dtype=float32

Without --seed it writes the seed with the lowest held-out loss at that step or, if the step has
none, at the last step before that has one. Labels have no part in the choice.
"""

import functools
import io
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.findings import images_of
from scae_jax.config import plain_parser
from scae_jax.data.batches import evaluation_batch
from scae_jax.data.dataset import Dataset
from scae_jax.data.feed import spec_of
from scae_jax.errors import RunError, as_run_errors, exit_with_message
from scae_jax.evaluation.clusters import FILE as CLUSTERS_FILE
from scae_jax.evaluation.clusters import clusters_json
from scae_jax.evaluation.comparison import figures, scored_name
from scae_jax.evaluation.encode import encode_dataset
from scae_jax.evaluation.examples import load_split
from scae_jax.evaluation.probes import fit_clusters
from scae_jax.files import read_json, sealed_json, write_json, write_whole
from scae_jax.training.log import read_lines
from scae_jax.training.run import FILE, Run, is_exported, open_run
from scae_jax.training.workdir import describe_data

DTYPES = ("float16", "float32")


def best_seed(workdir: pathlib.Path, step: int, seeds: list[int]) -> int:
  """The seed with the lowest held-out loss at the last step up to `step` that has one.

  Prints its choice. Raises RunError if no step has a held-out loss.
  """
  if len(seeds) == 1:
    return seeds[0]
  all_lines = read_lines(workdir / "metrics.jsonl")
  lines = [line for line in all_lines if line["split"] != "train" and line["step"] <= step]
  if not lines:
    raise RunError(
      f"the run has no held-out loss up to step {step}, which would choose the seed; name one of"
      f" {seeds} by --seed, or train on."
    )
  losses = lines[-1]["seeds"]
  best = min(seeds, key=lambda seed: losses[str(seed)]["selection_loss"])
  print(f"seed {best} of {seeds} has the lowest held-out loss, at step {lines[-1]['step']}")
  return best


def measured(workdir: pathlib.Path, step: int, seed: int) -> dict[str, Any]:
  """The numbers in the workdir's reports of that step and seed, by the scored split."""
  figures_by_set = {}
  for path in sorted(workdir.glob("evaluation/**/metrics.json")):
    metrics = read_json(path, "step", "scored_on")
    if metrics["step"] == step and metrics.get("seed") == seed:
      scored = metrics["scored_on"]
      figures_by_set[f"{scored_name(scored)}, {scored['examples']}"] = figures(metrics)
  return figures_by_set


def save_pretrained(
  run: Run, seed: int, folder: pathlib.Path, dtype: str, figures: dict[str, Any]
) -> None:
  """Writes one seed of a run, with results of its evaluation, into a folder, which is created.

  Numbers too large for the dtype, float16 or float32, raise `RunError`.
  """
  variables = {"params": write_parameters(folder, run.variables[seed]["params"], dtype)}
  config = run.config.to_dict()
  # It names a folder of this machine, and is not needed any more.
  config["train"] |= {"start_from": "", "start_modules": (), "start_step": 0}
  write_whole(folder / "config.json", sealed_json(config))
  write_json(folder / "data.json", describe_data(run.dataset))
  source = {"step": run.step, "seed": seed, "figures": figures}
  write_whole(folder / "source.json", sealed_json(source))
  if not isinstance(run.dataset, Dataset):
    return
  dataset, data, sizes = images_of(run)
  spec = spec_of(data, dataset.channels, dataset.num_classes)
  if not run.system.encoding_shapes(variables, spec).features:
    return
  split = load_split(dataset, "train", run.settings.evaluation.max_examples)
  make_batch = functools.partial(evaluation_batch, canvas=sizes["canvas"])
  encoding = encode_dataset(
    run.system, variables, split, make_batch, batch_size=sizes["batch_size"]
  )
  shared = {"num_classes": dataset.num_classes, "seed": seed}
  fits = {
    name: fit_clusters(np.asarray(values), split["label"], **shared, name=name)
    for name, values in encoding.features.items()
  }
  clusters = {name: fit.clusters for name, fit in fits.items() if fit.clusters}
  write_whole(folder / CLUSTERS_FILE, clusters_json(clusters, run.step, seed))


def write_parameters(folder: pathlib.Path, params: Any, dtype: str) -> Any:
  """Writes parameters in a dtype; returns them as they will be read. RunError if too large."""
  if dtype not in DTYPES:
    raise RunError(f"parameters are saved as {' or '.join(DTYPES)}, not as {dtype!r}.")
  arrays = {}
  for path, leaf in jax.tree.leaves_with_path(params):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    if np.abs(leaf).max(initial=0) > np.finfo(dtype).max:
      raise RunError(f"parameter {name} has numbers too large for {dtype}; save as float32.")
    arrays[name] = np.asarray(leaf).astype(dtype)
  content = io.BytesIO()
  np.savez_compressed(content, **arrays)
  write_whole(folder / FILE, content.getvalue())
  return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf).astype(dtype), leaf.dtype), params)


def main() -> None:
  """Exports as the command line says."""
  parser = plain_parser(__doc__)
  parser.add_argument("workdir", type=pathlib.Path)
  parser.add_argument("folder", type=pathlib.Path)
  parser.add_argument("--step", default="latest", help="a number, latest or best")
  parser.add_argument("--seed", type=int, default=None)
  parser.add_argument("--dtype", choices=DTYPES, default="float16")
  options = parser.parse_args()
  with exit_with_message(), as_run_errors():
    run = open_run(options.workdir, options.step)
    seeds = list(run.variables)
    seed = best_seed(options.workdir, run.step, seeds) if options.seed is None else options.seed
    if seed not in seeds:
      parser.error(f"the run has seeds {seeds}, not {seed}")
    if is_exported(options.workdir):
      results = read_json(options.workdir / "source.json", "figures")["figures"]
    else:
      results = measured(options.workdir, run.step, seed)
    save_pretrained(run, seed, options.folder, options.dtype, results)
  size = (options.folder / FILE).stat().st_size
  print(f"step {run.step} of seed {seed}: {options.folder}, {size / 1e6:.1f} MB")


if __name__ == "__main__":
  main()
