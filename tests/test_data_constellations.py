"""Constellations: the distribution against NumPy, exact geometry, and data given by hand."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from scae_jax import bounds
from scae_jax.data.constellations import PATTERNS, SceneOptions, check_scenes, scenes
from scae_jax.data.scenes import NUM_TEST, Scenes

OPTIONS = SceneOptions(
  patterns=("square", "triangle", "square"),
  presence_prob=0.5,
  max_rotation=90.0,
  min_scale=1.0,
  max_scale=4.0,
  field=24.0,
  jitter=0.0,
  num_points=0,
)
# No pattern but the square has a symmetry that hides a turn: an L shows its angle.
LETTERS = dataclasses.replace(
  OPTIONS, patterns=("l", "pentagon"), presence_prob=0.8, max_rotation=30.0, num_points=13
)
COUNT = 3000
EXTENT = 12 + 4 * np.sqrt(2)


@pytest.fixture(scope="module")
def basic():
  """Scenes of the published kind, as NumPy."""
  return jax.device_get(scenes(jax.random.key(0), OPTIONS, COUNT))


@pytest.fixture(scope="module")
def letters():
  return jax.device_get(scenes(jax.random.key(1), LETTERS, COUNT))


def numpy_scenes(seed, options, count):
  """The same distribution, one scene after the other: points of each present pattern."""
  rng = np.random.RandomState(seed)
  for _ in range(count):
    while True:
      present = rng.uniform(size=len(options.patterns)) < options.presence_prob
      if present.any():
        break
    drawn = {}
    for i in np.flatnonzero(present):
      angle = np.deg2rad(rng.uniform(-options.max_rotation, options.max_rotation))
      size = rng.uniform(options.min_scale, options.max_scale)
      middle = rng.uniform(-options.field / 2, options.field / 2, 2)
      turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
      points = size * PATTERNS[options.patterns[i]] @ turn.T + middle
      drawn[int(i)] = points + options.jitter * rng.normal(size=points.shape)
    yield drawn


def numpy_batch(seed, options, count):
  """Those scenes as a batch, shuffled."""
  rng = np.random.RandomState(seed + 1)
  shape = (count, options.slots)
  batch = {
    "points": np.zeros((*shape, 2), np.float32),
    "presence": np.zeros(shape, np.float32),
    "pattern": np.zeros(shape, np.int32),
  }
  for row, drawn in enumerate(numpy_scenes(seed, options, count)):
    points = np.concatenate(list(drawn.values()))
    slots = rng.permutation(options.slots)[: len(points)]
    batch["points"][row, slots] = points / options.extent
    batch["presence"][row, slots] = 1
    batch["pattern"][row, slots] = np.repeat(list(drawn), [len(p) for p in drawn.values()])
  return batch


def pattern_points(batch, index, extent=1.0):
  """[s, p, 2] points of a pattern in the scenes where it is present, in shuffled order."""
  belongs = (batch["pattern"] == index) & (batch["presence"] > 0)
  there = belongs.any(axis=1)
  counts = belongs[there].sum(axis=1)
  assert (counts == counts[0]).all(), "patterns come and go as a whole"
  return batch["points"][belongs].reshape(int(there.sum()), counts[0], 2) * extent


def distances(points):
  """Distances within each set of points, ascending, [s, pairs]."""
  pairs = list(itertools.combinations(range(points.shape[1]), 2))
  between = np.stack([np.linalg.norm(points[:, i] - points[:, j], axis=1) for i, j in pairs], 1)
  return np.sort(between, axis=1)


def test_patterns_have_side_two_and_stand_in_the_middle():
  sizes = {"square": 4, "triangle": 3, "pentagon": 5, "l": 5}
  assert {name: len(points) for name, points in PATTERNS.items()} == sizes
  for name, points in PATTERNS.items():
    np.testing.assert_allclose(points.mean(axis=0), 0, atol=1e-6, err_msg=name)
    if name != "l":
      sides = np.linalg.norm(points - np.roll(points, 1, axis=0), axis=1)
      np.testing.assert_allclose(sides, 2, rtol=1e-6, err_msg=name)
  # A corner on the y axis, and a side below.
  high, low = 2 / np.sqrt(3), -1 / np.sqrt(3)
  np.testing.assert_allclose(PATTERNS["triangle"], [[0, high], [1, low], [-1, low]], atol=1e-6)
  np.testing.assert_allclose(PATTERNS["pentagon"][0], [0, 1 / np.sin(np.pi / 5)], atol=1e-6)
  # The square is none of the rhombi: its diagonals are equal. The L has two legs of length 2.
  np.testing.assert_allclose(distances(PATTERNS["square"][None])[0, 4:], np.sqrt(8), rtol=1e-6)
  r5, r8 = np.sqrt(5), np.sqrt(8)
  expected = [1, 1, 1, 1, np.sqrt(2), 2, 2, r5, r5, r8]
  np.testing.assert_allclose(distances(PATTERNS["l"][None])[0], expected, rtol=1e-6)


def test_slots_shapes_and_types(basic, letters):
  for batch, slots, owned in ((basic, 11, [4, 3, 4]), (letters, 13, [5, 5])):
    assert batch["points"].shape == (COUNT, slots, 2)
    assert batch["presence"].shape == batch["pattern"].shape == (COUNT, slots)
    assert [str(batch[name].dtype) for name in ("points", "presence", "pattern")] == [
      "float32",
      "float32",
      "int32",
    ]
    assert set(np.unique(batch["presence"])) == {0.0, 1.0}
    assert not batch["points"][batch["presence"] == 0].any()
    check_scenes(*(batch[name] for name in ("points", "presence", "pattern")), len(owned))
    # Slots beyond all patterns are pattern 0's, and never there.
    spare = slots - sum(owned)
    for i, points in enumerate(owned):
      counts = (batch["pattern"] == i).sum(axis=1)
      np.testing.assert_array_equal(counts, points + (spare if i == 0 else 0))
      pattern_points(batch, i)


def test_sides_are_two_times_a_scale_between_the_ends(basic):
  for index, name in enumerate(OPTIONS.patterns):
    found = distances(pattern_points(basic, index, EXTENT))
    scale = found[:, 0] / 2
    # Float32 of coordinates up to 18.
    template = distances(PATTERNS[name][None])
    np.testing.assert_allclose(found, scale[:, None] * template, atol=2e-5)
    assert 1 - 1e-5 <= scale.min() < 1.02
    assert 3.98 < scale.max() <= 4 + 1e-5
    # Uniform between: the mean of 1,700 has a standard deviation of 0.02.
    assert abs(scale.mean() - 2.5) < 0.08
    assert abs(scale.std() - 3 / np.sqrt(12)) < 0.06


def test_middles_fill_the_field(basic):
  for index in range(3):
    middle = pattern_points(basic, index, EXTENT).mean(axis=1)
    assert np.abs(middle).max() <= 12 + 1e-4
    assert (np.abs(middle).max(axis=0) > 11.9).all()
    # Uniform: standard deviation 24 / sqrt(12) = 6.93, of the mean 0.17.
    assert (np.abs(middle.mean(axis=0)) < 0.7).all()
    np.testing.assert_allclose(middle.std(axis=0), 24 / np.sqrt(12), rtol=0.05)
    assert abs(np.corrcoef(middle.T)[0, 1]) < 0.1


def angles_of_l(points):
  """Degrees by which each L is turned: from the mean, the middle between its ends lies at 45."""
  between = np.linalg.norm(points[:, :, None] - points[:, None], axis=-1).reshape(len(points), -1)
  ends = np.stack(np.unravel_index(between.argmax(axis=1), (5, 5)), axis=1)
  middle = np.take_along_axis(points, ends[..., None], axis=1).mean(axis=1)
  x, y = (middle - points.mean(axis=1)).T
  return np.rad2deg(np.arctan2(y, x)) - 45


def test_turns_are_uniform_within_their_range(letters):
  angles = angles_of_l(pattern_points(letters, 0))
  assert -30.01 <= angles.min() < -29.5
  assert 29.5 < angles.max() <= 30.01
  # Uniform: standard deviation 60 / sqrt(12) = 17.3, of the mean of 2,500 0.35.
  assert abs(angles.mean()) < 1.5
  np.testing.assert_allclose(angles.std(), 60 / np.sqrt(12), rtol=0.05)


def test_no_turn_without_rotation_and_everything_there_with_certainty():
  options = dataclasses.replace(LETTERS, max_rotation=0.0, presence_prob=1.0)
  batch = jax.device_get(scenes(jax.random.key(0), options, 50))
  l_points = pattern_points(batch, 0)
  assert len(l_points) == len(pattern_points(batch, 1)) == 50
  np.testing.assert_allclose(angles_of_l(l_points), 0, atol=0.01)


def test_subsets_of_patterns_have_the_probabilities_of_coins_that_are_not_all_zero(basic, letters):
  for batch, prob, count in ((basic, 0.5, 3), (letters, 0.8, 2)):
    there = np.stack(
      [((batch["pattern"] == i) & (batch["presence"] > 0)).any(axis=1) for i in range(count)], 1
    )
    for subset in itertools.product((False, True), repeat=count):
      share = (there == subset).all(axis=1).mean()
      expected = np.prod([prob if on else 1 - prob for on in subset]) / (1 - (1 - prob) ** count)
      # Standard deviation below 0.009; exactly none is empty.
      assert abs(share - (expected if any(subset) else 0)) < (0.035 if any(subset) else 1e-9)


def test_everything_without_jitter_lies_within_one_and_reaches_far(basic, letters):
  assert OPTIONS.extent == pytest.approx(EXTENT, rel=1e-6)
  pentagon = 1 / np.sin(np.pi / 5)
  assert LETTERS.extent == pytest.approx(12 + 4 * pentagon, rel=1e-6)
  for batch in (basic, letters):
    assert 0.85 < np.abs(batch["points"]).max() <= 1


def test_jitter_is_added_to_every_coordinate_in_units_of_the_side():
  """With one scale and no turn, distances from the middle tell the noise."""
  noisy = dataclasses.replace(
    OPTIONS,
    patterns=("square",),
    max_rotation=0.0,
    min_scale=2.0,
    max_scale=2.0,
    field=0.0,
    jitter=0.25,
  )
  batch = jax.device_get(scenes(jax.random.key(0), noisy, COUNT))
  points = batch["points"] * noisy.extent
  # The field is a point, so that each corner is at (+-2, +-2) but for its noise.
  noise = np.abs(points) - 2
  assert abs(noise.mean()) < 0.01
  np.testing.assert_allclose(noise.std(axis=(0, 1)), 0.25, rtol=0.03)
  assert abs(np.corrcoef(noise.reshape(-1, 2).T)[0, 1]) < 0.05
  # Of the published kind a few points in 10,000 leave [-1, 1], and not far.
  loud = scenes(jax.random.key(0), dataclasses.replace(OPTIONS, jitter=0.25), COUNT)
  outside = np.abs(np.asarray(loud["points"])).max(axis=-1) > 1
  assert outside.mean() < 1e-3
  assert np.abs(np.asarray(loud["points"])).max() < 1.05


def test_slots_are_shuffled(basic):
  """Each slot is as likely to hold each pattern, present or not."""
  for index, share in enumerate((4 / 11, 3 / 11, 4 / 11)):
    by_slot = (basic["pattern"] == index).mean(axis=0)
    # Standard deviation 0.009 at each of 11 slots.
    np.testing.assert_allclose(by_slot, share, atol=0.04)
  orders = {tuple(row) for row in basic["pattern"]}
  assert len(orders) > 2000


def test_a_scene_depends_on_the_key_and_its_number_alone(basic):
  again = jax.device_get(scenes(jax.random.key(0), OPTIONS, 5))
  other = jax.device_get(scenes(jax.random.key(9), OPTIONS, COUNT))
  for name in ("presence", "pattern"):
    np.testing.assert_array_equal(again[name], basic[name][:5])
  # Coordinates up to 1, with cosines that another compilation may round in its own way.
  np.testing.assert_allclose(again["points"], basic["points"][:5], atol=1e-6)
  assert (other["points"] != basic["points"]).any(axis=(1, 2)).all()
  distinct = {points.tobytes() for points in basic["points"]}
  assert len(distinct) == COUNT


def test_the_test_scenes_are_those_that_figures_are_of():
  """All 10,000 begin with them: another seed or another order of draws would be another set."""
  assert NUM_TEST == 10_000
  found = Scenes(OPTIONS).test_scenes(0.25, 2)
  np.testing.assert_array_equal(found["pattern"][0], [1, 2, 1, 0, 2, 1, 2, 0, 2, 0, 0])
  np.testing.assert_array_equal(found["presence"][0], [1, 1, 1, 0, 1, 1, 1, 0, 1, 0, 0])
  expected = [[0.6091516, 0.2978781], [-0.0402638, 0.1883995], [0.7725561, 0.4632289]]
  np.testing.assert_allclose(found["points"][0, :3], expected, atol=1e-5)
  still = Scenes(OPTIONS).test_scenes(0.0, 2)["points"]
  np.testing.assert_allclose(still[0, 0], [0.6212326, 0.3085978], atol=1e-5)


@pytest.mark.parametrize(
  ("change", "words"),
  [
    ({"patterns": ("square", "circle")}, ["data.patterns", "square, triangle, pentagon, l"]),
    ({"patterns": ()}, ["data.patterns", "1 to"]),
    ({"max_scale": 0.5}, ["data.max_scale", "from 1.0 (config.data.min_scale)", "0.5"]),
    ({"num_points": 10}, ["data.num_points", "at least as many as config.data.patterns", "10"]),
  ],
)
def test_options_that_are_none(change, words):
  with pytest.raises(ValueError, match=r"config\.data") as error:
    bounds.read(SceneOptions, "data", dataclasses.asdict(OPTIONS) | change)
  for word in words:
    assert word in str(error.value)


def by_hand():
  return {
    "points": np.zeros((4, 5, 2), np.float32),
    "presence": np.ones((4, 5), np.float32),
    "pattern": np.zeros((4, 5), np.int32),
    "num_patterns": 2,
  }


def changed(name, index, value):
  scenes_by_hand = by_hand()
  scenes_by_hand[name][index] = value
  return scenes_by_hand


@pytest.mark.parametrize(
  ("given", "message"),
  [
    (by_hand() | {"points": np.zeros((5, 2))}, r"shape \[scenes, points, 2\].*\(5, 2\)"),
    (by_hand() | {"points": np.zeros((4, 5, 3))}, r"\(4, 5, 3\)"),
    (by_hand() | {"points": np.zeros((0, 5, 2))}, r"at least one of each, got \(0, 5, 2\)"),
    (by_hand() | {"presence": np.ones((4, 5, 1))}, r"presence .* shape \(4, 5\), got \(4, 5, 1\)"),
    (by_hand() | {"presence": np.ones((4, 4))}, r"presence .* got \(4, 4\)"),
    (by_hand() | {"pattern": np.zeros(4, int)}, r"pattern .* got \(4,\)"),
    (by_hand() | {"pattern": np.zeros((4, 5))}, "pattern must be integers, got float64"),
    (changed("points", (2, 1, 0), np.nan), r"1 of 4 scenes \(the first is number 2\)"),
    (changed("presence", (3, 1), 0.5), r"0 or 1; 1 of 4 scenes \(the first is number 3\)"),
    (changed("presence", slice(1, 3), 0), r"at least one present point; 2 of 4 .*number 1\)"),
    (changed("pattern", (3, 4), 2), r"0 \.\.\. 1.* 1 of 4 .*number 3\)"),
    (changed("pattern", (0, 0), -1), r"index that does not exist"),
  ],
)
def test_scenes_that_are_none(given, message):
  check_scenes(**by_hand())
  with pytest.raises(ValueError, match=message):
    check_scenes(**given)


def test_a_point_may_be_absent():
  check_scenes(**changed("presence", (slice(None), slice(1, None)), 0))
