"""The over operator against a loop that paints one layer after the other."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scae_jax import compositing
from tests.references import reference_over

LAYERS, SIDE, CHANNELS = 3, 4, 2


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
