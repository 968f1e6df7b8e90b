"""Routing by vote mixture, of parts and of points without order: against SciPy loops, extremes."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scae_jax.math.routing import mixture
from scae_jax.math.routing import points as routing_points
from tests.references import reference_points, reference_routing

OBJECTS, PARTS = 3, 4
CAPSULES, VOTES, POINTS = 3, 4, 6


def random_parts(seed=0):
  """Votes near the poses, except for a part that no object explains.

  Presences include 0 and 1, scales the floor.
  """
  rng = np.random.RandomState(seed)
  poses = rng.normal(0, 0.5, (PARTS, 6))
  votes = poses[None] + rng.normal(0, 0.3, (OBJECTS, PARTS, 6))
  votes[:, -1] += 2
  scale = rng.uniform(0.1, 1, (OBJECTS, PARTS))
  scale[0, 0] = scale[1, 2] = 0.01
  presence = rng.uniform(0.05, 1, (OBJECTS, PARTS))
  presence[0, 1], presence[1, 1], presence[2, 3] = 0, 1, 1
  return tuple(x.astype(np.float32) for x in (poses, votes, scale, presence))


def random_points(seed=0):
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


route = jax.jit(mixture.route, static_argnames="normalize_mixing")
route_points = jax.jit(routing_points.route_points)


def assert_routed(actual, log_prob, posterior):
  # Log densities at scale 0.01 are of size 1e4, known to 1e-3; they lose against any other.
  np.testing.assert_allclose(actual.log_prob, log_prob, rtol=2e-5, atol=1e-5)
  np.testing.assert_allclose(actual.posterior, posterior, rtol=1e-4, atol=1e-6)
  np.testing.assert_array_equal(actual.winner, np.argmax(posterior[:-1], axis=0))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000), normalize_mixing=st.booleans())
def test_parts_against_scipy(seed, normalize_mixing):
  arguments = random_parts(seed)
  actual = route(*arguments, normalize_mixing=normalize_mixing)
  assert_routed(actual, *reference_routing(*arguments, normalize_mixing))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000))
def test_points_against_scipy(seed):
  """A capsule has the posterior of all its votes; the dummy is the last."""
  arguments = random_points(seed)
  actual = route_points(*arguments)
  log_prob, posterior = reference_points(*arguments)
  by_vote = posterior[:-1].reshape(CAPSULES, VOTES, POINTS)
  assert_routed(actual, log_prob, np.concatenate([by_vote.sum(axis=1), posterior[-1:]]))
  best = by_vote[actual.winner, :, np.arange(POINTS)].argmax(axis=1)
  np.testing.assert_array_equal(actual.winning_vote, best)


def of_parts(*arguments, normalize_mixing):
  routing = mixture.route(*arguments, normalize_mixing=normalize_mixing)
  mass = mixture.posterior_mass(routing)
  return jnp.sum(routing.log_prob) + jnp.sum(jnp.square(mass)), routing


def of_points(*arguments):
  routing = routing_points.route_points(*arguments)
  share = routing_points.point_mass(routing, jnp.ones(POINTS))
  wins = routing_points.points_won(routing, jnp.ones(POINTS))
  return jnp.sum(routing.log_prob) + jnp.sum(share) + jnp.sum(wins), routing


KINDS = {
  "parts": (functools.partial(of_parts, normalize_mixing=False), random_parts()),
  "parts, normalised": (functools.partial(of_parts, normalize_mixing=True), random_parts()),
  "points": (of_points, random_points()),
}
# Distance of the votes, their scale and their presence.
EXTREMES = {
  "presence 0": (0.5, 1.0, 0.0),
  "presence 1": (0.5, 1.0, 1.0),
  "scale at its floor": (0.5, 0.01, 0.5),
  "perfect votes at the floor": (0.0, 0.01, 1.0),
  "votes far away": (1e6, 0.01, 1.0),
  "everything off": (1e6, 0.01, 0.0),
  "wide": (1.0, 1e6, 1.0),
}


@functools.cache
def value_and_gradient(kind):
  return jax.jit(jax.value_and_grad(KINDS[kind][0], argnums=(0, 1, 2, 3), has_aux=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", EXTREMES)
def test_extremes_are_finite(case, kind):
  distance, size, probability = EXTREMES[case]
  poses, votes, scale, _ = KINDS[kind][1]
  about = poses[0] if kind == "points" else poses
  votes = about + distance * np.random.RandomState(0).choice(np.float32([-1, 1]), votes.shape)
  like = (np.full_like(scale, number) for number in (size, probability))
  chex.assert_tree_all_finite(value_and_gradient(kind)(poses, np.float32(votes), *like))
