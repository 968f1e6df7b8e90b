"""Routing by vote mixture against a SciPy loop; dummy, winners, extremes."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scae_jax.routing import mixture
from tests.references import reference_routing

OBJECTS, PARTS = 3, 4


def random_inputs(seed=0):
  """Votes near the poses, presences that include 0 and 1, scales that include the floor."""
  rng = np.random.RandomState(seed)
  poses = rng.normal(0, 0.5, (PARTS, 6))
  votes = poses[None] + rng.normal(0, 0.3, (OBJECTS, PARTS, 6))
  scale = rng.uniform(0.1, 1, (OBJECTS, PARTS))
  scale[0, 0] = scale[1, 2] = 0.01
  presence = rng.uniform(0.05, 1, (OBJECTS, PARTS))
  presence[0, 1], presence[1, 1], presence[2, 3] = 0, 1, 1
  return tuple(x.astype(np.float32) for x in (poses, votes, scale, presence))


@functools.partial(jax.jit, static_argnames="normalize_mixing")
def route(*arguments, normalize_mixing=False):
  return mixture.route(*arguments, normalize_mixing=normalize_mixing)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000), normalize_mixing=st.booleans())
def test_against_scipy(seed, normalize_mixing):
  arguments = random_inputs(seed)
  log_prob, posterior = reference_routing(*arguments, normalize_mixing)
  actual = route(*arguments, normalize_mixing=normalize_mixing)
  # Densities at scale 0.01 are of size 1e4, known to 1e-3; they lose against any other.
  np.testing.assert_allclose(actual.log_prob, log_prob, rtol=2e-5, atol=1e-5)
  np.testing.assert_allclose(actual.posterior, posterior, rtol=1e-4, atol=1e-6)
  np.testing.assert_array_equal(actual.winner, np.argmax(posterior[:-1], axis=0))


def hand_set_routing():
  """Two objects, three parts: the first object, the second, and a dummy that beats both."""
  posterior = jnp.array([[0.5, 0.25, 0.0], [0.25, 0.5, 0.125], [0.25, 0.25, 0.875]])
  winner = jnp.argmax(posterior[:2], axis=0)
  return mixture.Routing(log_prob=jnp.zeros(3), posterior=posterior, winner=winner)


def test_winners_by_hand():
  votes = jnp.array([[[1.0], [2.0], [4.0]], [[10.0], [20.0], [40.0]]])
  dummy = jnp.array([[100.0], [200.0], [400.0]])
  routing = hand_set_routing()
  # Whole numbers and powers of two: nothing is rounded.
  np.testing.assert_array_equal(mixture.hard_winner(routing, votes), [[1], [20], [40]])
  # 1/2 + 10/4 + 100/4, 2/4 + 20/2 + 200/4, 40/8 + 400 7/8.
  np.testing.assert_array_equal(mixture.soft_winner(routing, votes, dummy), [[28], [60.5], [355]])
  np.testing.assert_allclose(mixture.posterior_mass(routing), [0.25, 0.875 / 3], rtol=1e-6)


EXTREMES = {
  "presence 0": (0.5, 1.0, 0.0),
  "presence 1": (0.5, 1.0, 1.0),
  "scale at its floor": (0.5, 0.01, 0.5),
  "perfect votes at the floor": (0.0, 0.01, 1.0),
  "votes far away": (1e6, 0.01, 1.0),
  "everything off": (1e6, 0.01, 0.0),
  "wide": (1.0, 1e6, 1.0),
}


@functools.partial(jax.jit, static_argnames="normalize_mixing")
def value_and_gradient(*arguments, normalize_mixing):
  def total(*arguments):
    routing = mixture.route(*arguments, normalize_mixing=normalize_mixing)
    mass = mixture.posterior_mass(routing)
    return jnp.sum(routing.log_prob) + jnp.sum(jnp.square(mass)), routing

  return jax.value_and_grad(total, argnums=(0, 1, 2, 3), has_aux=True)(*arguments)


@pytest.mark.parametrize("normalize_mixing", [False, True])
@pytest.mark.parametrize("case", EXTREMES)
def test_extremes_are_finite(case, normalize_mixing):
  distance, size, probability = EXTREMES[case]
  poses, _, scale, _ = random_inputs()
  signs = np.random.RandomState(0).choice([-1.0, 1.0], (OBJECTS, PARTS, 6))
  votes = (poses + distance * signs).astype(np.float32)
  scale = np.full_like(scale, size)
  presence = np.full_like(scale, probability)
  numbers = value_and_gradient(poses, votes, scale, presence, normalize_mixing=normalize_mixing)
  chex.assert_tree_all_finite(numbers)
