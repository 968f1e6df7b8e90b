"""Opens a trained model by name or folder, without its data set."""

import os
import pathlib
from typing import Any

from scae_jax.config import Settings
from scae_jax.data.options import DataOptions
from scae_jax.errors import RunError, explained
from scae_jax.evaluation.clusters import FILE, Clusters, read_clusters
from scae_jax.files import given_path
from scae_jax.library.inputs import ImageInput, PointInput
from scae_jax.library.model import Model
from scae_jax.models.system import Spec, System
from scae_jax.precision import single_precision
from scae_jax.training.hosts import find_devices
from scae_jax.training.run import make_system
from scae_jax.training.start import PRETRAINED, pretrained_names, restore
from scae_jax.training.workdir import load_settings, read_image_facts


@single_precision
def load(
  source: str | os.PathLike[str],
  *,
  step: int | str = "latest",
  seed: int | None = None,
  batch_size: int = 64,
) -> Model:
  """Opens a trained model; its data set need not be there.

  Args:
    source: name of pretrained parameters, `digits` or `mnist`; or a folder: the workdir of a run,
      or one that experiments/export.py wrote. A system of one's own is imported before.
    step: of a workdir: `latest`, `best` (lowest held-out loss) or a number.
    seed: of a workdir with several; None for the first.
    batch_size: examples a pass.

  Raises:
    RunError: there is no such model, step or seed, or it cannot be read.
  """
  if batch_size < 1:
    raise RunError(f"batch_size must be 1 or more; it is {batch_size}.")
  find_devices()
  with explained():
    folder = _folder(source)
    settings = load_settings(folder, is_given=True)
    spec = _facts(folder, settings)[0]
    system = make_system(settings, spec)
    by_seed, number, _ = restore(folder, step, settings, system, spec)
    seed = next(iter(by_seed)) if seed is None else seed
    if seed not in by_seed:
      raise RunError(f"{folder} has the seeds {sorted(by_seed)}, not {seed}.")
    return model_of(folder, settings, system, number, seed, by_seed[seed], batch_size=batch_size)


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
  """The model of a run that is open, with what its folder says of images and clusters."""
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
  """What the model is built from, the names of the labels, and what the model takes."""
  if isinstance(settings.data, DataOptions):
    spec, class_names, side = read_image_facts(folder, settings.data)
    return spec, class_names, ImageInput(settings.data, spec.channels, side)
  return settings.data.spec, (), PointInput(settings.data.slots)


def _folder(source: str | os.PathLike[str]) -> pathlib.Path:
  """Where the model is; a pretrained name comes first."""
  known = pretrained_names()
  folder = PRETRAINED / source if str(source) in known else given_path(source)
  if not (folder / "config.json").is_file():
    raise RunError(
      f"there is no model {str(source)!r}: expected a folder with config.json, or one of {known}."
    )
  return folder


def _clusters(folder: pathlib.Path, step: int, seed: int) -> dict[str, Clusters]:
  """Clusters of this step and seed; where several reports have them, the topmost one's, and of
  these one on all examples, the first by name."""
  reports = sorted(
    folder.glob(f"evaluation/**/{FILE}"),
    key=lambda path: (len(path.parts), "-max" in path.parent.name, path),
  )
  for path in [folder / FILE, *reports]:
    if path.is_file() and (found := read_clusters(path, step, seed)):
      return dict(sorted(found.items(), key=lambda item: -item[1].train_accuracy))
  return {}
