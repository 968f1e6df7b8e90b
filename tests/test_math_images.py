"""Extremes of pixel mixtures, and edges against SciPy.

Mixtures against NumPy: test_models_parts.py and test_models_scae.py; the over operator:
test_models_probabilistic.py.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scae_jax.math import filters, mixtures
from tests.references import reference_edges

HEIGHT, WIDTH, CHANNELS = 6, 5, 2
IMAGE = np.random.RandomState(5).uniform(0, 1, (HEIGHT, WIDTH, CHANNELS)).astype(np.float32)
normalized = jax.jit(filters.normalized_sobel)


def test_safe_log():
  prob = jnp.array([0.0, 1e-30, 1e-16, 0.5, 1.0])
  value, pullback = jax.vjp(mixtures.safe_log, prob)
  (gradient,) = pullback(jnp.ones(5))
  np.testing.assert_allclose(value, [-36.841361, -36.841361, -36.841361, -0.693147, 0], atol=1e-5)
  np.testing.assert_allclose(gradient, [0, 0, 1e16, 2, 1], rtol=1e-5)


@jax.jit
def value_and_gradient(*arguments):
  def total(*arguments):
    mixture = mixtures.pixel_mixture(*arguments)
    values = mixtures.log_prob(mixture, jnp.asarray(IMAGE)), mixtures.mode(mixture)
    return sum(map(jnp.sum, values)), (mixture, values)

  return jax.value_and_grad(total, argnums=tuple(range(6)), has_aux=True)(*arguments)


@pytest.mark.parametrize("logit", [0.0, 1e30, -1e30])
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_extremes_of_mixtures_are_finite(logit, scale):
  """One part is surely absent, one surely present."""
  rng = np.random.RandomState(0)
  mean = rng.uniform(0, 1, (3, HEIGHT, WIDTH, CHANNELS))
  logits = rng.normal(0, 2, (3, HEIGHT, WIDTH))
  logits[0], logits[1] = logit, -logit
  arguments = (mean, logits, np.array([1.0, 0.3, 0.0]), 0.4, 0.7, scale)
  chex.assert_tree_all_finite(value_and_gradient(*map(np.float32, arguments)))


def test_edges():
  """As they are, and as the mean of colours, off the median and scaled to [0, 1]."""
  image = np.random.RandomState(0).uniform(0, 1, (7, 9, 3)).astype(np.float32)
  expected = reference_edges(image)
  # Eight products of numbers below 2.
  np.testing.assert_allclose(filters.sobel_edges(jnp.asarray(image)), expected, atol=2e-6)
  edges = expected.mean(axis=-1)
  edges = np.abs(edges - np.median(edges))
  expected = (edges - edges.min()) / (edges.max() - edges.min())
  np.testing.assert_allclose(normalized(image), expected, atol=2e-6)  # as the edges, over 2


@pytest.mark.parametrize("colour", [(0.0, 0.0, 0.0), (0.1, 0.1, 0.1), (0.1, 0.5, 0.33)])
def test_an_image_of_one_colour_has_no_edges(colour):
  """Rounding of 3 x 0.1 must not be taken for an edge and scaled up to 1."""
  image = np.broadcast_to(np.array(colour, np.float32), (7, 9, 3))
  np.testing.assert_array_equal(normalized(image), np.zeros_like(image))  # chosen, not computed
