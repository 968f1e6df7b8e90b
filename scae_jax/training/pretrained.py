"""Pretrained parameters: what evaluation needs of a run, without its checkpoints.

<folder>/config.json    the run's resolved config
<folder>/params.npz     parameters by path, float16 or float32, of one seed
<folder>/data.json      what the data set is that it was trained on
<folder>/source.json    step, seed and the run's figures
<folder>/clusters.json  clusters of the training images, named by their labels, of a model without
                        labels of its own; see `evaluation.clusters`
"""

import pathlib
from typing import Any

from scae_jax.data.dataset import Dataset
from scae_jax.evaluation.clusters import write_clusters
from scae_jax.evaluation.report import Evaluated
from scae_jax.evaluation.scorers import named_clusters
from scae_jax.files import sealed_json, write_json, write_whole
from scae_jax.training.build import Run
from scae_jax.training.errors import RunError
from scae_jax.training.options import DataOptions
from scae_jax.training.parameters import pretrained_names, write_parameters
from scae_jax.training.workdir import describe_data


def save_pretrained(
  run: Run, seed: int, folder: pathlib.Path, dtype: str, figures: dict[str, Any]
) -> None:
  """Writes one seed of a run, and results of its evaluation, into a folder, made if need be.

  Numbers too large for the dtype, float16 or float32, raise `RunError`.
  """
  variables = {"params": write_parameters(folder, run.variables[seed]["params"], dtype)}
  config = run.config.to_dict()
  config["train"]["start_from"] = ""  # a folder of this machine, and no more to be read
  write_whole(folder / "config.json", sealed_json(config))
  write_json(folder / "data.json", describe_data(run.dataset))
  source = {"step": run.step, "seed": seed, "figures": figures}
  write_whole(folder / "source.json", sealed_json(source))
  data, options = run.settings.data, run.settings.evaluation
  if isinstance(run.dataset, Dataset) and isinstance(data, DataOptions) and not run.system.classify:
    evaluated = Evaluated(
      run.system, {seed: variables}, run.step, options.batch_size, options.max_examples
    )
    clusters = named_clusters(evaluated, run.dataset, data.canvas, seed)
    write_clusters(folder, clusters, run.step, seed)


def named_folders(
  parent: pathlib.Path, workdir: str, name: str
) -> tuple[pathlib.Path, pathlib.Path]:
  """Folders of a run, or of the named parameters in `parent`, and of its results; or `RunError`."""
  if not workdir and not name:
    raise RunError("name a run by --workdir=FOLDER, or parameters by --pretrained=NAME.")
  results = pathlib.Path(workdir or f"runs/pretrained-{name}")
  known = pretrained_names(parent)
  if name and name not in known:  # so that a name is never a path to elsewhere
    raise RunError(f"there are no parameters {name!r} in {parent}; it has {known}.")
  return (parent / name if name else results), results
