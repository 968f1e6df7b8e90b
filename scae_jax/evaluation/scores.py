"""LIN-MATCH and LIN-PRED of features and of raw pixels, as entries of a report."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from scae_jax.evaluation.examples import choose
from scae_jax.evaluation.probes import MAX_STEPS, Fit, capsules_in_use

# Training examples of the baselines on raw pixels: 60,000 x 784 numbers take minutes on two cores.
# With 10,000, k-means scores the same and the linear probe lower; the report has the number.
MAX_PIXEL_EXAMPLES = 10_000
PIXEL_STARTS = 10  # of k-means on pixels, where a start takes two seconds
PIXELS = "raw pixels"
Features = tuple[np.ndarray, np.ndarray]  # float32 [n, d], and labels int [n]


def cluster_entries(fit: Fit, test: Features) -> dict[str, Any]:
  """LIN-MATCH of clusters, on the scored and on the training examples."""
  confusion = fit.confusion(*test)
  return {
    "lin_match": float(np.trace(confusion) / confusion.sum()),
    "lin_match_train": fit.train_accuracy,
    "clusters": fit.num_clusters,
    "confusion": confusion.tolist(),
  }


def probe_entries(fit: Fit, test: Features) -> dict[str, Any]:
  """LIN-PRED of a linear probe, on the scored and on the training examples."""
  return {
    "lin_pred": fit.accuracy(*test),
    "lin_pred_train": fit.train_accuracy,
    "lin_pred_converged": fit.converged,
    "fitted_examples": fit.num_examples,
  }


def use_entries(name: str, activations: np.ndarray) -> dict[str, Any]:
  """Which capsules are in use, see `probes.capsules_in_use`."""
  is_in_use = capsules_in_use(activations, name=name)
  return {
    "capsules": len(is_in_use),
    "capsules_in_use": int(is_in_use.sum()),
    "indices_in_use": np.flatnonzero(is_in_use).tolist(),
  }


def notes_of(*fits: Fit) -> list[str]:
  """Sentences that qualify the scores of clusters and probes."""
  notes = []
  for fit in fits:
    name = fit.name.replace("_", " ")
    if fit.clusters is not None and fit.num_clusters < fit.num_classes:
      notes.append(
        f"{name}: only {fit.num_clusters} distinct cluster(s) for {fit.num_classes} classes, as"
        " with dead capsules, which limits LIN-MATCH."
      )
    if not fit.converged:
      notes.append(
        f"{name}: the linear probe was cut after {MAX_STEPS} steps; LIN-PRED is a lower bound."
      )
  return notes


def pixel_features(
  train: Mapping[str, np.ndarray], test: Mapping[str, np.ndarray]
) -> tuple[Features, Features]:
  """Pixels in [0, 1] as features: of at most `MAX_PIXEL_EXAMPLES` training and of all test images.

  If sizes differ, smaller images are centred on black, as on a canvas.
  """
  rows = choose(len(train["label"]), MAX_PIXEL_EXAMPLES)
  splits = [(train["image"][rows], train["label"][rows]), (test["image"], test["label"])]
  sides = np.max([images.shape[1:3] for images, _ in splits], axis=0)
  fitted, scored = ((_flat_pixels(images, sides), labels) for images, labels in splits)
  return fitted, scored


def _flat_pixels(images: np.ndarray, sides: np.ndarray) -> np.ndarray:
  missing = sides - images.shape[1:3]
  margins = [(0, 0), *((int(side) // 2, int(side - side // 2)) for side in missing), (0, 0)]
  pixels = np.pad(images, margins).reshape(len(images), -1)
  return pixels.astype(np.float32) / np.float32(255)
