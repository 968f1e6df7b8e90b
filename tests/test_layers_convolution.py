"""Single convolutions and pooling against SciPy and loops."""

import jax
import numpy as np
import pytest
from scipy import signal

from scae_jax.layers.convolution import Convolution
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
