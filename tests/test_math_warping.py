"""Warping against SciPy's bilinear interpolation, its gradients, and its precision."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import Precision

from scae_jax.math import geometry, warping
from tests.references import product_precisions, random_pose, reference_warp

# Positions of up to 20 template pixels are known to 1e-6 of a pixel in float32; templates in [0, 1]
# change by at most 1 a pixel, in both directions.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def bank():
  """Three templates of side 5 with 2 channels, and their poses in two examples."""
  rng = np.random.RandomState(1)
  templates = rng.uniform(0, 1, (3, 5, 5, 2)).astype(np.float32)
  poses = np.array([[random_pose(rng) for _ in range(3)] for _ in range(2)])
  return jnp.asarray(templates), jnp.asarray(poses)


HEIGHT, WIDTH = 9, 12


COTANGENT = np.random.RandomState(2).normal(0, 1, (2, 3, HEIGHT, WIDTH, 2)).astype(np.float32)


@functools.partial(jax.jit, static_argnums=2)
def warp_bank(templates, poses, method):
  """The images of a bank, and the gradient of their sum weighted by `COTANGENT`."""

  def total(templates, poses):
    images = warping.warp_templates(templates, poses, HEIGHT, WIDTH, method)
    return jnp.sum(images * COTANGENT), images

  gradient, images = jax.grad(total, argnums=(0, 1), has_aux=True)(templates, poses)
  return images, gradient


def reference_bank(templates, poses):
  images = [reference_warp(templates[m], poses[b, m], HEIGHT, WIDTH) for b, m in np.ndindex(2, 3)]
  return np.reshape(images, COTANGENT.shape)


@pytest.mark.parametrize("method", warping.METHODS)
def test_bank_of_templates(bank, method):
  """Images against SciPy, gradients against finite differences of SciPy's images."""
  images, gradient = warp_bank(*bank, method)
  templates, poses = (np.asarray(x, np.float64) for x in bank)
  np.testing.assert_allclose(images, reference_bank(templates, poses), atol=TOLERANCE)

  rng, step = np.random.RandomState(3), 1e-6
  for i in range(2):
    for _ in range(4):
      ahead = [np.zeros_like(templates), np.zeros_like(poses)]
      ahead[i] = step * rng.normal(0, 1, ahead[i].shape)
      further = reference_bank(templates + ahead[0], poses + ahead[1])
      nearer = reference_bank(templates - ahead[0], poses - ahead[1])
      slope = np.sum((further - nearer) * COTANGENT) / (2 * step)
      actual = np.sum(np.asarray(gradient[i], np.float64) * ahead[i]) / step
      # A pixel within the step of a kink, one in 1e5, would show; rounding of float32 does not.
      np.testing.assert_allclose(actual, slope, rtol=1e-4, atol=1e-3)


def test_gradients_agree_where_the_slope_jumps(bank):
  """A template of 5 on a grid of 9: every other position is a whole one."""
  poses = jnp.broadcast_to(geometry.identity(), (1, 3, 2, 3))

  def gradient(method):
    def total(poses):
      return jnp.sum(jnp.square(warping.warp_templates(bank[0], poses, 9, 9, method)))

    return jax.jit(jax.grad(total))(poses)

  expected = gradient("gather")
  assert np.abs(expected).min() > 0.1
  np.testing.assert_allclose(gradient("products"), expected, rtol=1e-4, atol=1e-4)


def test_unknown_warping_methods_are_refused(bank):
  with pytest.raises(ValueError, match=r"'tent'.*gather, products"):
    warping.warp_templates(*bank, HEIGHT, WIDTH, "tent")


@pytest.mark.parametrize("method", warping.METHODS)
@pytest.mark.parametrize("size", [0.0, 1e-20, 1e-3, 1e6])
def test_extreme_poses_are_finite(bank, size, method):
  chex.assert_tree_all_finite(warp_bank(bank[0], size * bank[1], method))


@pytest.mark.parametrize(
  ("function", "num_poses"),
  [
    (geometry.compose, 2),
    (geometry.invert, 1),
    (functools.partial(warping.template_position, side=5, height=4, width=4), 1),
  ],
  ids=["compose", "invert", "template_position"],
)
@pytest.mark.parametrize("differentiated", [False, True])
def test_geometry_is_as_precise_on_every_device(function, num_poses, differentiated):
  """By default a TPU multiplies in bfloat16 and a GPU in TensorFloat-32: 8 and 10 bits."""

  def run(*poses):
    return sum(jnp.sum(jnp.square(array)) for array in jax.tree.leaves(function(*poses)))

  program = jax.grad(run, argnums=tuple(range(num_poses))) if differentiated else function
  precisions = product_precisions(jax.make_jaxpr(program)(*[geometry.identity()] * num_poses).jaxpr)
  assert precisions, "without a product this test sees nothing"
  assert set(precisions) == {(Precision.HIGHEST, Precision.HIGHEST)}
