"""How well capsules split the points of a scene into its patterns.

Figures are of single scenes and then averaged, so that a scene of three points counts as much as
one of eleven. Only present points count. A point belongs to a capsule, or to none (-1):

- with *true presence*, to the capsule that won it, whatever presence the model predicts;
- with *predicted presence*, to the capsule that won it only if that capsule's presence probability
  exceeds 0.5, else to none. A point of no capsule is wrong.

`System.segment` gives both.
"""

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import xlogy
from sklearn.metrics import adjusted_rand_score


def segmentation(
  presence: np.ndarray, pattern: np.ndarray, capsule: np.ndarray
) -> dict[str, np.ndarray]:
  """Compares the capsule of each point with its pattern, both int [s, n], -1 for no capsule.

  For the accuracy, patterns and capsules are matched one to one in every scene. The others compare
  partitions, in which each point of no capsule is a group. `presence` [s, n] is 0 or 1, not all 0.

  Returns figures of every scene, [s] each: `accuracy`, the share of present points whose capsule
  was matched to their pattern; `adjusted_rand_index`, 1 for equal partitions, 0 on average for
  random ones; `variation_of_information`, nats, 0 for equal partitions, at most log(points).
  """
  present = presence.astype(bool)
  # Points by scene, pattern and capsule, of no capsule first.
  table = np.zeros((len(pattern), pattern.max() + 1, capsule.max() + 2), np.int64)
  np.add.at(table, (np.nonzero(present)[0], pattern[present], capsule[present] + 1), 1)
  alone, counts = table[..., 0], table[..., 1:]
  right = [scene[linear_sum_assignment(scene, maximize=True)].sum() for scene in counts]
  groups = np.where(capsule < 0, capsule.max() + 1 + np.arange(capsule.shape[1])[None], capsule)
  rand_indices = [
    adjusted_rand_score(true[here], group[here])
    for true, group, here in zip(pattern, groups, present, strict=True)
  ]
  return {
    "accuracy": np.asarray(right) / present.sum(axis=1),
    "adjusted_rand_index": np.asarray(rand_indices),
    "variation_of_information": _variation_of_information(counts, alone),
  }


def _variation_of_information(counts: np.ndarray, alone: np.ndarray) -> np.ndarray:
  """H(pattern | capsule) + H(capsule | pattern), nats. Meila 2007.

  `counts` are points [s, patterns, capsules], `alone` [s, patterns] those that are groups of their
  own.
  """
  of_pattern = counts.sum(axis=2) + alone
  total = of_pattern.sum(axis=1)
  # 2 H(pattern, capsule) - H(pattern) - H(capsule), each -sum n/N log n/N; log N cancels. A point
  # alone has n = 1, and adds nothing.
  joint = xlogy(counts, counts).sum(axis=(1, 2))
  margins = xlogy(of_pattern, of_pattern).sum(axis=1)
  by_capsule = counts.sum(axis=1)
  margins = margins + xlogy(by_capsule, by_capsule).sum(axis=1)
  # Equal partitions give a difference of two equal sums, which may round to just below zero.
  return np.maximum(margins - 2 * joint, 0.0) / total
