"""Convolutions, ConvNet, poolings and MLPs against SciPy and NumPy."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from scae_jax.kernels import frequency_convolution, patch_convolutions
from scae_jax.layers import convnet
from scae_jax.layers.convnet import ConvNet, Convolution, convolve_layers
from scae_jax.layers.mlp import MLP, CapsuleMLP
from scae_jax.layers.pooling import Pooling
from scae_jax.training.hosts import make_mesh
from tests import tiny
from tests.references import correlate


def random_variables(module, *inputs):
  """For NumPy, and large enough that a ReLU cuts."""
  return jax.device_get(tiny.random_variables(module, *inputs, scale=0.5))


def normal(*shape, seed=1):
  return jnp.asarray(np.random.RandomState(seed).normal(0, 1, shape), jnp.float32)


def value_and_gradients(convolve, image, weights):
  """The convolution, and gradients of a sum that slopes differently at each number."""

  def total(image, weights):
    value = convolve(image, weights)
    return jnp.sum(value * jnp.cos(jnp.arange(value.size)).reshape(value.shape)), value

  return jax.jit(jax.grad(total, argnums=(0, 1), has_aux=True))(image, weights)


def test_convnet_against_scipy():
  """ReLU after each layer, the last too, and then a bias per position and channel."""
  net, image = ConvNet((3, 2), (1, 2)), normal(2, 9, 7, 2)
  variables = random_variables(net, image)
  params = variables["params"]
  x = np.asarray(image, np.float64)
  for i, stride in enumerate((1, 2)):
    x = np.maximum(correlate(x, params[f"kernel_{i}"], params[f"bias_{i}"], stride), 0)
  expected = x + params["position_bias"]
  actual = jax.jit(net.apply)(variables, image)
  np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)  # sums of 27 products
  assert np.min(actual) < 0


@pytest.mark.parametrize(
  ("batch", "at_a_time", "activation"), [(7, 7, "elu"), (12, 4, "relu"), (13, 1, "none")]
)
def test_patch_products_equal_the_convolution(batch, at_a_time, activation, monkeypatch):
  """The products over patches that CPUs run in blocks, and the convolutions of other devices."""
  image, strides = normal(batch, 13, 11, 2), (2, 1, 3)
  shapes = ((3, 3, 2, 4), (3, 2, 4, 5), (1, 3, 5, 3))
  weights = tuple(
    (normal(*shape, seed=2 + i), normal(shape[-1], seed=9 + i)) for i, shape in enumerate(shapes)
  )
  if batch > at_a_time:
    # The first layer has the largest patches: 3 * 3 * 2 at 6x5 positions. One more example would
    # fit, but then blocks would not divide the batch.
    monkeypatch.setattr(patch_convolutions, "MAX_NUMBERS", 6 * 5 * 18 * (at_a_time + 1))
  assert patch_convolutions.examples_at_a_time(image, weights, strides) == at_a_time
  results = (
    value_and_gradients(lambda x, w, form=form: form(x, w, strides, activation), image, weights)
    for form in (patch_convolutions.convolve_patches, convolve_layers)
  )
  # Sums of up to 24 products in three layers; of weights, over all examples and positions.
  chex.assert_trees_all_close(*results, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
  ("sides", "taps", "stride"), [((9, 12), (3, 4), 1), ((12, 9), (5, 4), 2), ((11, 10), (2, 1), 3)]
)
def test_products_of_frequencies_are_the_convolution(sides, taps, stride, monkeypatch):
  """Even and odd periods, taps that the stride does not divide, and columns that no tap sees."""
  monkeypatch.setattr(frequency_convolution, "is_faster", lambda *arguments: True)
  monkeypatch.setattr(convnet, "convolve_patches", None)
  image, weights = normal(3, *sides, 2), ((normal(*taps, 2, 4, seed=2), normal(4, seed=3)),)
  results = (
    value_and_gradients(lambda x, w, form=form: form(x, w, (stride,), "elu"), image, weights)
    for form in (convnet.convolve, convolve_layers)
  )
  chex.assert_trees_all_close(*results, rtol=1e-4, atol=1e-4)


def test_a_large_kernel_is_multiplied_by_frequency():
  """CapsNet's primary capsules, unless the batch is small; a third of the multiplications."""
  kernel, image = normal(9, 9, 256, 256), jax.ShapeDtypeStruct((128, 20, 20, 256), jnp.float32)
  assert frequency_convolution.is_faster(image, kernel, 2)
  assert not frequency_convolution.is_faster(image.update(shape=(1, 20, 20, 256)), kernel, 2)
  arguments = {"params": {"kernel": kernel, "bias": kernel[0, 0, 0]}}, image
  text = jax.jit(Convolution(256, 9, 2).apply).lower(*arguments)
  count = frequency_convolution.num_products((10, 10))
  assert re.search(rf"dot_general .* -> tensor<{count}x128x256xf32>", text.as_text())


def test_gradients_of_weights_are_sums_over_the_devices():
  """Four devices, two of eight images each, outside of a training step."""
  mesh, image = make_mesh(), normal(8, 9, 7, 2)
  assert mesh.size == 4
  weights = ((normal(3, 3, 2, 4, seed=2), normal(4, seed=3)),)

  def loss(convolve, image, weights):
    return jnp.sum(jnp.sin(convolve(image, weights, (2,), "relu")))

  def spread(image, weights):
    image = jax.lax.with_sharding_constraint(image, NamedSharding(mesh, PartitionSpec("data")))
    return loss(patch_convolutions.convolve_patches, image, weights)

  gradients = jax.jit(jax.grad(spread, argnums=(0, 1)))(image, weights)
  expected = jax.grad(loss, argnums=(1, 2))(convolve_layers, image, weights)
  chex.assert_trees_all_close(gradients, expected, rtol=1e-4, atol=1e-4)  # sums of 96 numbers


@pytest.mark.parametrize(
  ("kernel", "stride", "padding", "bias"),
  [(3, 1, "valid", True), (4, 2, "valid", True), (5, 1, "same", True), (1, 1, "valid", False)],
)
def test_convolution_against_scipy(kernel, stride, padding, bias):
  layer, image = Convolution(3, kernel, stride, padding, bias), normal(2, 9, 8, 2)
  variables = random_variables(layer, image)
  params = variables["params"]
  assert ("bias" in params) == bias
  actual = jax.jit(layer.apply)(variables, image)
  expected = correlate(image, params["kernel"], params.get("bias", 0), stride, padding)
  np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_attention_pooling_is_a_softmax_over_positions():
  pooling, x = Pooling("attention", num_capsules=2, features=3), normal(2, 3, 4, 5)
  variables = random_variables(pooling, x)
  dense = variables["params"]["conv_1x1"]
  numbers = np.asarray(x).reshape(2, 12, 5) @ dense["kernel"] + dense["bias"]
  values, logits = np.split(numbers.reshape(2, 12, 2, 4), [3], axis=-1)
  expected = (np.exp(logits) * values).sum(axis=1) / np.exp(logits).sum(axis=1)
  actual = jax.jit(pooling.apply)(variables, x)
  np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)  # float32 sums of 12


@pytest.mark.parametrize(
  ("pooling", "layer", "read"),
  [
    ("mean", "conv_1x1", lambda x: x.mean(axis=(1, 2))),
    ("linear", "linear", lambda x: x.reshape(2, 60)),
  ],
)
def test_pooling_by_one_dense_layer(pooling, layer, read):
  """Of the mean over positions, or of all of them."""
  module, x = Pooling(pooling, num_capsules=2, features=3), normal(2, 3, 4, 5)
  variables = random_variables(module, x)
  dense = variables["params"][layer]
  expected = (read(np.asarray(x)) @ dense["kernel"] + dense["bias"]).reshape(2, 2, 3)
  np.testing.assert_allclose(module.apply(variables, x), expected, rtol=1e-4, atol=1e-5)


def test_capsules_have_an_mlp_each():
  capsules, x = CapsuleMLP((4, 3), last_bias=False), normal(2, 3, 5)
  variables = random_variables(capsules, x)
  params = variables["params"]["capsules"]
  actual = capsules.apply(variables, x)
  for k in range(3):
    capsule_params = {"params": jax.tree.map(lambda p, k=k: p[k], params)}
    expected = MLP((4, 3), last_bias=False).apply(capsule_params, x[:, k])
    np.testing.assert_allclose(actual[:, k], expected, rtol=1e-5, atol=1e-6)  # batched products


def test_capsules_start_different():
  x = normal(1, 3, 5)
  params = jax.jit(CapsuleMLP((4,)).init)(jax.random.key(0), x)["params"]["capsules"]
  kernel = np.asarray(params["dense_0"]["kernel"])
  assert np.abs(kernel[0] - kernel[1]).min() > 0
