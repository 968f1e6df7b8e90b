"""The over operator against a loop that paints one layer after the other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

from scae_jax import compositing

LAYERS, SIDE, CHANNELS = 3, 4, 2


def reference_over(colours, alphas):
  """The seed, section 2.1: each layer is drawn on top of what is there, from black on."""
  picture = np.zeros(colours.shape[1:])
  for colour, alpha in zip(colours, alphas, strict=True):
    picture = colour * alpha[..., None] + picture * (1 - alpha[..., None])
  return picture


def layers(seed=0):
  """Plain colours, and alphas of which about every third is exactly 0 or exactly 1."""
  rng = np.random.RandomState(seed)
  alphas = np.clip(rng.uniform(-0.25, 1.25, (LAYERS, SIDE, SIDE)), 0, 1)
  return rng.uniform(0, 1, (LAYERS, SIDE, SIDE, CHANNELS)), alphas


@jax.jit
def paint(colours, alphas):
  """As the operator takes them: colours times their alphas."""
  return compositing.over(colours * alphas[..., None], alphas)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000))
def test_against_a_loop(seed):
  colours, alphas = layers(seed)
  assert {0.0, 1.0} <= set(alphas.ravel())
  actual = paint(colours.astype(np.float32), alphas.astype(np.float32))
  # Products of three numbers in [0, 1] in float32.
  np.testing.assert_allclose(actual, reference_over(colours, alphas), atol=1e-6)


def test_by_hand():
  """An opaque red layer; half of green over it; nothing of blue."""
  colours = jnp.eye(3).reshape(3, 1, 1, 3)
  alphas = jnp.array([1.0, 0.5, 0.0]).reshape(3, 1, 1)
  # Products and sums of 0, 1 and 1/2: nothing is rounded.
  np.testing.assert_array_equal(paint(colours, alphas)[0, 0], [0.5, 0.5, 0])
  visible = compositing.visibility(alphas)
  np.testing.assert_array_equal(visible[:, 0, 0], [0.5, 1, 1])
  np.testing.assert_array_equal(paint(colours[::-1], alphas[::-1])[0, 0], [1, 0, 0])


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_gradients_where_all_layers_are_off_or_opaque(value):
  """By the derivative of the loop, in which the layers above hide and those below shine through."""
  colours, alphas = layers()
  alphas = np.full_like(alphas, value)
  if value == 0:
    assert not paint(colours, alphas).any()
  actual = jax.grad(lambda c, a: jnp.sum(paint(c, a)), argnums=(0, 1))(
    jnp.asarray(colours, jnp.float32), jnp.asarray(alphas, jnp.float32)
  )
  shine = colours.sum(axis=-1)
  # Off: every alpha adds its own colour. Opaque: only the last is seen, in place of the one below.
  off = shine
  opaque = np.stack([np.zeros((SIDE, SIDE)), np.zeros((SIDE, SIDE)), shine[2] - shine[1]])
  # Sums of two colours in float32.
  np.testing.assert_allclose(actual[1], off if value == 0 else opaque, atol=1e-6)
  expected = np.zeros_like(colours)
  expected[2] = value  # a product of zeros and ones
  np.testing.assert_array_equal(actual[0], expected)


def test_gradients_by_differences():
  """Also where some alphas are 0 and 1: the picture is a polynomial of them."""
  with jax.enable_x64(True):
    # As in test_math_gradients.py.
    check_grads(paint, tuple(jnp.asarray(x) for x in layers()), 1, ["rev"], 1e-6, 1e-6, 1e-6)
