"""Which examples are evaluated, shown and embedded. All choices are the same on every run."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from scae_jax.data.dataset import EvalDataset

NUM_PICTURED = 10  # examples that a report's figures show
# Apart from the run's seed, so that runs with different seeds are scored on the same examples.
_SHUFFLE_SEED = 0


def choose(split_size: int, max_examples: int) -> np.ndarray:
  """Indices of the examples to use: all in order, or the first few of a fixed shuffle.

  Args:
    split_size: examples there are.
    max_examples: examples to use; 0 stands for all.

  Raises:
    ValueError: a negative limit.
  """
  if max_examples < 0:
    raise ValueError(f"max_examples must be 0 (all) or more, got {max_examples}.")
  if max_examples == 0 or max_examples >= split_size:
    return np.arange(split_size)
  return np.random.RandomState(_SHUFFLE_SEED).permutation(split_size)[:max_examples]


def load_split(dataset: EvalDataset, split: str, max_examples: int) -> dict[str, np.ndarray]:
  """Takes the chosen examples of a split: `image` uint8 [n, h, w, c], `label` int32 [n] and, of
  normalised images, `mean` and `std` float32 [n], see `dataset.Split`.

  Raises:
    ValueError: a split that the data set does not have, or a negative limit.
  """
  if split not in dataset.splits:
    raise ValueError(
      f"Data set '{dataset.name}' has no split '{split}'; it has {', '.join(dataset.splits)}."
    )
  examples = dataset.splits[split]
  return examples.take(choose(len(examples.labels), max_examples)).arrays


def full_batches(count: int, batch_size: int) -> Iterator[np.ndarray]:
  """Indices of examples in [0, count), in order, `batch_size` at a time.

  Every batch has the same size, so one compiled pass serves all: the last one is filled up with
  its last example, and what that gives is to be dropped. No batch is larger than the examples.

  Raises:
    ValueError: a batch size below one.
  """
  if batch_size < 1:
    raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
  batch_size = min(batch_size, count)
  for start in range(0, count, batch_size or 1):
    yield np.minimum(np.arange(start, start + batch_size), count - 1)


def one_of_each_class(labels: np.ndarray, count: int) -> np.ndarray:
  """Indices of up to `count` examples: the first of every class in turn, then the second, ...

  Args:
    labels: int [n].
    count: examples wanted.
  """
  order = np.argsort(labels, kind="stable")
  _, first, sizes = np.unique(labels[order], return_index=True, return_counts=True)
  turn = np.arange(len(labels)) - np.repeat(first, sizes)  # how many of its class came before
  return order[np.lexsort((labels[order], turn))][:count]


def flat_pixels(splits: Sequence[Mapping[str, np.ndarray]]) -> list[np.ndarray]:
  """Pixels of the images of each split as features, float32 [n, h * w * c] in [0, 1].

  Where sizes differ, smaller images are centred on black, as a canvas does it.
  """
  height = max(split["image"].shape[1] for split in splits)
  width = max(split["image"].shape[2] for split in splits)
  flat = []
  for split in splits:
    images = split["image"]
    missing = [height - images.shape[1], width - images.shape[2]]
    margins = [(0, 0), *((side // 2, side - side // 2) for side in missing), (0, 0)]
    pixels = np.pad(images, margins).reshape(len(images), -1)
    flat.append(pixels.astype(np.float32) / np.float32(255))
  return flat


def check_transfer(trained_on: EvalDataset, scored_on: EvalDataset, canvas: int) -> None:
  """Raises unless a model of one data set can be scored on another.

  Args:
    trained_on: gives the classes and channels.
    scored_on: must have the same, and images that fit on the canvas.
    canvas: side of the square that the model sees, pixels.

  Raises:
    ValueError: channels, classes or sizes do not fit.
  """
  where = f"Data set '{scored_on.name}' cannot score a model of '{trained_on.name}':"
  if scored_on.channels != trained_on.channels:
    raise ValueError(
      f"{where} the model takes {trained_on.channels} image channel(s), got {scored_on.channels}. "
      "Choose a set with as many, or train on this one."
    )
  if tuple(scored_on.class_names) != tuple(trained_on.class_names):
    raise ValueError(
      f"{where} the model knows the classes {_shorten(trained_on.class_names)}, got "
      f"{_shorten(scored_on.class_names)}. Choose a set with the same classes in the same order, "
      "or train on this one."
    )
  if scored_on.image_side > canvas:
    raise ValueError(
      f"{where} the model's canvas is {canvas} pixels a side, got images of "
      f"{scored_on.image_shape[0]} x {scored_on.image_shape[1]}. Train with a larger data.canvas."
    )


def _shorten(names: Sequence[str]) -> str:
  shown = ", ".join(names[:10])
  return f"[{shown}, ... {len(names)} in all]" if len(names) > 10 else f"[{shown}]"
