"""Warping against SciPy's bilinear interpolation, its own gradient, and equivariance."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scae_jax import warping
from tests.references import random_pose, reference_warp

# Positions of up to 20 template pixels are known to 1e-6 of a pixel in float32; templates in [0, 1]
# change by at most 1 a pixel, in both directions.
TOLERANCE = 1e-5


def simple_pose(scale=1.0, shift=(0.0, 0.0)):
  return jnp.array([[scale, 0, shift[0]], [0, scale, shift[1]]], jnp.float32)


@functools.partial(jax.jit, static_argnums=(2, 3))
def warp(template, pose, height, width):
  return warping.warp_template(template, pose, height, width)


@pytest.fixture(scope="module")
def bank():
  """Three templates of side 5 with 2 channels, and their poses in two examples."""
  rng = np.random.RandomState(1)
  templates = rng.uniform(0, 1, (3, 5, 5, 2)).astype(np.float32)
  poses = np.array([[random_pose(rng) for _ in range(3)] for _ in range(2)])
  return jnp.asarray(templates), jnp.asarray(poses)


HEIGHT, WIDTH = 9, 12


@pytest.mark.parametrize(("side", "height", "width"), [(4, 9, 12), (7, 10, 6), (1, 5, 5)])
def test_one_template(side, height, width):
  rng = np.random.RandomState(side)
  template = rng.uniform(0, 1, (side, side, 2)).astype(np.float32)
  for _ in range(8):
    pose = random_pose(rng)
    expected = reference_warp(template, pose, height, width)
    actual = warp(template, pose, height, width)
    np.testing.assert_allclose(actual, expected, atol=TOLERANCE)


@pytest.mark.parametrize("method", warping.METHODS)
def test_bank_of_templates(bank, method):
  templates, poses = bank
  warp_all = jax.jit(warping.warp_templates, static_argnums=(2, 3, 4))
  actual = warp_all(templates, poses, HEIGHT, WIDTH, method)
  assert actual.shape == (2, 3, HEIGHT, WIDTH, 2)
  for b in range(2):
    for m in range(3):
      expected = reference_warp(templates[m], poses[b, m], HEIGHT, WIDTH)
      np.testing.assert_allclose(actual[b, m], expected, atol=TOLERANCE)


@pytest.fixture(scope="module")
def cotangent():
  return np.random.RandomState(2).normal(0, 1, (2, 3, HEIGHT, WIDTH, 2)).astype(np.float32)


@pytest.fixture(scope="module", params=warping.METHODS)
def bank_gradient(request, bank, cotangent):
  """Of the templates and of the poses, by the gradient that each method brings along."""
  templates, poses = bank

  def total(templates, poses):
    warped = warping.warp_templates(templates, poses, HEIGHT, WIDTH, request.param)
    return jnp.sum(warped * cotangent)

  return jax.jit(jax.grad(total, argnums=(0, 1)))(templates, poses)


def test_bank_gradient_is_that_of_the_definition(bank, cotangent, bank_gradient):
  def total(templates, poses):
    warp_all = jax.vmap(warping.warp_template, in_axes=(0, 0, None, None))
    warp_all = jax.vmap(warp_all, in_axes=(None, 0, None, None))
    return jnp.sum(warp_all(templates, poses, HEIGHT, WIDTH) * cotangent)

  expected = jax.jit(jax.grad(total, argnums=(0, 1)))(*bank)
  for actual, wanted in zip(bank_gradient, expected, strict=True):
    # Sums over 108 pixels, in another order; gradients are of size 1 to 100.
    np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-4)
    assert np.abs(wanted).max() > 1


def test_bank_gradient_is_the_slope_of_the_reference(bank, cotangent, bank_gradient):
  templates, poses = (np.asarray(x, np.float64) for x in bank)

  def total(templates, poses):
    warped = [reference_warp(templates[m], poses[b, m], HEIGHT, WIDTH) for b, m in np.ndindex(2, 3)]
    return np.sum(np.reshape(warped, cotangent.shape) * cotangent)

  rng, step = np.random.RandomState(3), 1e-6
  for i in range(2):
    for _ in range(4):
      ahead = [np.zeros_like(templates), np.zeros_like(poses)]
      ahead[i] = step * rng.normal(0, 1, ahead[i].shape)
      slope = total(templates + ahead[0], poses + ahead[1])
      slope = (slope - total(templates - ahead[0], poses - ahead[1])) / (2 * step)
      actual = np.sum(np.asarray(bank_gradient[i], np.float64) * ahead[i]) / step
      # A pixel within the step of a kink, one in 1e5, would show; rounding of float32 does not.
      np.testing.assert_allclose(actual, slope, rtol=1e-4, atol=1e-3)


def test_products_gather_nothing_and_scatter_nothing(bank):
  """What each method is for, in the program that JAX makes of its gradient."""

  def program(method):
    def total(templates, poses):
      return jnp.sum(jnp.square(warping.warp_templates(templates, poses, HEIGHT, WIDTH, method)))

    return str(jax.make_jaxpr(jax.grad(total, argnums=(0, 1)))(*bank))

  found = {method: program(method) for method in warping.METHODS}
  assert {method for method, text in found.items() if " gather[" in text} == {
    "gather",
    "gather_products",
  }
  assert {method for method, text in found.items() if " scatter-add[" in text} == {"gather"}


def test_gradients_agree_where_the_slope_jumps(bank):
  """A template of 5 on a grid of 9: every other position is a whole one."""
  templates = bank[0]
  poses = jnp.broadcast_to(simple_pose(), (1, 3, 2, 3))

  def gradient(method):
    def total(poses):
      return jnp.sum(jnp.square(warping.warp_templates(templates, poses, 9, 9, method)))

    return jax.jit(jax.grad(total))(poses)

  expected = gradient("gather")
  assert np.abs(expected).min() > 0.1
  np.testing.assert_allclose(gradient("products"), expected, rtol=1e-4, atol=1e-4)


def test_a_method_that_does_not_exist(bank):
  with pytest.raises(ValueError, match="no method 'tent'; expected one of gather, gather_products"):
    warping.warp_templates(*bank, HEIGHT, WIDTH, "tent")


def test_sample_bilinear_by_hand():
  template = jnp.array([[1.0, 2.0], [3.0, 4.0]])[..., None]
  rows = jnp.array([[0.0, 0.5, -0.5, -1.0, 1.0, 1.5, 2.0, 5.0, 0.25, -1e9]])
  columns = jnp.array([[0.0, 0.5, 0.0, 0.0, 1.0, 1.0, 1.0, -7.0, 1.0, 1e9]])
  expected = [[1.0, 2.5, 0.5, 0.0, 4.0, 2.0, 0.0, 0.0, 2.5, 0.0]]
  actual = jax.jit(warping.sample_bilinear)(template, rows, columns)[..., 0]
  # Halves and quarters of small whole numbers: nothing is rounded.
  np.testing.assert_array_equal(actual, expected)


@functools.partial(jax.jit, static_argnums=2)
def bank_images(templates, poses, method="gather"):
  """The images of a bank, and the gradient of the sum of their squares."""

  def total(templates, poses):
    images = warping.warp_templates(templates, poses, HEIGHT, WIDTH, method)
    return jnp.sum(jnp.square(images)), images

  (_, images), gradient = jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(templates, poses)
  return images, gradient


@pytest.mark.parametrize("method", warping.METHODS)
@pytest.mark.parametrize("size", [0.0, 1e-20, 1e-3, 1e6])
def test_extreme_poses_are_finite(bank, size, method):
  images, gradient = bank_images(bank[0], size * bank[1], method)
  assert np.isfinite(images).all()
  assert all(np.isfinite(g).all() for g in gradient)
