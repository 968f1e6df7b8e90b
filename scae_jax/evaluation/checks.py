"""What features and labels must satisfy before anything is fitted to them."""

import numpy as np


def check_features(name: str, features: np.ndarray) -> None:
  """Raises unless `features` is a matrix of finite numbers.

  Args:
    name: what the features are called in messages.
    features: [n, d], one row an example.

  Raises:
    ValueError: wrong rank, no rows or columns, or numbers that are not finite.
  """
  if features.ndim != 2 or 0 in features.shape:
    raise ValueError(
      f"Features '{name}' must have shape [examples, features] with at least one of each, "
      f"got {features.shape}. Flatten what has more axes; look at what `System.features` returns."
    )
  broken = ~np.isfinite(features).all(axis=1)
  if broken.any():
    raise ValueError(
      f"Features '{name}' must be finite, but {int(broken.sum())} of {len(features)} examples have "
      f"NaN or infinity (the first is number {int(np.argmax(broken))}). The parameters have most "
      "likely diverged: evaluate an earlier step."
    )


def check_labels(name: str, features: np.ndarray, labels: np.ndarray, num_classes: int) -> None:
  """Raises unless every row of `features` has a label in [0, num_classes).

  Args:
    name: what the features are called in messages.
    features: [n, d].
    labels: integers [n].
    num_classes: number of labels.

  Raises:
    ValueError: labels of another length, type or range.
  """
  if labels.shape != (len(features),) or not np.issubdtype(labels.dtype, np.integer):
    raise ValueError(
      f"Features '{name}' have {len(features)} rows, so labels must be that many integers, "
      f"got {labels.dtype} {labels.shape}."
    )
  if labels.min() < 0 or labels.max() >= num_classes:
    raise ValueError(
      f"Labels must be in 0 ... {num_classes - 1}, got {labels.min()} ... {labels.max()}. "
      "Give the number of classes of the data set, or leave the other labels out."
    )


def check_to_fit(name: str, features: np.ndarray, labels: np.ndarray, num_classes: int) -> None:
  """Raises unless clusters and a probe can be fitted to features [n, d] and labels int [n].

  Raises:
    ValueError: features that are not finite, labels outside the classes, fewer examples than
      classes, or examples of one class only.
  """
  check_features(name, features)
  check_labels(name, features, labels, num_classes)
  check_enough_to_fit(labels, num_classes)


def check_to_score(
  name: str, num_features: int, features: np.ndarray, labels: np.ndarray, num_classes: int
) -> None:
  """Raises unless what was fitted to `num_features` columns can score [n, d] against int [n].

  Raises:
    ValueError: features that are not finite or of another width, or labels outside the classes.
  """
  check_features(name, features)
  check_labels(name, features, labels, num_classes)
  if features.shape[1] != num_features:
    raise ValueError(
      f"Features '{name}' have {num_features} columns in training and {features.shape[1]} in the "
      "examples to score: both must come from one model."
    )


def check_enough_to_fit(train_labels: np.ndarray, num_classes: int) -> None:
  """Raises unless clusters and a probe can be fitted to examples with these labels.

  Args:
    train_labels: int [n].
    num_classes: number of labels and of clusters.

  Raises:
    ValueError: fewer examples than classes, or examples of one class only.
  """
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
