"""Selection against a loop over all choices, its posterior and extremes; what is drawn from it."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from scae_jax.math.routing import selection
from scae_jax.math.routing.selection import Capsules, Relations
from tests.references import (
  IDENTITY,
  in_float64,
  reference_choices,
  reference_concrete,
  reference_selection,
)

PARENTS, CHILDREN, DRAWS = 2, 3, 20_000


def random_layers(seed=0, dtype=jnp.float32):
  """Children about where parents have them, parents, and relations; some of all are off."""
  rng = np.random.RandomState(seed)
  parents = Capsules(rng.normal(0, 2, PARENTS), IDENTITY + rng.normal(0, 0.4, (PARENTS, 2, 3)))
  relations = Relations(
    affinity_logits=rng.normal(0, 1, (PARENTS, CHILDREN)),
    dummy_logit=np.log(0.2),
    presence_logits=rng.normal(0, 2, (PARENTS + 1, CHILDREN)),
    offsets=rng.normal(0, 0.4, (PARENTS, CHILDREN, 2, 3)),
    scales=rng.uniform(0.3, 1, (PARENTS, CHILDREN, 6)),
    broad_scale=1.2,
    temperature=0.6,
  )
  poses = IDENTITY + rng.normal(0, 0.6, (CHILDREN, 2, 3))
  children = Capsules(rng.normal(0, 3, CHILDREN), poses)
  return jax.tree.map(lambda x: jnp.asarray(x, dtype), (children, parents, relations))


select = jax.jit(selection.select)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000), off=st.sampled_from([None, (-3.0, 4.0, 0.5)]))
def test_sum_over_choices_is_the_sum_over_all_assignments(seed, off):
  layers = random_layers(seed)
  log_prob, posterior = reference_selection(*in_float64(layers), off)
  actual = select(*layers, None if off is None else jnp.array(off))
  # Log densities of size 30, sums of some twenty numbers, in float32.
  np.testing.assert_allclose(actual.log_prob.sum(), log_prob, rtol=1e-6, atol=1e-5)
  np.testing.assert_allclose(actual.posterior, posterior, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.3, 2.0])
def test_concrete_density(temperature):
  values, logits = (x.ravel() for x in np.meshgrid(np.linspace(-6, 6, 13), [-4.0, 0.0, 1.5]))
  arguments = tuple(map(jnp.float32, (values, logits, temperature)))
  actual = jax.jit(selection.relaxed_bernoulli_log_prob)(*arguments)
  expected = reference_concrete(*in_float64(arguments))
  np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


OFF, ON = -1e4, 1e4
# Presence logits of parents and children, distance of the children, size of the parents' matrices
# and scale of all predictions.
EXTREMES = {
  "all off": (OFF, OFF, 0.0, 1.0, 0.1),
  "all on": (ON, ON, 0.0, 1.0, 0.1),
  "children without parents": (OFF, ON, 0.0, 1.0, 0.1),
  "parents without children": (ON, OFF, 0.0, 1.0, 0.1),
  "far away": (ON, ON, 1e6, 1.0, 1e-3),
  "far away and off": (OFF, OFF, 1e6, 1.0, 1e-3),
  "perfect at a low floor": (ON, ON, 0.0, 0.0, 1e-4),
  "parents without size": (0.0, 0.0, 0.3, 0.0, 0.1),
  "huge parents": (0.0, 0.0, 0.3, 1e6, 0.1),
}


@jax.jit
def value_and_gradients(children, parents, relations):
  def total(*arguments):
    choice = selection.select(*arguments)
    count = selection.expected_children(choice, arguments[0])
    return jnp.sum(choice.log_prob) + jnp.sum(jnp.square(count)), choice

  return jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True)(children, parents, relations)


@pytest.mark.parametrize("case", EXTREMES)
def test_extremes_are_finite(case):
  above, below, distance, size, scale = EXTREMES[case]
  children, parents, relations = random_layers()
  children = Capsules(jnp.full(CHILDREN, below), children.poses + distance)
  parents = Capsules(jnp.full(PARENTS, above), size * parents.poses)
  extreme = {
    "scales": jnp.full_like(relations.scales, scale),
    "presence_logits": jnp.full_like(relations.presence_logits, -below),
  }
  # What is surest is taken for impossible, and what is not.
  for changes in (extreme, {"scales": extreme["scales"]}):
    relations = dataclasses.replace(relations, **changes)
    chex.assert_tree_all_finite(value_and_gradients(children, parents, relations))


def close_to_probability(frequency, probability, count=DRAWS):
  """Within five standard deviations, which one of two million tests exceeds."""
  deviation = np.sqrt(probability * (1 - probability) / count)
  np.testing.assert_array_less(np.abs(frequency - probability), 5 * deviation + 1e-9)


def normal_about(poses, mean, scale):
  """The mean and deviation of poses [n, 2, 3], within five standard errors of each."""
  standard = np.reshape(poses - mean, (-1, 6)) / scale
  np.testing.assert_allclose(standard.mean(axis=0), 0, atol=5 / np.sqrt(len(poses)))
  np.testing.assert_allclose(standard.std(axis=0), 1, atol=5 / np.sqrt(2 * len(poses)))


@pytest.fixture(scope="module")
def drawn():
  """Parents, relations, and many draws of children and choices."""
  _, parents, relations = random_layers()
  sample = jax.jit(jax.vmap(selection.sample_children, in_axes=(0, None, None)))
  keys = jax.random.split(jax.random.key(0), DRAWS)
  children, choices = jax.device_get(sample(keys, parents, relations))
  return in_float64(parents), in_float64(relations), children, choices


def test_children_choose_by_probability(drawn):
  parents, relations, _, choices = drawn
  probability = np.exp(reference_choices(parents, relations))
  for parent in range(PARENTS + 1):
    close_to_probability(np.mean(choices == parent, axis=0), probability[parent])


def test_children_are_drawn_apart(drawn):
  """Choices and poses of different children are independent."""
  _, _, children, choices = drawn
  first, second = choices[:, 0] == 0, choices[:, 1] == 0
  close_to_probability(np.mean(first & second), first.mean() * second.mean())
  correlation = np.corrcoef(children.poses.reshape(DRAWS, -1).T)
  for child in range(CHILDREN):  # the six numbers of one share its choice
    block = slice(6 * child, 6 * child + 6)
    correlation[block, block] = 0
  assert np.abs(correlation).max() < 5 / np.sqrt(DRAWS)


def test_roots():
  logits = jnp.array([-1.0, 2.0])
  sample = functools.partial(selection.sample_roots, presence_logits=logits, scale=jnp.float32(0.3))
  roots = jax.jit(jax.vmap(sample))(jax.random.split(jax.random.key(0), DRAWS))
  on = np.asarray(roots.presence_logits) > 0
  close_to_probability(on.mean(axis=0), expit(np.asarray(logits)))
  for root in range(2):
    normal_about(np.asarray(roots.poses)[:, root], IDENTITY, 0.3)
  # Where one is on, the pose is no other than where it is off.
  normal_about(np.asarray(roots.poses)[~on[:, 1], 1], IDENTITY, 0.3)
