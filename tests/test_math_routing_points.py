"""Routing of points without order: against a SciPy loop, symmetries, winners, extremes."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import logsumexp

from scae_jax.routing import points as routing_points

CAPSULES, VOTES, POINTS = 3, 4, 6
LOG_DUMMY = np.log(0.01)


def reference(points, votes, scale, presence):
  """Kosiorek et al. 2019, equations 2 to 4, one number at a time: log-probability, posteriors."""
  points, votes, scale, presence = (
    np.asarray(x, np.float64) for x in (points, votes, scale, presence)
  )
  components = list(itertools.product(range(CAPSULES), range(VOTES)))
  weights = np.array([max(presence[kv], 1e-16) for kv in components] + [0.01])
  log_prob = np.zeros(len(points))
  posterior = np.zeros((len(components) + 1, len(points)))
  for n, point in enumerate(points):
    density = [
      stats.multivariate_normal.logpdf(point, votes[kv], scale[kv] ** 2 * np.eye(2))
      for kv in components
    ] + [LOG_DUMMY]
    joint = np.log(weights / weights.sum()) + density
    log_prob[n] = logsumexp(joint)
    posterior[:, n] = np.exp(joint - log_prob[n])
  return log_prob, posterior


def random_inputs(seed=0):
  """Votes around points, presences that include 0 and 1, a scale at the floor."""
  rng = np.random.RandomState(seed)
  points = rng.uniform(-1, 1, (POINTS, 2))
  votes = rng.uniform(-1, 1, (CAPSULES, VOTES, 2))
  votes[0, :3] = points[:3] + rng.normal(0, 0.05, (3, 2))
  scale = rng.uniform(0.05, 0.5, (CAPSULES, VOTES))
  scale[0, 0] = 0.01
  presence = rng.uniform(0.05, 1, (CAPSULES, VOTES))
  presence[1, 1], presence[2, 2] = 0, 1
  return tuple(x.astype(np.float32) for x in (points, votes, scale, presence))


route = jax.jit(routing_points.route_points)
mass = jax.jit(routing_points.point_mass)
won = jax.jit(routing_points.points_won)


def test_against_scipy():
  arguments = random_inputs()
  log_prob, posterior = reference(*arguments)
  routing = route(*arguments)
  # Log densities at scale 0.01 reach 1e4 in size, known to 1e-3; they lose against any other.
  np.testing.assert_allclose(routing.log_prob, log_prob, rtol=2e-5, atol=1e-5)
  by_vote = posterior[:-1].reshape(CAPSULES, VOTES, POINTS)
  np.testing.assert_allclose(routing.posterior[:-1], by_vote.sum(axis=1), rtol=1e-4, atol=1e-6)
  np.testing.assert_allclose(routing.posterior[-1], posterior[-1], rtol=1e-4, atol=1e-6)
  winner = by_vote.sum(axis=1).argmax(axis=0)
  np.testing.assert_array_equal(routing.winner, winner)
  best = by_vote[winner, :, np.arange(POINTS)].argmax(axis=1)
  np.testing.assert_array_equal(routing.winning_vote, best)
  assert len(set(best)) > 1


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
  seed=st.integers(0, 1000),
  of_points=st.permutations(range(POINTS)),
  of_capsules=st.permutations(range(CAPSULES)),
  of_votes=st.permutations(range(VOTES)),
)
def test_order_means_nothing(seed, of_points, of_capsules, of_votes):
  """Points, capsules and the votes of a capsule can be permuted; a posterior sums to one."""
  of_points, of_capsules, of_votes = map(np.array, (of_points, of_capsules, of_votes))
  points, votes, scale, presence = random_inputs(seed)
  routing = route(points, votes, scale, presence)
  np.testing.assert_allclose(np.sum(routing.posterior, axis=0), 1, atol=1e-6)

  shuffled = (x[of_capsules][:, of_votes] for x in (votes, scale, presence))
  after = route(points[of_points], *shuffled)
  # Sums in another order.
  np.testing.assert_allclose(after.log_prob, routing.log_prob[of_points], rtol=1e-5, atol=1e-5)
  expected = np.asarray(routing.posterior)[:, of_points]
  np.testing.assert_allclose(after.posterior[:-1], expected[:-1][of_capsules], atol=1e-5)
  np.testing.assert_allclose(after.posterior[-1], expected[-1], atol=1e-5)
  np.testing.assert_array_equal(of_capsules[after.winner], routing.winner[of_points])
  np.testing.assert_array_equal(of_votes[after.winning_vote], routing.winning_vote[of_points])


def test_the_dummy_takes_points_that_nobody_explains():
  points, votes, scale, presence = random_inputs()
  points[1] = 50
  routing = route(points, votes, scale, presence)
  # The exponential of what is 0 but for rounding.
  np.testing.assert_allclose(routing.posterior[:, 1], [0, 0, 0, 1], atol=1e-6)
  expected = 2 * LOG_DUMMY - np.log(presence.sum() + 0.01)
  np.testing.assert_allclose(routing.log_prob[1], expected, rtol=1e-5)
  assert 0 <= routing.winner[1] < CAPSULES


def test_a_capsule_wins_by_all_its_votes_together():
  """Two fair votes of one capsule beat the single best one of another."""
  points = np.zeros((1, 2), np.float32)
  votes = np.full((2, 2, 2), 9, np.float32)
  votes[0, :] = [[0.5, 0], [0, 0.45]]
  votes[1, 0] = [0.4, 0]
  ones = np.ones((2, 2), np.float32)
  routing = route(points, votes, ones, ones)
  assert routing.winner[0] == 0
  assert routing.winning_vote[0] == 1
  single = np.exp([-0.125, -0.10125, -0.08]) / (2 * np.pi)
  expected = (single[0] + single[1]) / (single.sum() + 0.01 * 0.01)
  np.testing.assert_allclose(routing.posterior[0, 0], expected, rtol=1e-5)


def test_mixing_weights_are_normalised():
  """Twice the presence everywhere changes next to nothing, where the dummy's share is small."""
  points, votes, scale, presence = random_inputs()
  presence = np.clip(presence, 0.2, 0.5)
  once, twice = (route(points, votes, scale, factor * presence) for factor in (1, 2))
  np.testing.assert_allclose(once.log_prob, twice.log_prob, atol=0.01)


def hand_set_routing():
  posterior = jnp.array(
    [[0.5, 0.25, 0.0, 0.25], [0.25, 0.5, 0.125, 0.0], [0.25, 0.25, 0.875, 0.75]]
  )
  winner = jnp.array([0, 1, 1, 0])
  return routing_points.PointRouting(jnp.zeros(4), posterior, winner, jnp.array([2, 1, 1, 0]))


def test_mass_and_wins_count_present_points_by_hand():
  routing, presence = hand_set_routing(), jnp.array([1.0, 0.0, 1.0, 1.0])
  np.testing.assert_allclose(mass(routing, presence), [0.75 / 4, 0.375 / 4], rtol=1e-6)
  np.testing.assert_array_equal(won(routing, presence), [2, 1])
  np.testing.assert_array_equal(won(routing, jnp.zeros(4)), [0, 0])
  votes = routing_points.votes_won(routing, presence, 3)
  np.testing.assert_array_equal(votes, [[True, False, True], [False, True, False]])
  votes = routing_points.votes_won(routing, jnp.array([0.0, 1.0, 0.0, 1.0]), 3)
  np.testing.assert_array_equal(votes, [[True, False, False], [False, True, False]])


def test_wins_have_no_gradient():
  """Nor by the presence of points, which a count would be linear in."""
  gradient = jax.grad(lambda x: jnp.sum(won(hand_set_routing(), x)))(jnp.full(4, 0.5))
  np.testing.assert_array_equal(gradient, np.zeros(4))


EXTREMES = {
  "presence 0": (0.5, 1.0, 0.0),
  "presence 1": (0.5, 1.0, 1.0),
  "perfect votes at the floor": (0.0, 0.01, 1.0),
  "votes far away": (1e6, 0.01, 1.0),
  "everything off": (1e6, 0.01, 0.0),
  "wide": (1.0, 1e6, 1.0),
}


@jax.jit
def value_and_gradient(*arguments):
  def total(*arguments):
    routing = routing_points.route_points(*arguments)
    share = routing_points.point_mass(routing, jnp.ones(POINTS))
    wins = routing_points.points_won(routing, jnp.ones(POINTS))
    return jnp.sum(routing.log_prob) + jnp.sum(share) + jnp.sum(wins), routing

  return jax.value_and_grad(total, argnums=(0, 1, 2, 3), has_aux=True)(*arguments)


@pytest.mark.parametrize("case", EXTREMES)
def test_extremes_are_finite(case):
  distance, size, probability = EXTREMES[case]
  points, _, scale, _ = random_inputs()
  signs = np.random.RandomState(0).choice([-1.0, 1.0], (CAPSULES, VOTES, 2))
  votes = (points[0] + distance * signs).astype(np.float32)
  numbers = value_and_gradient(
    points, votes, np.full_like(scale, size), np.full_like(scale, probability)
  )
  for number in jax.tree.leaves(numbers):
    assert np.isfinite(number).all()


def test_gradients_against_differences():
  """One direction in all arguments at once; a Gaussian of float32 allows steps of 1e-2."""
  arguments = random_inputs(3)
  arguments = (*arguments[:2], np.maximum(arguments[2], 0.2), np.clip(arguments[3], 0.1, 0.9))
  rng = np.random.RandomState(1)
  direction = [rng.normal(0, 1, x.shape) for x in arguments]

  def value(step):
    moved = [x + step * d for x, d in zip(arguments, direction, strict=True)]
    log_prob, _ = reference(*moved)
    return log_prob.sum()

  expected = (value(1e-4) - value(-1e-4)) / 2e-4  # of the reference, in float64
  gradients = jax.jit(
    jax.grad(lambda *a: jnp.sum(routing_points.route_points(*a).log_prob), (0, 1, 2, 3))
  )(*arguments)
  actual = sum(float(np.sum(g * d)) for g, d in zip(gradients, direction, strict=True))
  np.testing.assert_allclose(actual, expected, rtol=1e-4)
