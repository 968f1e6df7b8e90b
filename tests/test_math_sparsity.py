"""Sparsity against NumPy and by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from scae_jax import sparsity

BATCH, CAPSULES = 5, 6
l2 = jax.jit(sparsity.l2, static_argnums=(1, 2))
entropy = jax.jit(sparsity.entropy)
kl = jax.jit(sparsity.kl)


@pytest.fixture(scope="module")
def activations():
  return np.random.RandomState(0).uniform(0.01, 1, (BATCH, CAPSULES)).astype(np.float32)


@pytest.mark.parametrize("constant", [None, 4.3])
def test_l2(activations, constant):
  target = CAPSULES / 3 if constant is None else constant
  within = np.mean([(sum(row) - target) ** 2 for row in activations])
  between = np.mean([(sum(column) - BATCH / 3) ** 2 for column in activations.T])
  actual = l2(activations, 3, constant)
  np.testing.assert_allclose(actual, [within, between], rtol=1e-5)  # sums of six in float32


def test_l2_by_hand():
  presence = np.array([[1, 0, 0, 1], [0, 1, 0, 0]], np.float32)
  # K / C = 2 against 2 and 1 active; B / C = 1 against 1, 1, 0, 1 uses. Means of two and four whole
  # numbers: nothing is rounded.
  np.testing.assert_array_equal(l2(presence, 2), [0.5, 0.25])
  np.testing.assert_array_equal(l2(presence, 2, 4.0), [6.5, 0.25])


def test_entropy(activations):
  within = np.mean([stats.entropy(row) for row in activations.astype(np.float64)])
  between = -stats.entropy(activations.astype(np.float64).sum(axis=0))
  actual = entropy(activations)
  np.testing.assert_allclose(actual, [within, between], rtol=1e-5)  # logarithms in float32


def test_entropy_of_the_ideals():
  """One capsule an example and all in turn is best: 0 within, -log k between. Size is nothing."""
  turns = np.eye(CAPSULES, dtype=np.float32)
  log_k = np.log(CAPSULES)
  # 1e-8 in a sum of 0.1 changes a logarithm by 1e-7.
  np.testing.assert_allclose(entropy(0.1 * turns), [0, -log_k], atol=1e-5)
  np.testing.assert_allclose(entropy(np.full_like(turns, 0.2)), [log_k, -log_k], atol=1e-5)
  np.testing.assert_allclose(entropy(turns[:1].repeat(CAPSULES, axis=0)), [0, 0], atol=1e-5)


def test_kl(activations):
  uniform = np.full(CAPSULES, 1 / CAPSULES)
  prob = (activations / activations.sum(axis=1, keepdims=True)).astype(np.float64)
  total = activations.astype(np.float64).sum(axis=0)
  within = -np.mean([stats.entropy(row, uniform) for row in prob])
  between = stats.entropy(total, uniform)
  # Differences of entropies of size 2, known to 1e-6.
  np.testing.assert_allclose(kl(activations), [within, between], atol=5e-6)


KINDS = {"l2": lambda a: sparsity.l2(a, 3), "entropy": sparsity.entropy, "kl": sparsity.kl}


@functools.partial(jax.jit, static_argnums=0)
def value_and_gradients(kind, activations):
  """Of (within, between), a gradient each."""
  return KINDS[kind](activations), jax.jacrev(lambda a: jnp.stack(KINDS[kind](a)))(activations)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-8, 1.0])
def test_extremes_are_finite(kind, size):
  activations = np.full((BATCH, CAPSULES), size, np.float32)
  activations[0] = activations[1, 2] = 0
  for number in jax.tree.leaves(value_and_gradients(kind, activations)):
    assert np.isfinite(number).all()
