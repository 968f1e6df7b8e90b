"""The report on a model of points: how well its capsules tell patterns apart, by jitter."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scae_jax.data.scenes import NUM_TEST, Scenes
from scae_jax.evaluation.examples import full_batches
from scae_jax.evaluation.files import make_writable, seed_folders, write_json
from scae_jax.evaluation.pictures import curve_figures, model_figures, save_figures
from scae_jax.evaluation.provenance import measured_with
from scae_jax.evaluation.ransac import ransac
from scae_jax.evaluation.segmentation import segmentation
from scae_jax.evaluation.summary import write_summary
from scae_jax.evaluation.table import plain_scene_table
from scae_jax.models.system import System
from scae_jax.typing import Array, Batch

# Standard deviations of the points, in units of the patterns, whose side is 2.
JITTERS = (0.0, 0.1, 0.25)
NUM_SCENES_PICTURED = 8

# Compiled: (variables, scenes of one batch) -> System.segment's arrays.
Segment = Callable[[Any, Batch], dict[str, Array]]


def write_scene_reports(
  directory: str | pathlib.Path,
  system: System,
  variables: Mapping[int, Any],
  dataset: Scenes,
  *,
  batch_size: int,
  step: int,
  max_examples: int = 0,
  provenance: dict[str, Any] | None = None,
  history: str | pathlib.Path | None = None,
) -> dict[int, dict[str, Any]]:
  """Scores every seed of a run: `metrics.json` and figures each, and a table on stdout.

  Of several seeds each has a folder `seed-<number>`, and there is one summary. RANSAC, which knows
  the patterns, stands beside them as the ceiling.

  Args:
    directory: where to write; made if need be.
    system: the model; it must have `segment`.
    variables: what its module applies, by seed.
    dataset: the scenes that it was trained on.
    batch_size: scenes a pass.
    step: training step of the parameters.
    max_examples: use at most so many test scenes at each jitter; 0 is all.
    provenance: more entries for `metrics.json`, such as the config's name.
    history: `metrics.jsonl` of the training run; drawn as curves if the file is there.

  Returns:
    The content of each seed's `metrics.json`.

  Raises:
    ValueError: the system does not segment points, or a negative limit.
    OSError: the directory cannot be written to; found before anything is computed.
  """
  directory = pathlib.Path(directory)
  if system.segment is None:
    raise ValueError("the system has no `segment`, so scenes of points cannot score it.")
  if max_examples < 0:
    raise ValueError(f"max_examples must be 0 (all) or more, got {max_examples}.")
  make_writable(directory)
  count = min(max_examples or NUM_TEST, NUM_TEST)
  scenes = {jitter: dataset.test_scenes(jitter, count) for jitter in JITTERS}
  ceiling = {jitter: _ransac(dataset, jitter, batch) for jitter, batch in scenes.items()}
  segment = make_segment(system)
  reports = {}
  for seed, folder in seed_folders(directory, variables).items():
    own = variables[seed]
    make_writable(folder)
    by_jitter = {}
    for jitter, batch in scenes.items():
      found = segment_all(segment, own, batch, batch_size)
      scores = {name: _score(dataset, batch, capsule) for name, capsule in found.items()}
      by_jitter[f"{jitter:g}"] = scores | {"ransac": ceiling[jitter]}
    reports[seed] = {
      "scored_on": {"dataset": dataset.name, "split": "test", "examples": count},
      "max_examples": max_examples,
      "step": int(step),
      "seed": int(seed),
      "segmentation": by_jitter,
      "notes": ["ransac knows the patterns, the ranges of their poses and the jitter."],
      **measured_with(),
      "provenance": provenance or {},
    }
    write_json(folder / "metrics.json", reports[seed])
    print(plain_scene_table(reports[seed]))
    _draw(folder, system, own, scenes[JITTERS[0]], history, seed)
  if len(reports) > 1:
    write_summary(directory, reports)
  return reports


def make_segment(system: System) -> Segment:
  """Compiles `System.segment` of a pass over one batch."""

  def run(variables: Any, batch: Batch) -> dict[str, Array]:
    assert system.segment is not None  # the caller has checked
    return system.segment(system.module.apply(variables, batch, train=False))

  return jax.jit(run)


def segment_all(
  segment: Segment, variables: Any, scenes: Mapping[str, np.ndarray], batch_size: int
) -> dict[str, np.ndarray]:
  """`System.segment` of every scene, in their order."""
  count = len(scenes["presence"])
  found = []
  for rows in full_batches(count, batch_size):
    batch = {name: jnp.asarray(array[rows]) for name, array in scenes.items()}
    found.append(jax.device_get(segment(variables, batch)))
  return {name: np.concatenate([one[name] for one in found])[:count] for name in found[0]}


def _score(
  dataset: Scenes, scenes: Mapping[str, np.ndarray], capsule: np.ndarray
) -> dict[str, float]:
  num_capsules = max(int(capsule.max()) + 1, 1)
  return segmentation(
    scenes["points"],
    scenes["presence"],
    scenes["pattern"],
    capsule,
    num_patterns=len(dataset.options.patterns),
    num_capsules=num_capsules,
  ).means()


def _ransac(dataset: Scenes, jitter: float, scenes: Mapping[str, np.ndarray]) -> dict[str, float]:
  options = dataclasses.replace(dataset.options, jitter=jitter)
  return _score(dataset, scenes, ransac(scenes["points"], scenes["presence"], options))


def _draw(
  folder: pathlib.Path,
  system: System,
  variables: Any,
  scenes: Mapping[str, np.ndarray],
  history: str | pathlib.Path | None,
  seed: int,
) -> None:
  pictured = {name: jnp.asarray(array[:NUM_SCENES_PICTURED]) for name, array in scenes.items()}
  drawers = dict(model_figures(system, variables, pictured))
  drawers |= dict(curve_figures(history, seed))
  save_figures(folder, drawers)
