"""Gradients of the mathematics against differences, at generic points."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from scae_jax import geometry, mixtures, sparsity, warping
from scae_jax.routing import mixture as routing


@pytest.fixture
def float64():
  """Differences of a function over 1e-6 show a gradient to ten digits instead of two."""
  with jax.enable_x64(True):
    yield


def normal(*shape, seed=0, scale=1.0):
  return jnp.asarray(np.random.RandomState(seed).normal(0, scale, shape))


def uniform(*shape, seed=0):
  return jnp.asarray(np.random.RandomState(seed).uniform(0.1, 0.9, shape))


def poses_of(raw):
  return jax.vmap(geometry.affine_matrix)(raw)


def pixels_log_prob(mean, logits, presence, background, image):
  scale = jnp.asarray(0.5)
  mixture = mixtures.pixel_mixture(mean, logits, presence, background[0], background[1], scale)
  return mixtures.log_prob(mixture, image), mixtures.mean(mixture)


def routed(poses, votes, scale, presence, *, normalize_mixing):
  result = routing.route(poses, votes, scale, presence, normalize_mixing=normalize_mixing)
  drawn = routing.soft_winner(result, votes, poses)
  return result.log_prob, result.posterior, drawn, routing.posterior_mass(result)


PURE = {
  "affine_matrix": (geometry.affine_matrix, lambda: (normal(6),)),
  "similarity_matrix": (geometry.similarity_matrix, lambda: (normal(6),)),
  "compose": (geometry.compose, lambda: (normal(2, 3), normal(2, 3, seed=1))),
  "invert": (geometry.invert, lambda: (normal(2, 3),)),
  "transform_points": (geometry.transform_points, lambda: (normal(2, 3), normal(4, 2))),
  "warp_template": (
    lambda template, pose: warping.warp_template(template, pose, 6, 7),
    lambda: (normal(4, 4, 2), poses_of(normal(1, 6, scale=0.3))[0]),
  ),
  "warp_templates": (
    lambda bank, poses: warping.warp_templates(bank, poses, 6, 7),
    lambda: (normal(2, 4, 4, 2), poses_of(normal(6, 6, scale=0.3)).reshape(3, 2, 2, 3)),
  ),
  "log_prob": (
    pixels_log_prob,
    lambda: (normal(2, 3, 4, 1), normal(2, 3, 4), uniform(2), normal(2), normal(3, 4, 1, seed=1)),
  ),
  "l2": (lambda a: sparsity.l2(a, 3), lambda: (uniform(4, 5),)),
  "entropy": (sparsity.entropy, lambda: (uniform(4, 5),)),
  "kl": (sparsity.kl, lambda: (uniform(4, 5),)),
  "route": (
    functools.partial(routed, normalize_mixing=False),
    lambda: (normal(3, 6), normal(2, 3, 6, seed=1), uniform(2, 3), uniform(2, 3, seed=1)),
  ),
  "route, normalised": (
    functools.partial(routed, normalize_mixing=True),
    lambda: (normal(3, 6), normal(2, 3, 6, seed=1), uniform(2, 3), uniform(2, 3, seed=1)),
  ),
}


@pytest.mark.parametrize("name", PURE)
@pytest.mark.usefixtures("float64")
def test_gradients_of_the_mathematics_by_differences(name):
  function, make_inputs = PURE[name]
  # Second differences over 1e-6 leave 1e-10 of values of size 1 to 100; curvature adds 1e-8.
  check_grads(jax.jit(function), make_inputs(), 1, ["rev"], atol=1e-6, rtol=1e-6, eps=1e-6)
