"""The ceiling of segmentation: RANSAC that knows the patterns, their ranges and the jitter.

A hypothesis identifies an ordered pair of a scene's points with a pair of a pattern's points, which
fixes a similarity transform. The pattern's other points are assigned to the nearest scene points,
and the transform is fitted again to all by least squares. All hypotheses are tried instead of
random ones; those that fit the ranges and the jitter are candidates. A scene is explained by the
set of candidates that leaves the fewest points over and then fits best, found by a beam search over
patterns.

Points are complex numbers here: a similarity transform is z -> a z + b, |a| its scale.
"""

import numpy as np
from scipy import stats

from scae_jax.data.constellations import PATTERNS, Scenes

MAX_POINTS = 62  # a set of points is an int64
CHUNK = 200  # scenes at once, to limit memory
MAX_CANDIDATES = 32  # of a pattern in a scene, the best
BEAM = 64  # partial explanations that are kept
# Standard deviation assumed without jitter: float32 keeps coordinates of 18 units to 1e-6.
MIN_JITTER = 1e-3
MISSED = 1e-4  # probability that a true pattern fits worse than allowed
# Cost of a point that is left over, in squared standard deviations: more than any allowed fit.
LEFT_OVER = 100.0
# Slack at the ends of the ranges, in standard deviations of a fitted scale or angle.
SLACK = 4.0


def ransac(points: np.ndarray, presence: np.ndarray, options: Scenes) -> np.ndarray:
  """Finds the patterns of scenes: points [s, n, 2] in [-1, 1], presence [s, n], 0 or 1.

  `options` are those that the scenes were drawn with. Returns int32 [s, n], the index in
  `options.patterns` of the pattern that each point is explained by, -1 for absent and for
  unexplained points. More than `MAX_POINTS` present points in a scene raise ValueError.
  """
  is_present = np.asarray(presence).astype(bool)
  counts = is_present.sum(axis=1)
  if counts.max() > MAX_POINTS:
    raise ValueError(
      f"RANSAC takes at most {MAX_POINTS} present points a scene, got {counts.max()}"
    )
  z = np.asarray(points, np.float64) @ np.array([1, 1j]) * options.extent
  assignment = np.full(is_present.shape, -1, np.int32)
  for count in np.unique(counts):
    same_count = np.flatnonzero(counts == count)
    for scenes in np.split(same_count, range(CHUNK, len(same_count), CHUNK)):
      scene, slot = np.nonzero(is_present[scenes])
      pattern = _explain(z[scenes[scene], slot].reshape(len(scenes), count), options)
      assignment[scenes[scene], slot] = pattern.reshape(-1)
  return assignment


def _explain(z: np.ndarray, options: Scenes) -> np.ndarray:
  """The pattern of each point of z [s, n], int [s, n], -1 for none, by a beam search."""
  num_scenes, num_points = z.shape
  candidates = {name: _candidates(z, name, options) for name in set(options.patterns)}
  used_points = np.zeros((num_scenes, 1), np.int64)
  cost = np.full((num_scenes, 1), LEFT_OVER * num_points)
  explanations = np.zeros((num_scenes, 1, len(options.patterns)), np.int64)
  # Patterns of many points first: they fit by chance least often.
  order = sorted(range(len(options.patterns)), key=lambda i: -len(PATTERNS[options.patterns[i]]))
  for i in order:
    name = options.patterns[i]
    # The first choice is that the pattern is absent.
    members, misfit = candidates[name]
    members = np.pad(members, ((0, 0), (1, 0)))
    cost_change = np.pad(misfit - LEFT_OVER * len(PATTERNS[name]), ((0, 0), (1, 0)))
    is_disjoint = (used_points[:, :, None] & members[:, None]) == 0
    new_cost = np.where(is_disjoint, cost[:, :, None] + cost_change[:, None], np.inf)
    new_cost = new_cost.reshape(num_scenes, -1)
    best = np.argsort(new_cost, axis=1, kind="stable")[:, :BEAM]
    parent, choice = np.divmod(best, members.shape[1])
    new_points = np.take_along_axis(members, choice, axis=1)
    cost = np.take_along_axis(new_cost, best, axis=1)
    used_points = np.take_along_axis(used_points, parent, axis=1) | new_points
    explanations = np.take_along_axis(explanations, parent[..., None], axis=1)
    explanations[:, :, i] = new_points
  winner = explanations[:, 0]  # [s, patterns]
  is_member = (winner[:, :, None] >> np.arange(num_points)) & 1
  return np.where(is_member.any(axis=1), is_member.argmax(axis=1), -1)


def _candidates(z: np.ndarray, name: str, options: Scenes) -> tuple[np.ndarray, np.ndarray]:
  """Sets of points [s, n] that may be the pattern, without repetition, the best fit first.

  Returns int64 [s, c], in which bit i is set if point i belongs to the pattern, and [s, c], the sum
  of squared distances divided by the variance of the jitter; infinite if a scene has fewer sets.
  """
  template = PATTERNS[name].astype(np.float64) @ np.array([1, 1j])
  num_scenes, num_points = z.shape
  if num_points < len(template):
    return np.zeros((num_scenes, 0), np.int64), np.zeros((num_scenes, 0))
  nearest = _nearest_points(z, template)
  scene, nearest = _distinct(nearest)
  misfit, fits = _refit(z, scene, nearest, template, options)
  scene, nearest, misfit = scene[fits], nearest[fits], misfit[fits]
  members = (1 << nearest.astype(np.int64)).sum(axis=1)
  # Every set once, with its best fit: the first of each in order of misfit.
  order = np.lexsort((misfit, members, scene))
  order = order[np.diff([scene[order], members[order]], prepend=-1).any(axis=0)]
  order = order[np.lexsort((misfit[order], scene[order]))]
  scene, members, misfit = scene[order], members[order], misfit[order]
  rank = np.arange(len(scene)) - np.searchsorted(scene, scene)
  kept = rank < MAX_CANDIDATES
  shape = (num_scenes, min(MAX_CANDIDATES, int(rank.max(initial=-1)) + 1))
  sets, misfits = np.zeros(shape, np.int64), np.full(shape, np.inf)
  sets[scene[kept], rank[kept]] = members[kept]
  misfits[scene[kept], rank[kept]] = misfit[kept]
  return sets, misfits


def _nearest_points(z: np.ndarray, template: np.ndarray) -> np.ndarray:
  """Int8 [s, h, p]: for each hypothesis, the scene point nearest to each point of the pattern."""
  i, j = np.nonzero(~np.eye(z.shape[1], dtype=bool))
  a, b = np.triu_indices(len(template), 1)
  factor = (z[:, j] - z[:, i])[:, :, None] / (template[b] - template[a])
  shift = z[:, i][:, :, None] - factor * template[a]
  predicted = factor[..., None] * template + shift[..., None]
  predicted = predicted.reshape(len(z), -1, len(template))
  # argmin |u - w|^2 is argmax u.w - |w|^2 / 2; float32 is precise enough to compare points.
  predicted_x = np.real(predicted).astype(np.float32)
  predicted_y = np.imag(predicted).astype(np.float32)
  point_x, point_y = np.real(z).astype(np.float32), np.imag(z).astype(np.float32)
  half_norm = ((point_x**2 + point_y**2) / 2)[:, None]
  nearest = np.empty(predicted.shape, np.int8)
  for p in range(len(template)):
    product = (
      predicted_x[:, :, p, None] * point_x[:, None] + predicted_y[:, :, p, None] * point_y[:, None]
    )
    nearest[:, :, p] = np.argmax(product - half_norm, axis=2)
  return nearest


def _distinct(nearest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Hypotheses that use no point twice: their scenes [h] and points [h, p]."""
  ascending = np.sort(nearest, axis=2)
  scene, hypothesis = np.nonzero((np.diff(ascending, axis=2) > 0).all(axis=2))
  return scene, nearest[scene, hypothesis]


def _refit(
  z: np.ndarray,
  scene: np.ndarray,
  nearest: np.ndarray,
  template: np.ndarray,
  options: Scenes,
) -> tuple[np.ndarray, np.ndarray]:
  """Least-squares fit of each hypothesis: its misfit [h], and whether it is acceptable [h].

  With centred template t and points w around their mean, a = sum conj(t) w / sum |t|^2, and the sum
  of squares left is sum |w|^2 - |a|^2 sum |t|^2.
  """
  jitter = max(options.jitter, MIN_JITTER)
  w = z[scene[:, None], nearest]
  w = w - w.mean(axis=1, keepdims=True)
  spread = np.sum(np.abs(template) ** 2)
  a = w @ template.conj() / spread
  misfit = np.maximum(np.sum(np.abs(w) ** 2, axis=1) - np.abs(a) ** 2 * spread, 0) / jitter**2
  # 2 p coordinates less the 4 degrees of freedom of the transform.
  allowed = stats.chi2.isf(MISSED, 2 * len(template) - 4)
  slack = SLACK * jitter / np.sqrt(spread)
  scale = np.abs(a)
  angle = np.abs(np.angle(a))
  fits = misfit <= allowed
  fits &= (scale >= options.min_scale - slack) & (scale <= options.max_scale + slack)
  fits &= angle <= np.deg2rad(options.max_rotation) + slack / np.maximum(scale, slack)
  return misfit, fits
