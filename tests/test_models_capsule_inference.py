"""Posteriors by their samples, and the networks that infer them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

from scae_jax.math.routing.selection import Capsules
from scae_jax.models.probabilistic.inference import (
  ObjectInference,
  PartInference,
  Posterior,
  PosteriorScales,
  change_scales,
)
from tests.references import affine_reference
from tests.tiny import compiled, random_variables

BATCH, CAPSULES, TEMPERATURE = 3, 2, 0.6
IDENTITY = np.eye(2, 3)
SCALES = PosteriorScales(min_scale=0.02, initial_scale=0.3)


def deviations(raw):
  """Standard deviations from a network's raw numbers, in float64."""
  start = np.log(np.expm1(SCALES.initial_scale))
  return SCALES.min_scale + np.logaddexp(0, raw + start)


def posterior(*, gaussian=True):
  rng = np.random.RandomState(0)
  return Posterior(
    jnp.asarray(rng.normal(0, 1, (BATCH, CAPSULES)), jnp.float32),
    jnp.asarray(rng.normal(0, 1, (BATCH, CAPSULES, 2, 3)), jnp.float32),
    jnp.asarray(rng.uniform(0.1, 1, (BATCH, CAPSULES, 6)), jnp.float32) if gaussian else None,
  )


def test_density_of_an_absent_pose():
  """A point posterior has a Gaussian's peak density. Others: test_models_probabilistic.py."""
  point = posterior(gaussian=False)
  log_density = point.off_log_prob(point.centre(TEMPERATURE), 0.05)
  peak = -6 * np.log(0.05 * np.sqrt(2 * np.pi))
  np.testing.assert_allclose(log_density, np.full((BATCH, CAPSULES), peak), rtol=1e-6)


def test_samples_are_of_the_posterior():
  """Presences have the concrete distribution, poses the normal one; all are independent."""
  belief, draws = posterior(), 20_000
  sample = jax.vmap(lambda key: belief.sample(key, TEMPERATURE))
  capsules = jax.device_get(compiled(sample)(jax.random.split(jax.random.key(0), draws)))
  # P(x < c) of a binary concrete variable is the sigmoid of temperature logit(c) - location.
  for logit in (-2.0, 0.0, 1.0):
    below = np.mean(capsules.presence_logits < logit, axis=0)
    expected = expit(TEMPERATURE * logit - np.asarray(belief.presence_logits))
    # Five standard deviations at most.
    np.testing.assert_allclose(below, expected, atol=2.5 / np.sqrt(draws))
  belief = jax.device_get(belief)
  standard = (capsules.poses - belief.poses).reshape(draws, BATCH, CAPSULES, 6)
  standard /= belief.pose_scales
  np.testing.assert_allclose(standard.mean(axis=0), 0, atol=5 / np.sqrt(draws))
  np.testing.assert_allclose(standard.std(axis=0), 1, atol=5 / np.sqrt(2 * draws))
  # No number says anything of another.
  logits = capsules.presence_logits.reshape(draws, -1)
  numbers = np.concatenate([logits, np.asarray(standard).reshape(draws, -1)], axis=1)
  correlation = np.corrcoef(numbers.T) - np.eye(numbers.shape[1])
  assert np.abs(correlation).max() < 6 / np.sqrt(draws)


def test_deviations_have_a_floor_and_free_parameters_have_none():
  belief = posterior()
  (free,) = change_scales(SCALES.unconstrain, [belief])
  expected = np.log(np.expm1(np.float64(belief.pose_scales) - 0.02))
  np.testing.assert_allclose(free.pose_scales, expected, rtol=1e-4, atol=1e-5)
  np.testing.assert_array_equal(free.poses, belief.poses)
  (back,) = change_scales(SCALES.constrain, [free])
  np.testing.assert_allclose(back.pose_scales, belief.pose_scales, rtol=1e-5)
  lower = free.replace(pose_scales=free.pose_scales - 80.0)
  (low,) = change_scales(SCALES.constrain, [lower])
  np.testing.assert_allclose(low.pose_scales, np.full((BATCH, CAPSULES, 6), 0.02), rtol=1e-6)
  # From the floor, where rounding may leave one, the way back is finite.
  assert np.isfinite(SCALES.unconstrain(low.pose_scales)).all()
  point = posterior(gaussian=False)
  assert change_scales(SCALES.unconstrain, [point])[0].pose_scales is None


PARTS = 3
IMAGE = jnp.asarray(np.random.RandomState(0).uniform(0, 1, (BATCH, 7, 7, 1)), jnp.float32)


def part_inference(**options):
  """A network with the same output for every image, its bias, and its variables."""
  options = {"scales_of": PosteriorScales(), **options}
  module = PartInference(PARTS, widths=(4,), strides=(2,), **options)
  variables = random_variables(module, IMAGE)
  for name in {"pooling", "scales"} & set(variables["params"]):
    layer = variables["params"][name]["conv_1x1"]
    layer["kernel"] = jnp.zeros_like(layer["kernel"])
  return module, variables


def test_part_inference_by_its_bias():
  """A logit and the six numbers of a pose, in this order; deviations are pooled by themselves."""
  module, variables = part_inference(gaussian=True, min_part_scale=0.01, scales_of=SCALES)
  bias, scales = (
    np.float64(variables["params"][name]["conv_1x1"]["bias"]).reshape(PARTS, -1)
    for name in ("pooling", "scales")
  )
  parts = compiled(module.apply)(variables, IMAGE)
  # float32, with an angle of 2 pi x.
  close = functools.partial(np.testing.assert_allclose, atol=5e-6)
  for m in range(PARTS):
    close(parts.presence_logits[1, m], bias[m, 0])
    close(parts.poses[1, m], affine_reference(bias[m, 1:7]))
    close(parts.pose_scales[1, m], deviations(scales[m, :6]))


def test_parts_have_a_least_size():
  """With raw scales far below 0, parts have the minimal scale, turned or not."""
  module, variables = part_inference(gaussian=False, min_part_scale=0.2)
  layer = variables["params"]["pooling"]["conv_1x1"]
  layer["bias"] = layer["bias"].reshape(PARTS, -1).at[:, 1:3].set(-50.0).reshape(-1)
  parts = compiled(module.apply)(variables, IMAGE)
  # The determinant is the product of the scales, whatever rotation and shear; float32.
  np.testing.assert_allclose(np.linalg.det(parts.poses[..., :2]), 0.2**2, rtol=1e-4)
  assert parts.pose_scales is None


def object_inference(**changes):
  fields = {"num_layers": 1, "num_heads": 1, "features": 4, "num_inducing": 2}
  fields |= {"output_features": 4, "hidden": 5, "gaussian": True, "scales_of": SCALES} | changes
  return ObjectInference(CAPSULES, **fields)


def children():
  rng = np.random.RandomState(0)
  return Capsules(
    jnp.asarray(rng.normal(0, 1, (BATCH, PARTS)), jnp.float32),
    jnp.asarray(IDENTITY + rng.normal(0, 0.5, (BATCH, PARTS, 2, 3)), jnp.float32),
  )


@pytest.fixture(scope="module")
def objects():
  module = object_inference()
  return random_variables(module, children(), scale=1.0), compiled(module.apply)


def test_object_inference_by_its_last_bias(objects):
  """A logit and a pose that is identity plus offset, in this order; and deviations."""
  variables, apply = objects
  params, biases = dict(variables["params"]), {}
  for head in ("heads", "scales"):
    layers = params[head]["capsules"]
    last = layers["dense_1"] | {"kernel": jnp.zeros_like(layers["dense_1"]["kernel"])}
    params[head] = {"capsules": dict(layers, dense_1=last)}
    biases[head] = np.asarray(last["bias"], np.float64)
  inferred = apply({"params": params}, children())
  bias = biases["heads"]
  assert bias.shape == (CAPSULES, 7)
  for b in range(BATCH):
    np.testing.assert_allclose(inferred.presence_logits[b], bias[:, 0], atol=1e-6)
    poses = IDENTITY + bias[:, 1:7].reshape(CAPSULES, 2, 3)
    np.testing.assert_allclose(inferred.poses[b], poses, atol=1e-6)
    np.testing.assert_allclose(inferred.pose_scales[b], deviations(biases["scales"]), rtol=1e-5)


def test_objects_read_identity_pose_and_presence_of_parts(objects):
  """The pose, presence and index of every child change the parents."""
  variables, apply = objects
  rows = children()
  before = apply(variables, rows)

  def moved(logits, poses):
    after = apply(variables, Capsules(logits, poses))
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    return max(np.abs(old - new).max() for old, new in pairs)

  for m in range(PARTS):
    assert moved(rows.presence_logits.at[:, m].add(1.0), rows.poses) > 1e-3
    assert moved(rows.presence_logits, rows.poses.at[:, m].add(0.5)) > 1e-3
  assert moved(rows.presence_logits[:, ::-1], rows.poses[:, ::-1]) > 1e-3
  # One that is off is not read at all.
  off = rows.presence_logits.at[:, 0].set(-1e4)
  there = apply(variables, Capsules(off, rows.poses))
  elsewhere = apply(variables, Capsules(off, rows.poses.at[:, 0].add(1.0)))
  jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), there, elsewhere)
