"""Single convolutions and pooling against SciPy and loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import signal

from scae_jax.layers.convolution import Convolution, average_pool, convolved_side
from tests.test_layers_convnet import normal, random_variables


@pytest.mark.parametrize(
  ("kernel", "stride", "padding", "bias"),
  [(3, 1, "valid", True), (4, 2, "valid", True), (5, 1, "same", True), (1, 1, "valid", False)],
)
def test_convolution_against_scipy(kernel, stride, padding, bias):
  layer, image = Convolution(3, kernel, stride, padding, bias), normal(2, 9, 8, 2)
  variables = random_variables(layer, image)
  assert ("bias" in variables["params"]) == bias
  weights = variables["params"]["kernel"]
  found = jax.jit(layer.apply)(variables, image)
  for b in range(2):
    for d in range(3):
      total = sum(
        signal.correlate2d(image[b, :, :, c], weights[:, :, c, d], mode=padding) for c in range(2)
      )
      total = total[::stride, ::stride] + (variables["params"]["bias"][d] if bias else 0)
      np.testing.assert_allclose(found[b, :, :, d], total, rtol=1e-4, atol=1e-4)


def test_convolved_side_is_that_of_the_layer():
  for side, kernel, stride in ((28, 9, 1), (20, 9, 2), (16, 3, 2), (5, 5, 1)):
    image = jax.ShapeDtypeStruct((1, side, side, 1), jnp.float32)
    layer = Convolution(1, kernel, stride)
    found, _ = jax.eval_shape(layer.init_with_output, jax.random.key(0), image)
    assert found.shape[1] == found.shape[2] == convolved_side(side, kernel, stride, "")


@pytest.mark.parametrize("shape", [(1, 4, 9, 1), (1, 9, 4, 1)])
def test_a_map_smaller_than_the_kernel_is_an_error(shape):
  image = jax.ShapeDtypeStruct(shape, jnp.float32)
  with pytest.raises(ValueError, match=r"kernel of 5x5.* is 4 wide.*config.data.canvas"):
    jax.eval_shape(Convolution(2, 5).init, jax.random.key(0), image)
  # Zeros around it leave something of any map.
  jax.eval_shape(Convolution(2, 5, padding="same").init, jax.random.key(0), image)


def test_even_kernels_have_no_middle():
  with pytest.raises(ValueError, match="odd kernel, got 4"):
    jax.eval_shape(Convolution(2, 4, padding="same").init, jax.random.key(0), normal(1, 8, 8, 1))


def test_average_pool_against_a_loop():
  """Of 7x5 pixels in squares of 2 the last row and column belong to none."""
  image = normal(2, 7, 5, 3)
  found = average_pool(image, 2)
  assert found.shape == (2, 3, 2, 3)
  for b, y, x, c in np.ndindex(2, 3, 2, 3):
    square = image[b, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2, c]
    assert found[b, y, x, c] == pytest.approx(float(np.mean(square)), rel=1e-5)
  np.testing.assert_array_equal(average_pool(image, 1), image)  # a mean of one number


def test_average_pool_of_less_than_a_square_is_an_error():
  with pytest.raises(ValueError, match=r"pooling over 3x3 pixels .* got 2x9"):
    average_pool(normal(1, 2, 9, 1), 3)
