"""Sparsity and margin losses against NumPy and by hand; the sparsity that a config chooses."""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from scae_jax.math import sparsity
from scae_jax.math.margins import margin_loss, spread_loss
from scae_jax.models.scae.ocae import CapsuleLoss
from tests.tiny import LOSS, MARGINS

BATCH, CAPSULES, CLASSES = 5, 6, 3
KINDS = {
  "l2": functools.partial(sparsity.l2, num_classes=CLASSES),
  "entropy": sparsity.entropy,
  "kl": sparsity.kl,
}
entropy = jax.jit(sparsity.entropy)


@pytest.fixture(scope="module")
def activations():
  return np.random.RandomState(0).uniform(0.01, 1, (BATCH, CAPSULES)).astype(np.float32)


@pytest.mark.parametrize("constant", [None, 4.3])
def test_l2(activations, constant):
  target = CAPSULES / CLASSES if constant is None else constant
  within = np.mean([(sum(row) - target) ** 2 for row in activations])
  between = np.mean([(sum(column) - BATCH / CLASSES) ** 2 for column in activations.T])
  actual = sparsity.l2(jnp.asarray(activations), CLASSES, constant)
  np.testing.assert_allclose(actual, [within, between], rtol=1e-5)  # sums of six in float32


def test_entropy_and_kl(activations):
  exact, uniform = activations.astype(np.float64), np.full(CAPSULES, 1 / CAPSULES)
  within = np.mean([stats.entropy(row) for row in exact])
  between = -stats.entropy(exact.sum(axis=0))
  # Logarithms in float32.
  np.testing.assert_allclose(entropy(activations), [within, between], rtol=1e-5)
  within = -np.mean([stats.entropy(row / row.sum(), uniform) for row in exact])
  between = stats.entropy(exact.sum(axis=0), uniform)
  # Differences of entropies of size 2, known to 1e-6.
  np.testing.assert_allclose(sparsity.kl(jnp.asarray(activations)), [within, between], atol=5e-6)


@functools.partial(jax.jit, static_argnums=(0, 2))
def between(kind, batches, views=1):
  """Mean of the `between` term over batches [n, b, k], plain and unbiased."""
  options = [{"unbiased": unbiased, "views": views} for unbiased in (False, True)]
  kinds = [functools.partial(KINDS[kind], **chosen) for chosen in options]
  return [jnp.mean(jax.vmap(loss)(batches).between) for loss in kinds]


def test_unbiased_l2_is_on_average_that_of_all_examples(activations):
  """Over all batches of two, with replacement, of five examples."""
  rows = np.stack(np.meshgrid(*[np.arange(BATCH)] * 2), axis=-1).reshape(-1, 2)
  plain, unbiased = between("l2", activations[rows])
  exact = activations.astype(np.float64)
  expected = np.mean((2 * exact.mean(axis=0) - 2 / CLASSES) ** 2)
  np.testing.assert_allclose(unbiased, expected, rtol=1e-5)  # squares of float32
  variance_of_sums = 2 * exact.var(axis=0)
  np.testing.assert_allclose(plain, expected + np.mean(variance_of_sums), rtol=1e-5)
  # Twice each, as two views that agree: their sum has four times the variance.
  plain, unbiased = between("l2", activations[rows.repeat(2, axis=1)], 2)
  expected = np.mean((4 * exact.mean(axis=0) - 4 / CLASSES) ** 2)
  np.testing.assert_allclose(unbiased, expected, rtol=1e-5)
  np.testing.assert_allclose(plain, expected + 4 * np.mean(variance_of_sums), rtol=1e-5)


def test_unbiased_entropy_is_nearly_that_of_all_examples(activations):
  """To second order: with batches of ten, a tenth of the bias may remain."""
  rows = np.random.RandomState(1).randint(0, BATCH, (4000, 10))
  plain, unbiased = between("entropy", activations[rows])
  expected = entropy(activations)[1]
  assert plain - expected > 1e-3
  assert abs(unbiased - expected) < 0.1 * (plain - expected)
  same, unbiased = between("entropy", activations[rows.repeat(2, axis=1)], 2)
  assert same == pytest.approx(float(plain), rel=1e-5)
  assert abs(unbiased - expected) < 0.1 * (plain - expected)


@jax.jit
def value_and_gradients(activations):
  """(within, between) of every kind, plain and unbiased, and their gradients."""

  def stacked(activations):
    kinds = itertools.product((KINDS["l2"], KINDS["entropy"]), (False, True))
    return jnp.stack([jnp.stack(kind(activations, unbiased=unbiased)) for kind, unbiased in kinds])

  return stacked(activations), jax.jacrev(stacked)(activations)


def test_view_divergence_is_of_neighbours(activations):
  pairs = [(activations[i], activations[i + 1]) for i in (0, 2)]
  expected = np.mean([stats.entropy(p, q) + stats.entropy(q, p) for p, q in pairs])
  diverge = jax.jit(sparsity.view_divergence)
  np.testing.assert_allclose(diverge(activations[:4]), expected, rtol=1e-4)  # shares of 1e-6 added
  # Of shares: what an image has in all makes no difference.
  scaled = activations[[0, 0, 1, 1]] * np.array([[1], [3], [1], [2]], np.float32)
  np.testing.assert_allclose(diverge(scaled), 0, atol=1e-6)
  nothing, all_of_one = np.zeros((2, 3), np.float32), np.eye(3, dtype=np.float32)[[0, 1]]
  for extreme in (nothing, all_of_one):
    chex.assert_tree_all_finite(jax.value_and_grad(sparsity.view_divergence)(extreme))


def test_shares_grow_apart_where_views_agree():
  first, noise = np.random.default_rng(0).normal(size=(2, 4_000, 16))
  for within, views, side in ((10, 30, -1), (10, 30, 1), (80, 24, -1), (80, 24, 1)):
    correlation = 1 - within / (4 * views) + 0.05 * side
    second = correlation * first + np.sqrt(1 - correlation**2) * noise
    mass = jnp.asarray(1 + 0.05 * np.stack((first, second), axis=1).reshape(-1, 16))
    gain = within * (np.log(16) - sparsity.entropy(mass).within)
    assert side * (gain - views * sparsity.view_divergence(mass)) > 0


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-8, 1.0])
def test_extremes_are_finite(size):
  activations = np.full((BATCH, CAPSULES), size, np.float32)
  activations[0] = activations[1, 2] = 0
  chex.assert_tree_all_finite(value_and_gradients(activations))
  # Of one example there is no bias: the unbiased value is the plain one.
  of_one, _ = value_and_gradients(activations[1:2])
  np.testing.assert_array_equal(of_one[0::2], of_one[1::2])


@pytest.mark.parametrize(
  ("prior", "posterior", "constant", "unbiased"),
  [("l2", "entropy", 0.0, False), ("kl", "entropy", 0.0, True), ("l2", "kl", 1.0, True)],
)
def test_capsule_loss_has_the_kinds_asked_for(prior, posterior, constant, unbiased, activations):
  """The constant is the target of the presences' l2; at 0 it is an even share of capsules."""
  presence, mass = jnp.asarray(activations), jnp.asarray(activations[::-1, ::-1] ** 2)
  options = {"prior": prior, "prior_within_constant": constant, "posterior": posterior}
  section = CapsuleLoss(**LOSS | options | {"unbiased_between": unbiased})
  expected = {}
  for name, kind, values in (("prior", prior, presence), ("posterior", posterior, mass)):
    loss = KINDS[kind](values, unbiased=unbiased)
    expected |= {f"{name}_within": float(loss.within), f"{name}_between": float(loss.between)}
  if constant:
    expected["prior_within"] = np.mean((activations.sum(axis=1) - constant) ** 2)
  terms = section.sparsity(presence, mass, CLASSES)
  assert terms == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("num_present", [0, 1, 2, CAPSULES])
def test_margin_losses_against_loops(num_present, activations):
  for lengths in activations:
    present = np.float32(np.arange(CAPSULES) < num_present)
    there, rest = lengths[:num_present], lengths[num_present:]
    margins = sum(max(0, 0.9 - x) ** 2 for x in there) + sum(max(0, x - 0.1) ** 2 / 2 for x in rest)
    loss = margin_loss(jnp.asarray(lengths), jnp.asarray(present), **MARGINS)
    assert float(loss) == pytest.approx(margins, rel=1e-5, abs=1e-7)
    spread = sum(max(0, 0.6 - (x - y)) ** 2 for x, y in itertools.product(there, rest))
    loss = spread_loss(jnp.asarray(lengths), jnp.asarray(present), jnp.float32(0.6))
    assert float(loss) == pytest.approx(spread, rel=1e-5)
