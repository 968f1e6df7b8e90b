"""Routing of points without order: against a SciPy loop, symmetries, winners, extremes."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scae_jax.routing import points as routing_points
from tests.references import reference_points

CAPSULES, VOTES, POINTS = 3, 4, 6
LOG_DUMMY = np.log(0.01)


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


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000))
def test_against_scipy(seed):
  arguments = random_inputs(seed)
  log_prob, posterior = reference_points(*arguments)
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


def hand_set_routing():
  posterior = jnp.array(
    [[0.5, 0.25, 0.0, 0.25], [0.25, 0.5, 0.125, 0.0], [0.25, 0.25, 0.875, 0.75]]
  )
  winner = jnp.array([0, 1, 1, 0])
  return routing_points.PointRouting(jnp.zeros(4), posterior, winner, jnp.array([2, 1, 1, 0]))


def test_mass_and_wins_count_present_points_and_wins_have_no_gradient():
  routing, presence = hand_set_routing(), jnp.array([1.0, 0.0, 1.0, 1.0])
  np.testing.assert_allclose(mass(routing, presence), [0.75 / 4, 0.375 / 4], rtol=1e-6)
  np.testing.assert_array_equal(won(routing, presence), [2, 1])
  np.testing.assert_array_equal(won(routing, jnp.zeros(4)), [0, 0])
  votes = routing_points.votes_won(routing, presence, 3)
  np.testing.assert_array_equal(votes, [[True, False, True], [False, True, False]])
  votes = routing_points.votes_won(routing, jnp.array([0.0, 1.0, 0.0, 1.0]), 3)
  np.testing.assert_array_equal(votes, [[True, False, False], [False, True, False]])
  # Nor by the presence of points, which a count would be linear in.
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
  chex.assert_tree_all_finite(numbers)
