"""The bound against the log-likelihood: what it may not exceed, by two estimates of that."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, log_expit, logsumexp

from scae_jax.models.capsule_inference import Posterior
from scae_jax.routing.selection import Capsules
from tests.test_math_routing_selection import (
  IDENTITY,
  in_float64,
  reference_choices,
  reference_vote,
)
from tests.test_models_build import compiled
from tests.test_models_probabilistic import (
  CANVAS,
  MODEL,
  reference_relations,
  tiny_system,
  tiny_variables,
)

SAMPLES = 10_000
PARTS, OBJECTS = 3, 2
# Wide deviations everywhere, so that samples of beliefs that are about the prior weigh alike.
WIDE = {
  "generative.pixel_scale": 1.0,
  "generative.top_scale": 0.2,
  "generative.broad_scale": 0.8,
  "generative.min_scale": 0.3,
  "generative.top_presence": 0.5,
}


@pytest.fixture(scope="module")
def model():
  """Module, variables, options, and one image."""
  module = tiny_system(**WIDE).module
  variables = tiny_variables(tiny_system(**WIDE), scale=0.1)
  options = MODEL["generative"] | {key.partition(".")[2]: value for key, value in WIDE.items()}
  image = np.random.RandomState(1).uniform(0, 1, (CANVAS, CANVAS, 1)).astype(np.float32)
  return module, variables, options, jnp.asarray(image)


def beliefs(*, gaussian):
  """Of one image, from no network: about the prior and not quite."""
  rng = np.random.RandomState(2)

  def belief(count, scale):
    logits = 0.3 * rng.normal(0, 1, (1, count))
    poses = IDENTITY + 0.1 * rng.normal(0, 1, (1, count, 2, 3))
    scales = np.full((1, count, 6), scale) if gaussian else None
    return jax.tree.map(jnp.float32, Posterior(logits, poses, scales))

  return [belief(PARTS, 1.1), belief(OBJECTS, 0.25)]


@pytest.fixture(scope="module")
def log_weights(model):
  """Function of beliefs and a key: log p(image, z) - log q(z) of many samples z, [n]."""
  module, variables, _, image = model

  def weigh(module, posteriors, key):
    terms = module.free_estimate(
      jnp.broadcast_to(image[None], (SAMPLES, *image.shape)), posteriors, key
    )
    return -sum(terms.values())

  weigh = compiled(functools.partial(module.apply, variables, method=weigh))

  def run(posteriors, key):
    many = jax.tree.map(lambda x: jnp.broadcast_to(x, (SAMPLES, *x.shape[1:])), posteriors)
    return np.asarray(weigh(many, key), np.float64)

  return run


def log_mean(log_values):
  """log of a mean of numbers, and that logarithm's standard error."""
  mean = logsumexp(log_values) - np.log(len(log_values))
  relative = np.exp(log_values - mean)
  return mean, relative.std() / np.sqrt(len(log_values))


def concrete_samples(rng, logits, temperature):
  return (logits + rng.logistic(size=np.shape(logits))) / temperature


@pytest.fixture(scope="module")
def drawn_likelihood(model):
  """Function of poses, or None: log mean of p(image | z) of many z that NumPy draws.

  From the relaxed prior, presences in (0, 1) and all, in the order of the article: roots, choices,
  children. Where the poses of both layers are given, only presences are drawn, and the mean is of
  p(image, poses | presences). No density of the package is used but that of the image.
  """
  module, variables, options, image = model
  params = in_float64(variables["params"]["generative"])
  relations = reference_relations(params, 1, options)
  temperature = options["temperature"]

  def log_density(module, parts):
    count = len(parts.poses)
    picture = module.generative.draw(parts, CANVAS)
    many = jnp.broadcast_to(image[None], (count, *image.shape))
    return module.generative.image_log_prob(picture, many)

  log_density = compiled(functools.partial(module.apply, variables, method=log_density))

  def run(poses=None):
    rng = np.random.RandomState(3)
    prior = np.log(options["top_presence"]) - np.log(1 - options["top_presence"])
    top = concrete_samples(rng, np.full((SAMPLES, OBJECTS), prior), temperature)
    top_poses = rng.normal(IDENTITY, options["top_scale"], (SAMPLES, OBJECTS, 2, 3))
    log_weight = np.zeros(SAMPLES)
    if poses is not None:
      top_poses[:] = poses[1]
      log_weight += stats.norm.logpdf(poses[1], IDENTITY, options["top_scale"]).sum()
    # Every child of every sample chooses, by probabilities [n, k+1, m].
    choices = expit(top)[:, :, None] * np.exp(relations.affinity_logits)
    dummy = np.full((SAMPLES, 1, PARTS), np.exp(relations.dummy_logit))
    choices = np.concatenate([choices, dummy], axis=1)
    choices /= choices.sum(axis=1, keepdims=True)
    expected = reference_choices(Capsules(top[0], top_poses[0]), relations)
    np.testing.assert_allclose(np.log(choices[0]), expected)
    below = np.cumsum(choices, axis=1)[:, :-1]
    choice = np.sum(below < rng.uniform(size=(SAMPLES, 1, PARTS)), axis=1)
    sample, child = np.arange(SAMPLES)[:, None], np.arange(PARTS)
    logits = concrete_samples(rng, relations.presence_logits[choice, child], temperature)
    votes = homogeneous(top_poses)[:, :, None] @ homogeneous(IDENTITY + relations.offsets)[None]
    expected = reference_vote(top_poses[1, 1], relations.offsets[1, 2])
    np.testing.assert_allclose(votes[1, 1, 2, :2], expected)
    # Of a child without a parent the pose is broad either way.
    held, parent = (choice < OBJECTS)[..., None, None], np.minimum(choice, OBJECTS - 1)
    broad = options["broad_scale"]
    vote = np.where(held, votes[sample, parent, child, :2], IDENTITY)
    scale = relations.scales[parent, child].reshape(SAMPLES, PARTS, 2, 3)
    scale = np.where(held, scale, broad)
    if poses is None:
      on = (rng.uniform(size=(SAMPLES, PARTS)) < expit(logits))[..., None, None]
      part_poses = rng.normal(np.where(on, vote, IDENTITY), np.where(on, scale, broad))
    else:
      part_poses = np.broadcast_to(poses[0], (SAMPLES, PARTS, 2, 3))
      on, off = normal(part_poses, vote, scale), normal(part_poses, IDENTITY, broad)
      mixed = np.logaddexp(log_expit(logits) + on, log_expit(-logits) + off)
      log_weight += mixed.sum(axis=1)
    parts = Capsules(*(jnp.asarray(x, jnp.float32) for x in (logits, part_poses)))
    return log_mean(log_weight + np.asarray(log_density(parts), np.float64))

  return run


def homogeneous(poses):
  """Poses [..., 2, 3] as matrices [..., 3, 3]."""
  bottom = np.broadcast_to([0.0, 0.0, 1.0], (*poses.shape[:-2], 1, 3))
  return np.concatenate([poses, bottom], axis=-2)


def normal(poses, mean, scale):
  """log density of poses [..., 2, 3], of all six numbers."""
  return stats.norm.logpdf(poses, mean, scale).sum(axis=(-2, -1))


def test_bound_is_at_most_the_log_likelihood(log_weights, drawn_likelihood):
  """Whose two estimates agree: by samples of the belief that are weighed, and by draws."""
  weights = log_weights(beliefs(gaussian=True), jax.random.key(0))
  weighed, error = log_mean(weights)
  drawn, drawn_error = drawn_likelihood()
  assert max(error, drawn_error) < 0.15
  bound, bound_error = weights.mean(), weights.std() / np.sqrt(SAMPLES)
  assert abs(weighed - drawn) < 4 * np.hypot(error, drawn_error)
  # Not by the errors of estimation alone: the belief is not the posterior.
  assert weighed - bound > 10 * np.hypot(error, bound_error)


def test_bound_with_poses_in_one_point(log_weights, drawn_likelihood):
  """It bounds the log density of the image together with those poses, presences summed out."""
  posteriors = beliefs(gaussian=False)
  weights = log_weights(posteriors, jax.random.key(0))
  weighed, error = log_mean(weights)
  poses = [np.asarray(posterior.poses[0], np.float64) for posterior in posteriors]
  drawn, drawn_error = drawn_likelihood(poses)
  assert max(error, drawn_error) < 0.15
  bound, bound_error = weights.mean(), weights.std() / np.sqrt(SAMPLES)
  assert abs(weighed - drawn) < 4 * np.hypot(error, drawn_error)
  assert weighed - bound > 10 * np.hypot(error, bound_error)
