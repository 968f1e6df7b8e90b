"""The over operator against a loop that paints, and the Sobel filter against SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scae_jax import compositing, filters
from tests.references import reference_edges, reference_over

LAYERS, SIDE, CHANNELS = 3, 4, 2
HEIGHT, WIDTH = 7, 9
normalized = jax.jit(filters.normalized_sobel)


@jax.jit
def paint(colours, alphas):
  """As the operator takes them: colours times their alphas."""
  return compositing.over(colours * alphas[..., None], alphas)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000))
def test_over_against_a_loop(seed):
  """Plain colours, and alphas of which about every third is exactly 0 or exactly 1."""
  rng = np.random.RandomState(seed)
  alphas = np.clip(rng.uniform(-0.25, 1.25, (LAYERS, SIDE, SIDE)), 0, 1)
  colours = rng.uniform(0, 1, (LAYERS, SIDE, SIDE, CHANNELS))
  assert {0.0, 1.0} <= set(alphas.ravel())
  actual = paint(colours.astype(np.float32), alphas.astype(np.float32))
  # Products of three numbers in [0, 1] in float32.
  np.testing.assert_allclose(actual, reference_over(colours, alphas), atol=1e-6)


def test_over_by_hand():
  """An opaque red layer; half of green over it; nothing of blue."""
  colours = jnp.eye(3).reshape(3, 1, 1, 3)
  alphas = jnp.array([1.0, 0.5, 0.0]).reshape(3, 1, 1)
  # Products and sums of 0, 1 and 1/2: nothing is rounded.
  np.testing.assert_array_equal(paint(colours, alphas)[0, 0], [0.5, 0.5, 0])
  visible = compositing.visibility(alphas)
  np.testing.assert_array_equal(visible[:, 0, 0], [0.5, 1, 1])
  np.testing.assert_array_equal(paint(colours[::-1], alphas[::-1])[0, 0], [1, 0, 0])


def test_edges():
  """As they are, and as the mean of colours, off the median and scaled to [0, 1]."""
  image = np.random.RandomState(0).uniform(0, 1, (HEIGHT, WIDTH, 3)).astype(np.float32)
  expected = reference_edges(image)
  # Eight products of numbers below 2.
  np.testing.assert_allclose(filters.sobel_edges(jnp.asarray(image)), expected, atol=2e-6)
  edges = expected.mean(axis=-1)
  edges = np.abs(edges - np.median(edges))
  actual = normalized(image)
  expected = (edges - edges.min()) / (edges.max() - edges.min())
  np.testing.assert_allclose(actual, expected, atol=2e-6)  # as the edges, over a range of 2
  # A number minus itself, and one over itself or times its rounded reciprocal.
  assert actual.min() == pytest.approx(0, abs=2e-7)
  assert actual.max() == pytest.approx(1, abs=2e-7)


@pytest.mark.parametrize("colour", [(0.0, 0.0, 0.0), (0.1, 0.1, 0.1), (0.1, 0.5, 0.33)])
def test_an_image_of_one_colour_has_no_edges(colour):
  """Rounding of 3 x 0.1 must not be taken for an edge and scaled up to 1."""
  image = np.broadcast_to(np.array(colour, np.float32), (HEIGHT, WIDTH, 3))
  np.testing.assert_array_equal(normalized(image), np.zeros_like(image))  # chosen, not computed
