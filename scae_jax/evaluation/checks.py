"""What arrays must satisfy before anything is fitted to them or measured of them."""

import numpy as np

DIVERGED = "The parameters have most likely diverged: evaluate an earlier step."


def check_finite(what: str, values: np.ndarray, remedy: str = DIVERGED) -> None:
  """Raises ValueError, which names examples, unless all `values` [n, ...] are finite."""
  broken = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))
  if len(broken):
    shown = ", ".join(map(str, broken[:10])) + (", ..." if len(broken) > 10 else "")
    raise ValueError(
      f"{what} must be finite, but {len(broken)} of {len(values)} examples have NaN or infinity:"
      f" {shown}. {remedy}"
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
