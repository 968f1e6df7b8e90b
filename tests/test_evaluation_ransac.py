"""RANSAC: scenes built by hand, a brute-force search, and the ceiling on generated scenes."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from scae_jax.data.constellations import PATTERNS, scenes
from scae_jax.evaluation import ransac as module
from scae_jax.evaluation.ransac import ransac
from scae_jax.evaluation.segmentation import segmentation
from tests.toy_data import SCENES

ALL_KINDS = dataclasses.replace(SCENES, patterns=("l", "triangle", "pentagon", "square"))


def placed(name, scale, degrees, middle):
  turn = np.exp(1j * np.deg2rad(degrees))
  z = scale * turn * (PATTERNS[name] @ [1, 1j])
  return np.stack([z.real, z.imag], axis=1) + middle


def one_scene(*patterns, options=SCENES, seed=0):
  """Shuffled points of some patterns, absent slots among them: points, presence, pattern."""
  rng = np.random.RandomState(seed)
  slots = options.slots
  points, presence, pattern = np.zeros((slots, 2)), np.zeros(slots), np.zeros(slots, int)
  start = 0
  for index, placement in patterns:
    p = placed(options.patterns[index], *placement)
    p = p + options.jitter * rng.normal(size=p.shape)
    here = slice(start, start + len(p))
    points[here], presence[here], pattern[here] = p / options.extent, 1, index
    start += len(p)
  order = rng.permutation(slots)
  return points[order][None], presence[order][None], pattern[order][None]


def same_groups(groups, pattern, presence):
  """Whether present points are split in the same way, whatever the groups are called."""
  there = presence > 0
  pairs = set(zip(groups[there], pattern[there], strict=True))
  return len(pairs) == len(set(groups[there])) == len(set(pattern[there]))


FAR = (2.0, 20.0, (-8, 5))


def test_all_kinds_of_patterns_but_one_that_the_ranges_forbid():
  """An L that is turned too far; every turn of a square is one of at most 45 degrees."""
  there = [
    (0, (2.0, 80.0, (-8, 5))),
    (1, (3.0, 5.0, (2, 2))),
    (2, (2.5, -30.0, (0, 1))),
    (3, (1.2, 0.0, (9, -7))),
  ]
  points, presence, pattern = one_scene(*there, options=ALL_KINDS)
  np.testing.assert_array_equal(ransac(points, presence, ALL_KINDS), pattern)
  options = dataclasses.replace(ALL_KINDS, max_rotation=79.0)
  expected = np.where(pattern == 0, -1, pattern)
  np.testing.assert_array_equal(ransac(points, presence, options), expected)


def refit_fits(z, options):
  """Whether `_refit` takes points [4] for a square, each for its own corner."""
  template = PATTERNS["square"] @ np.array([1, 1j])
  order = np.arange(4, dtype=np.int8)[None]
  return module._refit(z[None], np.zeros(1, int), order, template, options)[1][0]


def test_a_true_pattern_is_missed_once_in_ten_thousand():
  """Corners moved to and fro by turns are what no similarity does: four degrees of freedom."""
  options = dataclasses.replace(SCENES, jitter=0.2)
  square = 2 * PATTERNS["square"] @ np.array([1, 1j])
  for misfit, expected in ((23.51, True), (23.52, False)):
    # The chance of more, by the chi-square distribution's closed form.
    assert (np.exp(-misfit / 2) * (1 + misfit / 2) > 1e-4) == expected
    moved = square + 0.2 * np.sqrt(misfit / 4) * np.array([1, -1, 1, -1])
    assert refit_fits(moved, options) == expected


@pytest.mark.parametrize(
  ("scale", "degrees", "expected"),
  [
    # The scale of a fitted square is off by jitter / sqrt(8); four of that at 0.1 are 0.1414.
    (0.858, 0.0, False),
    (0.859, 0.0, True),
    (4.141, 0.0, True),
    (4.142, 0.0, False),
    # At a scale of 2, its angle by half of that in radians: 4.05 degrees.
    (2.0, 34.04, True),
    (2.0, -34.04, True),
    (2.0, 34.06, False),
    (2.0, -34.06, False),
  ],
)
def test_ranges_have_slack_for_the_jitter(scale, degrees, expected):
  options = dataclasses.replace(SCENES, jitter=0.1, max_rotation=30.0)
  z = placed("square", scale, degrees, (0, 0)) @ np.array([1, 1j])
  assert refit_fits(z, options) == expected


def test_points_left_over_count_more_than_a_fit(monkeypatch):
  """A perfect square of four points, and a pentagon of all five that barely fits."""
  groups = {
    "square": (np.array([[0b01111]]), np.array([[0.0]])),
    "pentagon": (np.array([[0b11111]]), np.array([[27.0]])),
  }
  monkeypatch.setattr(module, "_candidates", lambda z, name, options: groups[name])
  options = dataclasses.replace(SCENES, patterns=("square", "pentagon"))
  assert module._explain(np.zeros((1, 5)), options).tolist() == [[1] * 5]


def test_patterns_of_many_points_come_first(monkeypatch):
  """In loud noise three corners of a square may be a triangle; with one guess it is not taken."""
  monkeypatch.setattr(module, "BEAM", 1)
  options = dataclasses.replace(SCENES, patterns=("triangle", "square"), jitter=0.5)
  points, presence, pattern = one_scene((1, FAR), options=dataclasses.replace(options, jitter=0.0))
  z = points[presence > 0][None] @ [1, 1j] * options.extent
  misfit = module._candidates(z, "triangle", options)[1]
  assert np.isfinite(misfit).any()
  assert np.array_equal(misfit, np.sort(misfit))  # the best first
  groups = ransac(points, presence, options)
  np.testing.assert_array_equal(groups[presence > 0], pattern[presence > 0])


def test_a_set_of_points_has_its_best_fit():
  """Of a small L in loud noise, several orders of the same points fit; the best one counts."""
  options = dataclasses.replace(ALL_KINDS, jitter=0.4, max_rotation=180.0)
  template = PATTERNS["l"] @ np.array([1, 1j])
  matrix = np.stack([template, np.ones(5)], axis=1)
  several = 0
  for seed in range(8):
    rng = np.random.RandomState(seed)
    z = (template + 0.4 * (rng.normal(size=5) + 1j * rng.normal(size=5)))[None]
    nearest = module._distinct(module._nearest_points(z, template))[1]
    misfits, fits = module._refit(z, np.zeros(len(nearest), int), nearest, template, options)
    several += len(np.unique(misfits[fits].round(6))) > 1
    orders = [list(order) for order in set(map(tuple, nearest[fits]))]
    if not orders:
      continue
    left = [np.linalg.lstsq(matrix, z[0, order], rcond=None)[1][0].real for order in orders]
    members, misfit = module._candidates(z, "l", options)
    assert members.tolist() == [[0b11111]]
    np.testing.assert_allclose(misfit, [[min(left) / 0.4**2]], rtol=1e-6)
  assert several > 2


def brute_force(points, options):
  """The cheapest split of the points of a scene with a triangle and a square, over all subsets and
  all orders: total sum of squares."""
  z = points @ np.array([1, 1j]) * options.extent

  def fit(indices, name):
    template = PATTERNS[name] @ np.array([1, 1j])
    best = np.inf
    for order in itertools.permutations(indices):
      w = z[list(order)]
      matrix = np.stack([template, np.ones(len(template))], axis=1)
      solution, *_ = np.linalg.lstsq(matrix, w, rcond=None)
      slack = 4 * options.jitter / np.linalg.norm(template)
      if 1 - slack <= abs(solution[0]) <= 4 + slack:
        best = min(best, np.sum(np.abs(matrix @ solution - w) ** 2))
    return best

  everything = set(range(len(z)))
  splits = itertools.combinations(range(len(z)), 3)
  return min(
    (fit(three, "triangle") + fit(sorted(everything - set(three)), "square"), three)
    for three in splits
  )[1]


def test_against_all_subsets():
  options = dataclasses.replace(
    SCENES, patterns=("square", "triangle"), field=2.0, jitter=0.35, presence_prob=1.0
  )
  batch = jax.device_get(scenes(jax.random.key(3), options, 12))
  groups = ransac(batch["points"], batch["presence"], options)
  wrong = 0
  for points, row, pattern in zip(batch["points"], groups, batch["pattern"], strict=True):
    assert set(np.flatnonzero(row == 1)) == set(brute_force(points, options))
    wrong += (row != pattern).any()
  assert wrong > 0, "these scenes are crowded: the cheapest split is not always the true one"


@pytest.mark.parametrize(("jitter", "at_least", "at_most"), [(0.0, 1.0, 1.0), (0.25, 0.99, 0.9999)])
def test_ceiling(jitter, at_least, at_most):
  options = dataclasses.replace(SCENES, jitter=jitter)
  batch = jax.device_get(scenes(jax.random.key(0), options, 500))
  groups = ransac(batch["points"], batch["presence"], options)
  result = segmentation(batch["presence"], batch["pattern"], groups)
  assert at_least <= result["accuracy"].mean() <= at_most


def test_scenes_are_explained_one_by_one(monkeypatch):
  """Neither the others of a chunk nor the order of points matters."""
  monkeypatch.setattr(module, "CHUNK", 3)  # of three to seven scenes of a size
  batch = jax.device_get(scenes(jax.random.key(0), SCENES, 25))
  points, presence = batch["points"], batch["presence"]
  together = ransac(points, presence, SCENES)
  order = np.random.RandomState(0).permutation(11)
  for i in range(25):
    alone = ransac(points[i : i + 1, order], presence[i : i + 1, order], SCENES)
    assert same_groups(alone[0], together[i, order], presence[i, order])


def test_as_many_points_as_a_set_holds():
  """A square among scattered points, in the last of 62 slots; one more is refused."""
  options = dataclasses.replace(SCENES, patterns=("square",), num_points=63)
  points = np.random.RandomState(0).uniform(-0.9, 0.9, (1, 63, 2))
  points[0, 58:62] = placed("square", *FAR) / options.extent
  presence = np.ones((1, 63))
  with pytest.raises(ValueError, match=r"62.*63"):
    ransac(points, presence, options)
  presence[0, 62] = 0
  np.testing.assert_array_equal(ransac(points, presence, options)[0], [-1] * 58 + [0] * 4 + [-1])
