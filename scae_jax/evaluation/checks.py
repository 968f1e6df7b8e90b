"""Checks of arrays before anything is fitted to them or measured on them."""

import numpy as np

DIVERGED = "The parameters have most likely diverged: evaluate an earlier step."


def check_finite(name: str, values: np.ndarray, remedy: str = DIVERGED) -> None:
  """Raises ValueError unless all `values` [n, ...] are finite; the message lists the examples."""
  bad_rows = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))
  if len(bad_rows):
    listing = ", ".join(map(str, bad_rows[:10])) + (", ..." if len(bad_rows) > 10 else "")
    raise ValueError(
      f"{name} must be finite, but {len(bad_rows)} of {len(values)} examples have NaN or infinity:"
      f" {listing}. {remedy}"
    )


def check_enough_to_fit(train_labels: np.ndarray, num_classes: int) -> None:
  """Raises ValueError if there are fewer labels int [n] than classes, or labels of one class."""
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
