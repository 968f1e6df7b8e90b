"""Sobel filter against SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scae_jax import filters
from tests.references import reference_edges

HEIGHT, WIDTH, CHANNELS = 7, 9, 3
normalized = jax.jit(filters.normalized_sobel)


@pytest.fixture(scope="module")
def image():
  return np.random.RandomState(0).uniform(0, 1, (HEIGHT, WIDTH, CHANNELS)).astype(np.float32)


def test_edges(image):
  edges = filters.sobel_edges(jnp.asarray(image))
  # Eight products of numbers below 2.
  np.testing.assert_allclose(edges, reference_edges(image), atol=2e-6)


def test_normalised(image):
  edges = reference_edges(image).mean(axis=-1)
  edges = np.abs(edges - np.median(edges))
  expected = (edges - edges.min()) / (edges.max() - edges.min())
  actual = normalized(image)
  np.testing.assert_allclose(actual, expected, atol=2e-6)  # as the edges, over a range of 2
  # A number minus itself, and one over itself or times its rounded reciprocal.
  assert actual.min() == pytest.approx(0, abs=2e-7)
  assert actual.max() == pytest.approx(1, abs=2e-7)


@pytest.mark.parametrize(
  "colour", [(0.0, 0.0, 0.0), (0.1, 0.1, 0.1), (0.1, 0.5, 0.33), (0.9, 0.7, 1.0)]
)
def test_an_image_of_one_colour_has_no_edges(colour):
  """Rounding of 3 x 0.1 must not be taken for an edge and scaled up to 1."""
  image = np.broadcast_to(np.array(colour, np.float32), (HEIGHT, WIDTH, CHANNELS))
  np.testing.assert_array_equal(normalized(image), np.zeros_like(image))  # chosen, not computed
