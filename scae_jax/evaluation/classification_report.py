"""The report on a model that classifies by itself: how often it is right, and how sure it is."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scae_jax.data.dataset import ScoredSet
from scae_jax.evaluation.classification import classify, classify_pairs
from scae_jax.evaluation.examples import (
  NUM_PICTURED,
  choose,
  full_batches,
  one_of_each_class,
)
from scae_jax.evaluation.features import check_shapes, mean_measures
from scae_jax.evaluation.files import make_writable, seed_folders, write_json
from scae_jax.evaluation.pictures import (
  answer_figures,
  curve_figures,
  model_figures,
  save_figures,
)
from scae_jax.evaluation.provenance import measured_with
from scae_jax.evaluation.summary import write_summary
from scae_jax.evaluation.table import plain_classification_table
from scae_jax.models.system import System, labels_of
from scae_jax.typing import Array, Batch

# (arrays of a split on the device, indices) -> batch; jittable, as `Feed.evaluation_batch`.
MakeBatch = Callable[[Mapping[str, Array], Array], Batch]
# Compiled: (variables, arrays of a split, indices) -> {name: [b, ...]}, see `make_answer`.
Answer = Callable[[Any, Mapping[str, Array], Array], dict[str, Any]]


def write_classification_reports(
  directory: str | pathlib.Path,
  system: System,
  variables: Mapping[int, Any],
  scored: ScoredSet,
  examples: Mapping[str, np.ndarray],
  evaluation_batch: MakeBatch,
  *,
  split: str,
  batch_size: int,
  step: int,
  max_examples: int = 0,
  provenance: dict[str, Any] | None = None,
  history: str | pathlib.Path | None = None,
) -> dict[int, dict[str, Any]]:
  """Scores every seed of a run: `metrics.json` and figures each, and a table on stdout.

  Of several seeds each has a folder `seed-<number>`, and there is one summary. `metrics.json` is
  written before the figures are drawn.

  Args:
    directory: where to write; made if need be.
    system: the model; it must have `classify`.
    variables: what its module applies, by seed.
    scored: the data set that the examples are of: its name, classes and notes.
    examples: arrays of the split, on the host, one entry an example each; all go to the device.
    evaluation_batch: `(examples, indices) -> batch` with `label` [b], and `other_label` [b] where
      examples have pairs of labels; jittable.
    split: what the split is called.
    batch_size: examples a pass.
    step: training step of the parameters.
    max_examples: score at most so many, always the same; 0 is all.
    provenance: more entries for `metrics.json`, such as the config's name.
    history: `metrics.jsonl` of the training run; drawn as curves if the file is there.

  Returns:
    The content of each seed's `metrics.json`.

  Raises:
    ValueError: the system does not classify; no examples, or arrays that are not of one length; a
      negative limit; scores or measures that are not finite or of another shape.
    OSError: a folder cannot be written to; found before anything is computed.
  """
  directory = pathlib.Path(directory)
  rows = choose(_count(examples), max_examples)
  answer = make_answer(system, evaluation_batch, scored.num_classes)
  folders = seed_folders(directory, variables)
  for folder in folders.values():
    make_writable(folder)
  on_device = {name: jnp.asarray(array) for name, array in examples.items()}
  reports = {}
  for seed, folder in folders.items():
    own = variables[seed]
    found = answer_all(answer, own, on_device, rows, batch_size)
    scores, labels = found["scores"], found["labels"]
    has_pairs = labels.shape[1] == 2
    answers = classify_pairs(scores, labels) if has_pairs else classify(scores, labels[:, 0])
    reports[seed] = {
      "scored_on": {"dataset": scored.name, "split": split, "examples": len(rows)},
      "max_examples": max_examples,
      "step": int(step),
      "seed": int(seed),
      "classification": answers.entries(),
      "measures": mean_measures(found["measures"]),
      "notes": list(scored.notes),
      **measured_with(),
      "provenance": provenance or {},
    }
    write_json(folder / "metrics.json", reports[seed])
    print(plain_classification_table(reports[seed]))
    shown = rows[one_of_each_class(labels[:, 0], NUM_PICTURED)]
    batch = evaluation_batch(on_device, jnp.asarray(shown))
    drawers = dict(model_figures(system, own, batch, scored.class_names))
    drawers |= dict(answer_figures(answers, scored.class_names))
    drawers |= dict(curve_figures(history, seed))
    save_figures(folder, drawers)
  if len(reports) > 1:
    write_summary(directory, reports)
  return reports


def make_answer(system: System, evaluation_batch: MakeBatch, num_classes: int) -> Answer:
  """Compiles the pass over one batch.

  Args:
    system: the model.
    evaluation_batch: `(examples, indices) -> batch`, jittable.
    num_classes: number of labels.

  Returns:
    `(variables, examples, indices) -> {"scores": [b, num_classes], "labels": int32 [b, 1] or, of
    pairs, [b, 2], "measures": {name: [b]}}`. It compiles once for each batch size.

  Raises:
    ValueError: the system has no `classify`; from the result, scores or measures of another shape.
  """
  scores_of = system.classify
  if scores_of is None:
    raise ValueError(
      "the system has no `classify`, so it does not classify by itself; `report.write_reports`"
      " scores its features."
    )

  def answer(variables: Any, examples: Mapping[str, Array], indices: Array) -> dict[str, Any]:
    batch = evaluation_batch(examples, indices)
    output = system.module.apply(variables, batch, train=False)
    scores, measures = scores_of(output), dict(system.measures(output, batch))
    if scores.shape != (len(indices), num_classes):
      raise ValueError(
        f"`System.classify` must give [{len(indices)}, {num_classes}], one score for each class of"
        f" the data set, got {scores.shape}."
      )
    check_shapes("measures", measures, len(indices), 1)
    return {"scores": scores, "labels": labels_of(batch), "measures": measures}

  return jax.jit(answer)


def answer_all(
  answer: Answer,
  variables: Any,
  examples: Mapping[str, Array],
  rows: np.ndarray,
  batch_size: int,
) -> dict[str, Any]:
  """What `answer` gives of the examples in `rows`, in their order, as NumPy arrays.

  Results wait on the device until the end, so that the device never waits for the host.

  Args:
    answer: from `make_answer`.
    variables: what the module applies.
    examples: arrays of a split, on the device.
    rows: int [n], n at least 1.
    batch_size: examples a pass.
  """
  passes = [
    answer(variables, examples, jnp.asarray(rows[batch]))
    for batch in full_batches(len(rows), batch_size)
  ]
  return jax.tree.map(lambda *parts: np.concatenate(parts)[: len(rows)], *jax.device_get(passes))


def _count(examples: Mapping[str, np.ndarray]) -> int:
  """How many examples there are; raises ValueError unless all arrays have one length above 0."""
  lengths = {name: len(array) for name, array in examples.items()}
  if len(set(lengths.values())) != 1 or 0 in lengths.values():
    raise ValueError(
      f"The arrays of a split must have one entry an example each, and one at least, got {lengths}."
    )
  return next(iter(lengths.values()))
