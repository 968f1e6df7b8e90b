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
    logits = np.zeros((SAMPLES, PARTS))
    part_poses = np.zeros((SAMPLES, PARTS, 2, 3))
    for n in range(SAMPLES):
      choices = np.exp(reference_choices(Capsules(top[n], top_poses[n]), relations))
      for child in range(PARTS):
        choice = np.searchsorted(np.cumsum(choices[:, child]), rng.uniform())
        choice = min(choice, OBJECTS)
        logit = relations.presence_logits[choice, child]
        logits[n, child] = value = concrete_samples(rng, logit, temperature)
        vote, scale = IDENTITY, np.full((2, 3), options["broad_scale"])
        if choice < OBJECTS:
          vote = reference_vote(top_poses[n, choice], relations.offsets[choice, child])
          scale = relations.scales[choice, child].reshape(2, 3)
        broad = IDENTITY, options["broad_scale"]
        if poses is None:
          mean, deviation = (vote, scale) if rng.uniform() < expit(value) else broad
          part_poses[n, child] = rng.normal(mean, deviation)
          continue
        part_poses[n, child] = pose = poses[0][child]
        on, off = (normal(pose, *where) for where in ((vote, scale), broad))
        log_weight[n] += np.logaddexp(log_expit(value) + on, log_expit(-value) + off)
    parts = Capsules(*(jnp.asarray(x, jnp.float32) for x in (logits, part_poses)))
    return log_mean(log_weight + np.asarray(log_density(parts), np.float64))

  return run


def normal(pose, mean, scale):
  standard = (pose - mean) / scale
  return -0.5 * np.sum(standard**2) - np.sum(np.log(np.broadcast_to(scale, (2, 3)))) - LOG_NORMAL


LOG_NORMAL = 3 * np.log(2 * np.pi)  # of six numbers


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
