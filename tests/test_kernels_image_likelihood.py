"""The image likelihood, one example at a time, equals the documented composition."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import NamedSharding, PartitionSpec

from scae_jax.math import mixtures, warping
from scae_jax.models.scae.pcae import PartDecoder
from scae_jax.training.hosts import make_mesh
from tests.references import random_pose
from tests.tiny import MODEL, random_variables

PARTS, CANVAS, FEATURES = 3, 9, 4


def draw_with_features(decoder, poses, presence, features):
  return decoder(poses, presence, decoder.colours(features), CANVAS)


def inputs(batch, channels=3):
  rng = np.random.RandomState(batch)
  poses = np.array([[random_pose(rng) for _ in range(PARTS)] for _ in range(batch)], np.float32)
  presence = rng.uniform(0, 1, (batch, PARTS)).astype(np.float32)
  presence[0, 0] = 0.0
  features = rng.normal(0, 1, (batch, PARTS, FEATURES)).astype(np.float32)
  target = rng.uniform(0, 1, (batch, CANVAS, CANVAS, channels)).astype(np.float32)
  return jax.tree.map(jnp.asarray, (poses, presence, features, target))


def decoder(mixing="alpha", channels=3, **changes):
  options = MODEL["part_decoder"] | {"mixing": mixing, "pixel_scale": 0.5} | changes
  return PartDecoder(num_parts=PARTS, channels=channels, **options)


def composed(module, poses, presence, features, target):
  """As documented: the mixture at every pixel of the batch, its log-likelihood, sum and mean."""
  mixture = draw_with_features(module, poses, presence, features)
  return jnp.mean(jnp.sum(jax.vmap(mixtures.log_prob)(mixture, target), axis=(1, 2)))


def by_example(module, poses, presence, features, target, *, train=False):
  return module.log_prob(poses, presence, module.colours(features), target, train=train)


@functools.cache
def value_and_gradients(function, module):
  def value(variables, parts, target):
    return nn.apply(functools.partial(function), module)(variables, *parts, target)

  return jax.jit(jax.value_and_grad(value, argnums=(0, 1)))


def assert_same(actual, expected):
  """Sums of hundreds of float32 in another order."""
  np.testing.assert_allclose(actual[0], expected[0], rtol=1e-6)
  for gradient, reference in zip(*map(jax.tree.leaves, (actual[1], expected[1])), strict=True):
    np.testing.assert_allclose(
      gradient, reference, rtol=1e-5, atol=1e-5 * (1 + np.abs(reference).max())
    )


@pytest.mark.parametrize(
  ("batch", "mixing", "ground_colour"),
  [(1, "coupled", False), (7, "alpha", False), (2, "alpha", True), (1, "coupled", True)],
)
def test_value_and_gradients_are_those_of_the_composition(batch, mixing, ground_colour):
  module = decoder(mixing, ground_colour=ground_colour)
  *parts, target = inputs(batch)
  variables = random_variables(module, *parts, method=draw_with_features)
  actual, expected = (
    value_and_gradients(function, module)(variables, tuple(parts), target)
    for function in (by_example, composed)
  )
  assert_same(actual, expected)
  assert np.abs(expected[1][1][0]).max() > 1e-3  # of poses


def test_a_nan_pose_makes_the_likelihood_nan():
  """So that training stops. A NaN position must not read outside of the templates."""
  *parts, target = inputs(7)
  parts[0] = parts[0].at[1, 0, 0, 2].set(np.nan)
  variables = random_variables(decoder(), *parts, method=draw_with_features)
  value, gradients = value_and_gradients(by_example, decoder())(variables, tuple(parts), target)
  assert np.isnan(value)
  assert np.isfinite(gradients[1][0][0]).all()  # of another image


@pytest.mark.parametrize("batch", [8, 6])
def test_each_device_computes_its_own_examples(batch):
  """6 examples do not divide by four devices: each device computes all of them."""
  module, mesh = decoder(), make_mesh()
  assert mesh.size == 4
  *parts, target = inputs(batch)
  variables = random_variables(module, *parts, method=draw_with_features)
  spread = NamedSharding(mesh, PartitionSpec("data"))

  def value(variables, parts, target):
    if batch == 8:
      parts, target = jax.lax.with_sharding_constraint((parts, target), spread)
    return nn.apply(by_example, module)(variables, *parts, target)

  compiled_gradient = jax.jit(jax.value_and_grad(value, argnums=(0, 1)))
  lowered = compiled_gradient.lower(variables, parts, target)
  assert ("sdy.manual_computation" in lowered.as_text()) == (batch == 8)
  if batch == 8:
    expected = value_and_gradients(composed, module)(variables, parts, target)
    assert_same(lowered.compile()(variables, parts, target), expected)


def test_every_nth_pixel_is_an_unbiased_estimate():
  """The phases of an example sum to its value on all pixels, in value and gradients."""
  stride, batch = 3, 3
  parts, target = inputs(batch)[:3], inputs(batch)[3]
  module = decoder(template_size=3)  # fits the small image
  variables = random_variables(module, *parts, method=draw_with_features)

  def in_phase(module, poses, presence, features, images):
    target, phase = images
    some = functools.partial(warping.every_nth_pixel, phase=phase, stride=stride)
    poses, target = jax.vmap(some)(poses, target)
    mixture = module(poses, presence, module.colours(features), CANVAS // stride)
    return jnp.mean(jnp.sum(jax.vmap(mixtures.log_prob)(mixture, target), axis=(1, 2)))

  run = value_and_gradients(in_phase, module)  # one program for all phases
  phases = [
    run(variables, parts, (target, jnp.array(phase))) for phase in np.ndindex(stride, stride)
  ]
  expected = value_and_gradients(composed, module)(variables, parts, target)
  assert_same(jax.tree.map(lambda *every: sum(every), *phases), expected)


def test_training_draws_a_phase_for_each_example():
  stride, batch = 3, 5
  *parts, target = inputs(batch)
  every, all_pixels = decoder(likelihood_stride=stride), decoder()
  variables = random_variables(all_pixels, *parts, method=draw_with_features)
  target = target.at[:, ::stride, ::stride].set(9.0)  # the first phase is that of the outliers

  @jax.jit
  def estimate(key):
    draw = nn.apply(functools.partial(by_example, train=True), every)
    return draw(variables, *parts, target, rngs={"noise": key})

  estimates = np.array([estimate(key) for key in jax.random.split(jax.random.key(0), 400)])
  exact, same = (
    float(jax.jit(nn.apply(by_example, module))(variables, *parts, target))
    for module in (every, all_pixels)
  )
  np.testing.assert_allclose(exact, same)
  # Each example has the outliers in one of nine draws, or the mean would be one of two numbers.
  assert len(np.unique(np.round(estimates / estimates.std()))) > 3
  assert abs(estimates.mean() - exact) < 4 * estimates.std() / 20


def test_a_stride_that_does_not_fit_the_canvas_is_refused():
  *parts, target = inputs(1)
  for stride, canvas in ((2, CANVAS), (3, 3)):
    module = decoder(likelihood_stride=stride)
    variables = random_variables(module, *parts, method=draw_with_features)
    message = rf"likelihood_stride.*config\.data\.canvas.*\b{canvas}\b.*\b{stride}\b"
    with pytest.raises(ValueError, match=message):
      nn.apply(functools.partial(by_example, train=True), module)(
        variables, *parts, target[:, :canvas, :canvas], rngs={"noise": jax.random.key(0)}
      )
