"""Pixel mixtures and edges against SciPy, the over operator against a loop that paints."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import log_softmax, logsumexp

from scae_jax import compositing, filters, mixtures
from tests.references import reference_edges, reference_over

PARTS, HEIGHT, WIDTH, CHANNELS = 3, 6, 5, 2


def random_inputs(seed=0):
  """Arguments of `pixel_mixture`; one part is surely absent, one surely present."""
  rng = np.random.RandomState(seed)
  arguments = (
    rng.uniform(0, 1, (PARTS, HEIGHT, WIDTH, CHANNELS)),
    rng.normal(0, 2, (PARTS, HEIGHT, WIDTH)),
    np.array([1.0, 0.3, 0.0]),
    0.4,
    0.7,
    0.5,
  )
  return tuple(np.float32(a) for a in arguments)


IMAGE = np.random.RandomState(5).uniform(0, 1, (HEIGHT, WIDTH, CHANNELS)).astype(np.float32)
normalized = jax.jit(filters.normalized_sobel)


@jax.jit
def everything(arguments, image):
  mixture = mixtures.pixel_mixture(*arguments)
  return {
    "log_mixing": mixture.log_mixing,
    "log_prob": mixtures.log_prob(mixture, image),
    "mode": mixtures.mode(mixture),
  }


def reference(arguments, image):
  """Likelihood of an image in float64; a part with presence 0 is left out altogether."""
  mean, logits, presence, background, background_logit, scale = (
    np.asarray(a, np.float64) for a in arguments
  )
  there = presence > 0
  mean, logits = mean[there], logits[there] + np.log(presence[there])[:, None, None]
  height, width, channels = image.shape
  mean = np.concatenate([mean, np.full((1, height, width, channels), background)])
  logits = np.concatenate([logits, np.full((1, height, width), background_logit)])
  log_mixing = log_softmax(logits, axis=0)
  density = stats.norm.logpdf(np.asarray(image, np.float64)[None], mean, scale).sum(axis=-1)
  joint = log_mixing + density
  shown = np.where(log_mixing[..., None] == log_mixing.max(axis=0)[..., None], mean, -np.inf)
  return {"log_mixing": log_mixing, "log_prob": logsumexp(joint, axis=0), "mode": shown.max(axis=0)}


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000))
def test_mixture_against_scipy(seed):
  arguments = random_inputs(seed)
  actual, expected = everything(arguments, IMAGE), reference(arguments, IMAGE)
  present = np.array([0, 1, 3])  # the absent part is not in the reference
  for name, wanted in expected.items():
    got = np.asarray(actual[name])
    if got.shape[0] == PARTS + 1:
      got = got[present]
    # Numbers of size 10 at most, in float32.
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=2e-6, err_msg=name)


def test_safe_log():
  prob = jnp.array([0.0, 1e-30, 1e-16, 0.5, 1.0])
  value, pullback = jax.vjp(mixtures.safe_log, prob)
  (gradient,) = pullback(jnp.ones(5))
  np.testing.assert_allclose(value, [-36.841361, -36.841361, -36.841361, -0.693147, 0], atol=1e-5)
  np.testing.assert_allclose(gradient, [0, 0, 1e16, 2, 1], rtol=1e-5)


def test_inverse_softplus():
  values = np.array([1e-6, 0.3, 80, 100, 1e4])  # float32 has no exponential above 88.7
  found = mixtures.inverse_softplus(jnp.asarray(values, jnp.float32))
  np.testing.assert_allclose(found, values + np.log(-np.expm1(-values)), rtol=1e-5)
  np.testing.assert_allclose(jax.nn.softplus(found), values, rtol=1e-5)


@pytest.mark.parametrize("logit", [0.0, 1e30, -1e30])
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_extremes_of_mixtures_are_finite(logit, scale):
  arguments = list(random_inputs())
  arguments[1][0], arguments[1][1] = logit, -logit
  arguments[5] = np.float32(scale)
  chex.assert_tree_all_finite(value_and_gradient(tuple(arguments)))


@jax.jit
def value_and_gradient(arguments):
  def total(arguments):
    values = everything(arguments, IMAGE)
    return sum(jnp.sum(values[name]) for name in ("log_prob", "mode"))

  return everything(arguments, IMAGE), jax.grad(total)(arguments)


@jax.jit
def paint(colours, alphas):
  """As the operator takes them: colours times their alphas."""
  return compositing.over(colours * alphas[..., None], alphas)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000))
def test_over_against_a_loop(seed):
  """Plain colours, and alphas of which about every third is exactly 0 or exactly 1."""
  rng = np.random.RandomState(seed)
  alphas = np.clip(rng.uniform(-0.25, 1.25, (3, 4, 4)), 0, 1)
  colours = rng.uniform(0, 1, (3, 4, 4, 2))
  assert {0.0, 1.0} <= set(alphas.ravel())
  actual = paint(colours.astype(np.float32), alphas.astype(np.float32))
  # Products of three numbers in [0, 1] in float32.
  np.testing.assert_allclose(actual, reference_over(colours, alphas), atol=1e-6)


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
