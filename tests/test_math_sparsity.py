"""Sparsity against NumPy and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from scae_jax import sparsity

BATCH, CAPSULES = 5, 6


@pytest.fixture(scope="module")
def activations():
  return np.random.RandomState(0).uniform(0.01, 1, (BATCH, CAPSULES)).astype(np.float32)


@pytest.mark.parametrize("constant", [None, 4.3])
def test_l2(activations, constant):
  target = CAPSULES / 3 if constant is None else constant
  within = np.mean([(sum(row) - target) ** 2 for row in activations])
  between = np.mean([(sum(column) - BATCH / 3) ** 2 for column in activations.T])
  actual = sparsity.l2(jnp.asarray(activations), 3, constant)
  np.testing.assert_allclose(actual, [within, between], rtol=1e-5)  # sums of six in float32


def test_l2_by_hand():
  presence = jnp.array([[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0]])
  # K / C = 2 against 2 and 1 active; B / C = 1 against 1, 1, 0, 1 uses.
  np.testing.assert_array_equal(sparsity.l2(presence, 2), [0.5, 0.25])
  np.testing.assert_array_equal(sparsity.l2(presence, 2, 4.0), [6.5, 0.25])


def test_entropy(activations):
  within = np.mean([stats.entropy(row) for row in activations.astype(np.float64)])
  between = -stats.entropy(activations.astype(np.float64).sum(axis=0))
  actual = sparsity.entropy(jnp.asarray(activations))
  np.testing.assert_allclose(actual, [within, between], rtol=1e-5)  # logarithms in float32


def test_entropy_of_the_two_ideals():
  """One capsule an example and all in turn is best: 0 within, -log k between. Scale is nothing."""
  best = sparsity.entropy(0.1 * jnp.eye(CAPSULES))
  np.testing.assert_allclose(best, [0, -np.log(CAPSULES)], atol=1e-5)  # 1e-8 in the sum of 0.1
  even = sparsity.entropy(jnp.full((BATCH, CAPSULES), 0.2))
  np.testing.assert_allclose(even, [np.log(CAPSULES), -np.log(CAPSULES)], atol=1e-5)
  same = sparsity.entropy(jnp.eye(CAPSULES)[:1].repeat(BATCH, axis=0))
  np.testing.assert_allclose(same, [0, 0], atol=1e-5)


def test_kl(activations):
  uniform = np.full(CAPSULES, 1 / CAPSULES)
  prob = (activations / activations.sum(axis=1, keepdims=True)).astype(np.float64)
  total = activations.astype(np.float64).sum(axis=0)
  within = -np.mean([stats.entropy(row, uniform) for row in prob])
  between = stats.entropy(total, uniform)
  # Differences of entropies of size 2, known to 1e-6.
  np.testing.assert_allclose(sparsity.kl(jnp.asarray(activations)), [within, between], atol=5e-6)


def test_kl_has_the_gradient_of_entropy(activations):
  gradients = [
    jax.jacobian(lambda a, f=f: jnp.stack(f(a)))(jnp.asarray(activations))
    for f in (sparsity.kl, sparsity.entropy)
  ]
  np.testing.assert_array_equal(*gradients)
  assert np.abs(gradients[0]).max() > 0.01


KINDS = {
  "l2": lambda a: sparsity.l2(a, 3),
  "entropy": sparsity.entropy,
  "kl": sparsity.kl,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-8, 1.0])
def test_extremes_are_finite(kind, size):
  activations = size * jnp.ones((BATCH, CAPSULES)).at[0].set(0.0).at[1, 2].set(0.0)
  value, gradient = jax.value_and_grad(lambda a: sum(KINDS[kind](a)))(activations)
  assert np.isfinite(value)
  assert np.isfinite(gradient).all()
