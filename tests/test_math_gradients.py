"""Gradients of the mathematics against differences, at generic points.

Of selection: test_models_probabilistic.py, of warping: test_math_warping.py.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scae_jax.math import compositing, geometry, margins, mixtures, sparsity
from scae_jax.math.routing import dynamic, em, mixture, points
from tests.references import assert_slope


def normal(*shape, seed=0):
  return jnp.asarray(np.random.RandomState(seed).normal(size=shape))


def uniform(*shape, seed=0):
  return jnp.asarray(np.random.RandomState(seed).uniform(0.1, 0.9, shape))


def poses(raw, pose, other):
  of_numbers = geometry.affine_matrix(raw), geometry.similarity_matrix(raw)
  return *of_numbers, geometry.compose(pose, other), geometry.invert(pose)


def pixels_log_prob(mean, logits, presence, background, image):
  scale = jnp.asarray(0.5)
  mixture_of_parts = mixtures.pixel_mixture(
    mean, logits, presence, background[0], background[1], scale
  )
  return mixtures.log_prob(mixture_of_parts, image)


def both_margins(x):
  present, options = jnp.arange(5.0) % 2, {"present_margin": 0.9, "absent_margin": 0.1}
  lengths = margins.margin_loss(x, present, **options, absent_weight=0.5)
  return lengths, margins.spread_loss(x, present, jnp.asarray(0.6))


def all_sparsity(activations):
  l2, kinds = functools.partial(sparsity.l2, num_classes=3), (sparsity.entropy, sparsity.kl)
  return [
    kind(activations, unbiased=unbiased) for kind in (l2, *kinds) for unbiased in (False, True)
  ]


def routed(poses, votes, scale, presence):
  outputs = []
  for normalize in (False, True):
    result = mixture.route(poses, votes, scale, presence, normalize_mixing=normalize)
    vote = mixture.winner_vote(result, votes, poses, by="soft")
    outputs += [result, vote, mixture.posterior_mass(result)]
  return outputs


def routed_by_em(votes, activation, u, a):
  child = np.array([[0, 1, 2], [1, 2, 3]])
  options = {"iterations": 2, "inverse_temperature_limit": 0.3}
  return em.route_by_em(votes, activation, child, beta_u=u, beta_a=10 * a, **options)


PURE = {
  "poses": (poses, lambda: (normal(6), normal(2, 3), normal(2, 3, seed=1))),
  "log_prob": (
    pixels_log_prob,
    lambda: (normal(2, 3, 4, 1), normal(2, 3, 4), uniform(2), normal(2), normal(3, 4, 1, seed=1)),
  ),
  "over": (
    compositing.over,
    lambda: (normal(3, 4, 4, 2), jnp.clip(2 * uniform(3, 4, 4) - 0.5, 0, 1)),
  ),
  "margins": (both_margins, lambda: (uniform(5),)),
  "sparsity": (all_sparsity, lambda: (uniform(4, 5),)),
  "route": (
    routed,
    lambda: (normal(3, 6), normal(2, 3, 6, seed=1), uniform(2, 3), uniform(2, 3, seed=1)),
  ),
  "route_points": (
    points.route_points,
    lambda: (normal(4, 2), normal(2, 3, 2, seed=1), uniform(2, 3), uniform(2, 3, seed=1)),
  ),
  "route_by_agreement": (
    functools.partial(dynamic.route_by_agreement, iterations=3, through_all=True),
    lambda: (normal(7, 3, 4),),
  ),
  "route_by_em": (
    routed_by_em,
    lambda: (normal(2, 3, 4, 3), uniform(4), normal(3), normal(3, seed=1)),
  ),
}


@pytest.mark.parametrize("name", PURE)
def test_gradients_of_the_mathematics_by_differences(name):
  """Of a random sum of all outputs, along a random direction of all inputs."""
  function, make_inputs = PURE[name]
  rng = np.random.RandomState(0)
  with jax.enable_x64(True):
    inputs = make_inputs()
    shapes = jax.eval_shape(function, *inputs)
    weights = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), shapes)

    @jax.jit
    @jax.value_and_grad
    def total(inputs):
      products = jax.tree.map(
        lambda leaf, weight: jnp.sum(leaf * weight), function(*inputs), weights
      )
      return sum(jax.tree.leaves(products))

    # Differences over 1e-6 leave 1e-8 of values of size 1 to 100; curvature adds about as much.
    assert_slope(total, inputs, rng, 1e-6, rtol=1e-6, atol=1e-6)
