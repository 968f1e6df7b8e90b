"""Routing by agreement against a loop in NumPy, its properties, and its gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from scae_jax.routing.dynamic import route_by_agreement, squash

CHILDREN, PARENTS, SIZE = 7, 3, 4


def predictions(seed=0, scale=1.0):
  shape = (CHILDREN, PARENTS, SIZE)
  return (scale * np.random.RandomState(seed).normal(size=shape)).astype(np.float32)


@functools.partial(jax.jit, static_argnames=("iterations", "through_all"))
def route(given, iterations=3, through_all=True):
  return route_by_agreement(given, iterations=iterations, through_all=through_all)


def reference(given, iterations):
  """Procedure 1 of the paper, one child and parent after the other, in float64."""
  given = np.asarray(given, np.float64)
  children, num_parents, _ = given.shape
  logits = np.zeros((children, num_parents))
  history = []
  for _ in range(iterations):
    coupling = np.zeros_like(logits)
    for n in range(children):
      powers = np.exp(logits[n])
      coupling[n] = powers / powers.sum()
    parents = []
    for k in range(num_parents):
      s = sum(coupling[n, k] * given[n, k] for n in range(children))
      length = np.linalg.norm(s)
      parents.append(length**2 / (1 + length**2) * s / length)
    agreement = np.zeros_like(logits)
    for n in range(children):
      for k in range(num_parents):
        agreement[n, k] = np.dot(given[n, k], parents[k])
    logits = logits + agreement
    history.append((np.array(parents), coupling, agreement))
  return history


@pytest.mark.parametrize("iterations", [1, 3])
def test_against_a_loop(iterations):
  found, expected = route(predictions(), iterations), reference(predictions(), iterations)
  # Sums of a few float32 products.
  np.testing.assert_allclose(found.parents, expected[-1][0], rtol=1e-5, atol=1e-6)
  for i, (_, coupling, agreement) in enumerate(expected):
    np.testing.assert_allclose(found.coupling[i], coupling, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.agreement[i], agreement, rtol=1e-5, atol=1e-6)


def test_squash_by_hand():
  """Lengths 1/10, 1, 3 and 0 become 1/101, 1/2, 9/10 and 0."""
  vectors = jnp.array([[0.1, 0.0], [0.6, 0.8], [0.0, -3.0], [0.0, 0.0]])
  expected = [[1 / 101, 0], [0.3, 0.4], [0, -0.9], [0, 0]]
  np.testing.assert_allclose(squash(vectors), expected, rtol=1e-6)


@pytest.mark.parametrize("length", [0.0, 1e-20, 1e18])
def test_squash_of_extremes(length):
  """Its length is that of the formula, and its gradient finite: zero at zero."""
  vector = jnp.array([0.0, length])
  found = squash(vector)
  assert found[1] == pytest.approx(length**2 / (1 + length**2), rel=1e-6, abs=1e-7)
  jacobian = jax.jacobian(squash)(vector)
  assert np.isfinite(jacobian).all()
  if length == 0:
    np.testing.assert_array_equal(jacobian, 0)  # every product has a factor of 0


def test_coupling_is_shared_out_and_moves_to_those_that_agree():
  found = route(predictions())
  np.testing.assert_allclose(found.coupling.sum(axis=2), 1, rtol=1e-6)
  np.testing.assert_allclose(found.coupling[0], 1 / PARENTS, rtol=1e-6)
  assert (np.linalg.norm(found.parents, axis=1) < 1).all()
  # Six children say the same of parent 0 and contradict each other about the others.
  given = predictions(scale=0.1)
  given[:, 0] = [1.0, 0.0, 0.0, 0.0]
  found = route(given)
  assert (np.diff(found.coupling[:, :, 0], axis=0) > 0.05).all()


def test_order_of_children_means_nothing():
  order = np.random.RandomState(1).permutation(CHILDREN)
  before, after = route(predictions()), route(predictions()[order])
  np.testing.assert_allclose(after.parents, before.parents, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(after.coupling, before.coupling[:, order], rtol=1e-5)


def test_one_child_and_none_that_says_anything():
  only = np.zeros((1, PARENTS, SIZE), np.float32)
  found = route(only)
  np.testing.assert_array_equal(found.parents, 0)  # sums of zeros
  np.testing.assert_allclose(found.coupling, 1 / PARENTS, rtol=1e-6)
  gradient = jax.grad(lambda given: jnp.sum(route(given).parents))(jnp.asarray(only))
  assert np.isfinite(gradient).all()
  # One child, two iterations by hand: a half each, 0.2 of it; then exp(0.4) to exp(0).
  found = route_by_agreement(jnp.array([[[1.0], [0.0]]]), iterations=2, through_all=True)
  share = np.exp(0.2) / (np.exp(0.2) + 1)
  np.testing.assert_allclose(found.coupling[1, 0], [share, 1 - share], rtol=1e-6)
  assert found.parents[0, 0] == pytest.approx(share**2 / (1 + share**2))


def test_gradients_by_differences():
  def parents(given):
    return route(given).parents

  with jax.enable_x64(True):
    check_grads(parents, (jnp.asarray(predictions(), jnp.float64),), order=1, modes=["rev"])


def test_gradients_of_the_last_sum_alone():
  """Then they are those of a sum with a coupling that is given."""
  given = jnp.asarray(predictions())
  coupling = route(given).coupling[-1]

  def last(given):
    return jnp.sum(squash(jnp.einsum("nk,nkd->kd", coupling, given)) ** 2)

  def routed(given, through_all):
    return jnp.sum(route(given, through_all=through_all).parents ** 2)

  expected = jax.grad(last)(given)
  np.testing.assert_allclose(jax.grad(routed)(given, False), expected, rtol=1e-5, atol=1e-6)
  assert np.abs(jax.grad(routed)(given, True) - expected).max() > 0.01
  # Two programs of the same numbers.
  last, everything = route(given, through_all=False).parents, route(given).parents
  np.testing.assert_allclose(last, everything, rtol=1e-5, atol=1e-6)


def test_no_iterations():
  with pytest.raises(ValueError, match="at least 1 iteration, got 0"):
    route_by_agreement(jnp.asarray(predictions()), iterations=0, through_all=True)


def test_children_that_say_the_same_of_all_parents_stay_shared_evenly():
  """Nothing tells parents apart then, however often it is asked."""
  given = np.repeat(predictions()[:, :1], PARENTS, axis=1)
  found = route(given)
  np.testing.assert_allclose(found.coupling, 1 / PARENTS, rtol=1e-5)
  np.testing.assert_allclose(found.parents[1:], found.parents[:1].repeat(PARENTS - 1, 0), rtol=1e-5)
