"""LIN-MATCH and LIN-PRED of features and of raw pixels, as entries of a report."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from scae_jax.evaluation.clusters import Clusters
from scae_jax.evaluation.examples import choose
from scae_jax.evaluation.probes import (
  MAX_STEPS,
  NUM_STARTS,
  capsules_in_use,
  fit_clusters,
  fit_probe,
)

# Training examples of the baselines on raw pixels: 60,000 x 784 numbers take minutes on two cores.
# With 10,000, k-means scores the same and the linear probe lower; the report has the number.
MAX_PIXEL_EXAMPLES = 10_000
PIXEL_STARTS = 10  # of k-means on pixels, where a start takes two seconds
PIXELS = "raw pixels"
Features = tuple[np.ndarray, np.ndarray]  # float32 [n, d], and labels int [n]


@dataclasses.dataclass(frozen=True)
class Scores:
  """Scores of one set of features."""

  # For `metrics.json`: `lin_match` and `lin_pred` on the scored and on the training examples,
  # `fitted_examples`, `confusion`, and for capsules which are in use. Probe features have only
  # those of `lin_pred`.
  entries: dict[str, Any]
  notes: tuple[str, ...]  # sentences that qualify the scores
  clusters: Clusters | None = None  # of LIN-MATCH; None of probe features


def score(
  name: str,
  train: Features,
  test: Features,
  num_classes: int,
  *,
  seed: int,
  are_capsules: bool = True,
  probe: Scores | None = None,
) -> Scores:
  """Fits as many clusters as classes, and a probe, to `train`; scores both on `test`.

  `seed` seeds k-means. `probe`: a linear probe that is already fitted. Raises ValueError for
  features that are not finite or, of capsules, negative, and for too few training examples.
  """
  starts = NUM_STARTS if are_capsules else PIXEL_STARTS
  clusters = fit_clusters(*train, num_classes=num_classes, seed=seed, name=name, num_starts=starts)
  confusion = clusters.confusion(*test)
  probe = probe or score_linear_probe(name, train, test, num_classes)
  entries = {
    "lin_match": float(np.trace(confusion) / confusion.sum()),
    "lin_match_train": clusters.train_accuracy,
    **probe.entries,
    "clusters": clusters.num_clusters,
    "confusion": confusion.tolist(),
  }
  notes = probe.notes
  if clusters.num_clusters < num_classes:
    too_few = (
      f"{name.replace('_', ' ')}: only {clusters.num_clusters} distinct cluster(s) for "
      f"{num_classes} classes, as with dead capsules, which limits LIN-MATCH."
    )
    notes = (too_few, *notes)
  if are_capsules:
    is_in_use = capsules_in_use(test[0], name=name)
    entries |= {
      "capsules": len(is_in_use),
      "capsules_in_use": int(is_in_use.sum()),
      "indices_in_use": np.flatnonzero(is_in_use).tolist(),
    }
  return Scores(entries, notes, clusters.clusters)


def score_linear_probe(name: str, train: Features, test: Features, num_classes: int) -> Scores:
  """Fits and scores a linear probe alone; features may be negative. Otherwise as `score`."""
  probe = fit_probe(*train, num_classes=num_classes, name=name)
  entries = {
    "lin_pred": probe.accuracy(*test),
    "lin_pred_train": probe.train_accuracy,
    "lin_pred_converged": probe.converged,
    "fitted_examples": probe.num_examples,
  }
  not_converged = (
    f"{name.replace('_', ' ')}: the linear probe was cut after {MAX_STEPS} steps; LIN-PRED is a "
    "lower bound."
  )
  return Scores(entries, () if probe.converged else (not_converged,))


def score_pixels(
  train: Mapping[str, np.ndarray],
  test: Mapping[str, np.ndarray],
  num_classes: int,
  *,
  seed: int,
  probe: Scores | None = None,
) -> Scores:
  """`score` of the images' own pixels, see `pixel_features`."""
  fitted, scored = pixel_features(train, test)
  scores = score(PIXELS, fitted, scored, num_classes, seed=seed, are_capsules=False, probe=probe)
  count = len(fitted[1])
  note = f"{PIXELS}: fitted on {count:,} of the training images."
  return Scores(scores.entries, (*scores.notes, *[note] * (count < len(train["label"]))))


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
