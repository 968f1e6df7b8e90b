"""What arrays must satisfy before anything is fitted to them or measured of them."""

import numpy as np


def check_finite(what: str, values: np.ndarray) -> None:
  """Raises ValueError, which counts the examples, unless all `values` [n, ...] are finite."""
  broken = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
  if broken.any():
    raise ValueError(
      f"{what} must be finite, but {int(broken.sum())} of {len(values)} examples have NaN or "
      f"infinity (the first is number {int(np.argmax(broken))}). The parameters have most likely "
      "diverged: evaluate an earlier step."
    )


def check_enough_to_fit(train_labels: np.ndarray, num_classes: int) -> None:
  """Raises ValueError where labels int [n] are fewer than the classes, or all the same."""
  if len(train_labels) < num_classes:
    raise ValueError(
      f"Fitting {num_classes} classes takes at least {num_classes} training examples, got "
      f"{len(train_labels)}. Use more examples (raise max_examples)."
    )
  if len(np.unique(train_labels)) < 2:
    raise ValueError(
      f"Fitting takes training examples of at least 2 classes, got only class {train_labels[0]}. "
      "Use more examples (raise max_examples), or a data set with more classes."
    )
