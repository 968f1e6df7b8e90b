"""How well capsules split the points of a scene into its patterns.

Each scene has its own score and scores are averaged, so that a scene of three points counts as much
as one of eleven. Only present points count. A point belongs to a capsule, or to none (-1):

- with *true presence*, to the capsule that won it, whatever presence the model predicts;
- with *predicted presence*, to the capsule that won it only if that capsule's presence probability
  exceeds 0.5, else to none. A point of no capsule is wrong.

The encoding has both, as `Encoding.point_winner` and `Encoding.groups`.
"""

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.stats import entropy
from sklearn.metrics import adjusted_rand_score
from sklearn.metrics.cluster import contingency_matrix


def segmentation(
  presence: np.ndarray, pattern: np.ndarray, capsule: np.ndarray
) -> dict[str, np.ndarray]:
  """Compares the capsule of each point, int [s, n], -1 for none, with its pattern, int [s, n].

  For the accuracy, patterns and capsules are matched one to one in every scene. The other scores
  compare partitions, in which each point of no capsule is a group of its own. `presence` [s, n] is
  0 or 1, not all 0.

  Returns scores of every scene, [s] each: `accuracy`, the share of present points whose capsule
  was matched to their pattern; `adjusted_rand_index`, 1 for equal partitions, 0 on average for
  random ones; `variation_of_information`, nats, 0 for equal partitions, at most log(points).
  """
  present = presence.astype(bool)
  # Number of points by scene, pattern and capsule; index 0 is no capsule.
  table = np.zeros((len(pattern), pattern.max() + 1, capsule.max() + 2), np.int64)
  np.add.at(table, (np.nonzero(present)[0], pattern[present], capsule[present] + 1), 1)
  counts = table[..., 1:]
  num_matched = [scene[linear_sum_assignment(scene, maximize=True)].sum() for scene in counts]
  groups = np.where(capsule < 0, capsule.max() + 1 + np.arange(capsule.shape[1])[None], capsule)
  partitions = [
    (scene_pattern[scene_present], group[scene_present])
    for scene_pattern, group, scene_present in zip(pattern, groups, present, strict=True)
  ]
  return {
    "accuracy": np.asarray(num_matched) / present.sum(axis=1),
    "adjusted_rand_index": np.array([adjusted_rand_score(*pair) for pair in partitions]),
    "variation_of_information": np.array([_variation_of_information(*pair) for pair in partitions]),
  }


def _variation_of_information(pattern: np.ndarray, group: np.ndarray) -> float:
  """H(pattern | group) + H(group | pattern) of points [n], nats. Meila 2007."""
  counts = np.asarray(contingency_matrix(pattern, group))
  of_pattern, of_group = entropy(counts.sum(axis=1)), entropy(counts.sum(axis=0))
  # Equal partitions give a difference of two equal sums, which rounding may make negative.
  return max(float(2 * entropy(counts.ravel()) - of_pattern - of_group), 0.0)
