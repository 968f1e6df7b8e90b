"""Constellations: their distribution, exact geometry, and data given by hand."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from scae_jax import bounds
from scae_jax.data.constellations import NUM_TEST, PATTERNS, Scenes, scenes
from tests.toy_data import SCENES, assert_uniform

# No pattern but the square has a symmetry that hides a turn: an L shows its angle.
LETTERS = dataclasses.replace(
  SCENES, patterns=("l", "pentagon"), presence_prob=0.8, max_rotation=30.0, num_points=13
)
COUNT = 3000
EXTENT = 12 + 4 * np.sqrt(2)


@pytest.fixture(scope="module")
def basic():
  """Scenes of the published kind, as NumPy."""
  return jax.device_get(scenes(jax.random.key(0), SCENES, COUNT))


@pytest.fixture(scope="module")
def letters():
  return jax.device_get(scenes(jax.random.key(1), LETTERS, COUNT))


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


def test_patterns_have_side_two_and_are_centred():
  sizes = {"square": 4, "triangle": 3, "pentagon": 5, "l": 5}
  assert {name: len(points) for name, points in PATTERNS.items()} == sizes
  r2, r5, r8 = np.sqrt([2, 5, 8])
  # The L has two legs of length 2, a pentagon diagonals in the golden ratio to its sides.
  expected = {"square": [2] * 4 + [r8] * 2, "triangle": [2] * 3}
  expected |= {"pentagon": [2] * 5 + [1 + r5] * 5, "l": [1, 1, 1, 1, r2, 2, 2, r5, r5, r8]}
  for name, points in PATTERNS.items():
    np.testing.assert_allclose(points.mean(axis=0), 0, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(distances(points[None])[0], expected[name], rtol=1e-6)
  for name in ("triangle", "pentagon"):  # a corner on the y axis
    np.testing.assert_allclose(PATTERNS[name][0, 0], 0, atol=1e-6)
    assert PATTERNS[name][0, 1] > 1
  assert SCENES.extent == pytest.approx(EXTENT, rel=1e-6)
  assert LETTERS.extent == pytest.approx(12 + 4 / np.sin(np.pi / 5), rel=1e-6)


def test_slots_shapes_and_types(basic, letters):
  types = {"points": "float32", "presence": "float32", "pattern": "int32"}
  for batch, slots, owned in ((basic, 11, [4, 3, 4]), (letters, 13, [5, 5])):
    assert {name: str(array.dtype) for name, array in batch.items()} == types
    assert batch["points"].shape == (COUNT, slots, 2)
    assert not batch["points"][batch["presence"] == 0].any()
    assert np.isfinite(batch["points"]).all()
    assert np.isin(batch["presence"], (0, 1)).all()
    assert (batch["presence"] > 0).any(axis=1).all()
    assert 0.85 < np.abs(batch["points"]).max() <= 1  # nothing lies outside, without jitter
    # Slots beyond all patterns are pattern 0's, and never there.
    spare = slots - sum(owned)
    for i, points in enumerate(owned):
      counts = (batch["pattern"] == i).sum(axis=1)
      np.testing.assert_array_equal(counts, points + (spare if i == 0 else 0))
      pattern_points(batch, i)


def test_sides_and_middles_are_uniform(basic):
  for index, name in enumerate(SCENES.patterns):
    lengths = distances(pattern_points(basic, index, EXTENT))
    scale = lengths[:, 0] / 2
    # Float32 of coordinates up to 18.
    template = distances(PATTERNS[name][None])
    np.testing.assert_allclose(lengths, scale[:, None] * template, atol=2e-5)
    assert_uniform(scale, 1, 4)
  for index in range(3):
    middle = pattern_points(basic, index, EXTENT).mean(axis=1)
    for axis in middle.T:
      assert_uniform(axis, -12, 12)
    assert abs(np.corrcoef(middle.T)[0, 1]) < 0.1


def test_subsets_of_patterns_have_the_probabilities_of_coins_that_are_not_all_zero(basic, letters):
  for batch, prob, count in ((basic, 0.5, 3), (letters, 0.8, 2)):
    there = np.stack(
      [((batch["pattern"] == i) & (batch["presence"] > 0)).any(axis=1) for i in range(count)], 1
    )
    for subset in itertools.product((False, True), repeat=count):
      share = (there == subset).all(axis=1).mean()
      if not any(subset):
        assert share == 0
        continue
      expected = np.prod([prob if on else 1 - prob for on in subset]) / (1 - (1 - prob) ** count)
      assert abs(share - expected) < 0.035  # the standard deviation is below 0.009


def test_jitter_is_added_to_every_coordinate_in_units_of_the_side(basic):
  """The same key draws the same scenes but for the noise."""
  loud = scenes(jax.random.key(0), dataclasses.replace(SCENES, jitter=0.25), COUNT)
  there = basic["presence"] > 0
  noise = (loud["points"] - basic["points"])[there] * EXTENT
  assert abs(noise.mean()) < 0.01
  np.testing.assert_allclose(noise.std(axis=0), 0.25, rtol=0.03)
  assert abs(np.corrcoef(noise.T)[0, 1]) < 0.05
  assert not np.asarray(loud["points"])[~there].any()
  # A few points in 10,000 leave [-1, 1], and not far.
  outside = np.abs(np.asarray(loud["points"])).max(axis=-1) > 1
  assert outside.mean() < 1e-3
  assert np.abs(np.asarray(loud["points"])).max() < 1.05


def test_a_scene_depends_on_the_key_and_its_number_alone(basic):
  again = jax.device_get(scenes(jax.random.key(0), SCENES, 2))
  other = jax.device_get(scenes(jax.random.key(9), SCENES, COUNT))
  for name in ("presence", "pattern"):
    np.testing.assert_array_equal(again[name], basic[name][:2])
  # Coordinates up to 1, with cosines that another compilation may round in its own way.
  np.testing.assert_allclose(again["points"], basic["points"][:2], atol=1e-6)
  assert (other["points"] != basic["points"]).any(axis=(1, 2)).all()
  distinct = {points.tobytes() for points in basic["points"]}
  assert len(distinct) == COUNT


def test_fixed_test_scenes_are_those_of_the_records():
  """Records are scored on them: another seed or order of draws would be another set."""
  assert NUM_TEST == 10_000
  drawn = SCENES.test_scenes(0.25, 2)
  np.testing.assert_array_equal(drawn["pattern"][0], [1, 2, 1, 0, 2, 1, 2, 0, 2, 0, 0])
  np.testing.assert_array_equal(drawn["presence"][0], [1, 1, 1, 0, 1, 1, 1, 0, 1, 0, 0])
  expected = [[0.6091516, 0.2978781], [-0.0402638, 0.1883995], [0.7725561, 0.4632289]]
  np.testing.assert_allclose(drawn["points"][0, :3], expected, atol=1e-5)
  still = SCENES.test_scenes(0.0, 2)["points"]
  np.testing.assert_allclose(still[0, 0], [0.6212326, 0.3085978], atol=1e-5)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"max_scale": 0.5}, r"max_scale.* 1\.0.*config\.data\.min_scale.* 0\.5"),
    ({"num_points": 10}, r"num_points.*config\.data\.patterns.* 10\b"),
  ],
)
def test_invalid_options_are_refused(change, message):
  with pytest.raises(ValueError, match=rf"config\.data\.{message}"):
    bounds.read(Scenes, "data", dataclasses.asdict(SCENES) | change)
