"""Gradients of the mathematics against differences, at generic points."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from scae_jax import compositing, geometry, margins, mixtures, sparsity, warping
from scae_jax.routing import dynamic, em
from scae_jax.routing import mixture as routing
from scae_jax.routing import points as routing_points


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
  return mixtures.log_prob(mixture, image)


def routed(poses, votes, scale, presence, *, normalize_mixing):
  result = routing.route(poses, votes, scale, presence, normalize_mixing=normalize_mixing)
  drawn = routing.soft_winner(result, votes, poses)
  return result.log_prob, result.posterior, drawn, routing.posterior_mass(result)


PURE = {
  "affine_matrix": (geometry.affine_matrix, lambda: (normal(6),)),
  "similarity_matrix": (geometry.similarity_matrix, lambda: (normal(6),)),
  "compose": (geometry.compose, lambda: (normal(2, 3), normal(2, 3, seed=1))),
  "invert": (geometry.invert, lambda: (normal(2, 3),)),
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
  "route_points": (
    routing_points.route_points,
    lambda: (normal(4, 2), normal(2, 3, 2, seed=1), uniform(2, 3), uniform(2, 3, seed=1)),
  ),
  "over": (
    compositing.over,
    lambda: (normal(3, 4, 4, 2), jnp.clip(2 * uniform(3, 4, 4) - 0.5, 0, 1)),
  ),
  "margin_loss": (
    lambda x: margins.margin_loss(
      x, jnp.arange(5.0) % 2, present_margin=0.9, absent_margin=0.1, absent_weight=0.5
    ),
    lambda: (uniform(5),),
  ),
  "spread_loss": (
    lambda x: margins.spread_loss(x, jnp.arange(5.0) % 2, jnp.asarray(0.6)),
    lambda: (uniform(5),),
  ),
  "route_by_agreement": (
    functools.partial(dynamic.route_by_agreement, iterations=3, through_all=True),
    lambda: (normal(7, 3, 4),),
  ),
  "route_by_em": (
    lambda votes, activation, u, a: em.route_by_em(
      votes,
      activation,
      np.array([[0, 1, 2], [1, 2, 3]]),
      beta_u=u,
      beta_a=10 * a,
      iterations=2,
      inverse_temperature_limit=0.3,
    ),
    lambda: (normal(2, 3, 4, 3), uniform(4), normal(3), normal(3, seed=1)),
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
