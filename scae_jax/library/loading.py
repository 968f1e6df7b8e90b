"""Opens a trained model by name or folder, without its data set."""

import os
import pathlib
from typing import Any

import numpy as np

from scae_jax.config import Settings
from scae_jax.data.options import DataOptions
from scae_jax.errors import RunError, as_run_errors
from scae_jax.evaluation.clusters import FILE, Clusters, read_clusters
from scae_jax.files import given_path
from scae_jax.library.inputs import ImageInput, PointInput
from scae_jax.library.model import Model
from scae_jax.models.system import Spec, System
from scae_jax.precision import single_precision
from scae_jax.training.build import make_system
from scae_jax.training.hosts import find_devices
from scae_jax.training.run import pretrained_folders, restore
from scae_jax.training.workdir import load_settings, read_image_facts


@single_precision
def load(
  source: str | os.PathLike[str],
  *,
  step: int | str = "latest",
  seed: int | None = None,
  batch_size: int = 64,
) -> Model:
  """Opens a trained model; it does not need its data set.

  Args:
    source: name of pretrained parameters, `digits`, `mnist` or `mnist-official`; or a folder: the
      workdir of a run, or one that experiments/export.py wrote. Import a system of your own first.
    step: checkpoint of a workdir: `latest`, `best` (lowest held-out loss) or a number.
    seed: seed of a run with several seeds; None for the first.
    batch_size: number of examples in a pass through the model.

  Raises:
    RunError: there is no such model, step or seed, or it cannot be read.
  """
  if not isinstance(batch_size, int | np.integer) or batch_size < 1:
    raise RunError(f"batch_size must be a whole number, 1 or more; it is {batch_size}.")
  find_devices()
  with as_run_errors():
    folder = _folder(source)
    settings = load_settings(folder, is_given=True)
    spec = _facts(folder, settings)[0]
    system = make_system(settings, spec)
    variables, step_number, _ = restore(folder, step, settings, system, spec)
    seed = next(iter(variables)) if seed is None else seed
    if seed not in variables:
      raise RunError(f"{folder} has the seeds {sorted(variables)}, not {seed}.")
    return model_of(
      folder, settings, system, step_number, seed, variables[seed], batch_size=batch_size
    )


def model_of(
  folder: pathlib.Path,
  settings: Settings,
  system: System,
  step: int,
  seed: int,
  variables: Any,
  *,
  batch_size: int = 64,
) -> Model:
  """The `Model` of an opened run; facts about images and the clusters come from its folder."""
  spec, class_names, inputs = _facts(folder, settings)
  return Model(
    settings=settings,
    spec=spec,
    class_names=class_names,
    clusters=_clusters(folder, step, seed),
    step=step,
    seed=seed,
    batch_size=batch_size,
    system=system,
    variables=variables,
    inputs=inputs,
  )


def _facts(
  folder: pathlib.Path, settings: Settings
) -> tuple[Spec, tuple[str, ...], ImageInput | PointInput]:
  """The spec that the model is built from, the class names, and the model's input."""
  if isinstance(settings.data, DataOptions):
    spec, class_names, side = read_image_facts(folder, settings.data)
    return spec, class_names, ImageInput(settings.data, spec.channels, side)
  return settings.data.spec, (), PointInput(settings.data.slots)


def _folder(source: str | os.PathLike[str]) -> pathlib.Path:
  """The folder of a model; the name of pretrained parameters takes precedence."""
  pretrained = pretrained_folders()
  folder = pretrained.get(str(source)) or given_path(source)
  if not (folder / "config.json").is_file():
    raise RunError(
      f"there is no model {str(source)!r}: expected a folder with config.json, or one of"
      f" {list(pretrained)}."
    )
  return folder


def _clusters(folder: pathlib.Path, step: int, seed: int) -> dict[str, Clusters]:
  """Clusters of this step and seed, by name of the features, the most accurate ones first.

  If several reports have them, those of the topmost folder count; of several such folders, one on
  all examples, and the first by name.
  """
  reports = sorted(
    folder.glob(f"evaluation/**/{FILE}"),
    key=lambda path: (len(path.parts), "-max" in path.parent.name, path),
  )
  for path in [folder / FILE, *reports]:
    if path.is_file() and (clusters := read_clusters(path, step, seed)):
      return dict(sorted(clusters.items(), key=lambda item: -item[1].train_accuracy))
  return {}
