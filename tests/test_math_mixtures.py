"""Pixel mixtures against SciPy in float64, hand-set values, extremes."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import log_softmax, logsumexp

from scae_jax import mixtures

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
def test_against_scipy(seed):
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


@pytest.mark.parametrize("logit", [0.0, 1e30, -1e30])
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_extremes_are_finite(logit, scale):
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
