"""Chooses the examples that are scored, drawn and embedded: the same ones in every run."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from scae_jax.data.dataset import EvalDataset, Preview, Split

NUM_PICTURED = 10  # examples that a report's figures show
# Not the run's seed, so that runs with different seeds are scored on the same examples.
_SHUFFLE_SEED = 0


def choose(split_size: int, max_examples: int) -> np.ndarray:
  """Indices of the examples to use: all in order if 0, else the first ones of a fixed shuffle."""
  if max_examples < 0:
    raise ValueError(f"max_examples must be 0 (all) or more, got {max_examples}.")
  if max_examples == 0 or max_examples >= split_size:
    return np.arange(split_size)
  return np.random.RandomState(_SHUFFLE_SEED).permutation(split_size)[:max_examples]


def named_split(dataset: EvalDataset, name: str) -> Split:
  """A split of a data set; ValueError if there is none of that name."""
  check_split(dataset, name)
  return dataset.splits[name]


def check_split(dataset: EvalDataset | Preview, name: str) -> None:
  """Raises ValueError if there is no split of that name."""
  if name not in dataset.splits:
    raise ValueError(
      f"Data set '{dataset.name}' has no split '{name}'; it has {', '.join(dataset.splits)}."
    )


def load_split(dataset: EvalDataset, split: str, max_examples: int) -> dict[str, np.ndarray]:
  """The chosen examples of a split, as `dataset.Split.arrays`.

  Raises ValueError if there is no such split or the limit is negative.
  """
  examples = named_split(dataset, split)
  return examples.take(choose(len(examples.labels), max_examples)).arrays


def describe_scored(dataset: EvalDataset, split: str, count: int) -> dict[str, Any]:
  """Describes the `count` scored examples of a split, as an entry of a record.

  Keys are `dataset`, `split`, `examples`, `fingerprint`, of the whole split, and `path`, if the
  data set has one: a folder or the dotted path of a function.
  """
  path = {"path": dataset.path} if dataset.path else {}
  fingerprint = named_split(dataset, split).fingerprint
  facts = {"dataset": dataset.name, **path, "split": split, "examples": count}
  return {**facts, "fingerprint": fingerprint}


def one_of_each_class(labels: np.ndarray, count: int) -> np.ndarray:
  """Up to `count` indices of labels int [n]: the first of each class, then the second ones, etc."""
  order = np.argsort(labels, kind="stable")
  _, first, sizes = np.unique(labels[order], return_index=True, return_counts=True)
  rank = np.arange(len(labels)) - np.repeat(
    first, sizes
  )  # how many examples of its class precede it
  return order[np.lexsort((labels[order], rank))][:count]


def check_transfer(
  trained_on: EvalDataset | Preview, scored_on: EvalDataset | Preview, canvas: int
) -> None:
  """Raises ValueError unless channels and classes are the same, and images fit on the canvas.

  Facts that a preview does not have are not compared.
  """
  where = f"Data set '{scored_on.name}' cannot score a model of '{trained_on.name}':"
  if scored_on.channels not in (0, trained_on.channels):
    raise ValueError(
      f"{where} the model takes {trained_on.channels} image channel(s), got {scored_on.channels}. "
      "Choose a set with as many, or train on this one."
    )
  if tuple(scored_on.class_names) not in ((), tuple(trained_on.class_names)):
    raise ValueError(
      f"{where} the model knows the classes {_shorten(trained_on.class_names)}, got "
      f"{_shorten(scored_on.class_names)}. Choose a set with the same classes in the same order, "
      "or train on this one."
    )
  if scored_on.image_side > canvas:
    raise ValueError(
      f"{where} the model's canvas is {canvas} pixels a side, got images of "
      f"{scored_on.image_shape[0]} x {scored_on.image_shape[1]}. "
      "Train with a larger --config.data.canvas."
    )


def _shorten(names: Sequence[str]) -> str:
  more = f", ... {len(names)} in all" if len(names) > 10 else ""
  return f"[{', '.join(names[:10])}{more}]"
