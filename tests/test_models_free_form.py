"""The free form of a tiny probabilistic model: its starts, its bound, and the prior's moments."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scae_jax.math.routing import selection
from scae_jax.math.routing.selection import Moments
from scae_jax.models import probabilistic
from tests.test_math_routing_selection import random_layers
from tests.tiny import PROBABILISTIC, build, compiled, random_variables, tiny

COUNT, PARTS, OBJECTS = 3, 3, 2
BATCH = {
  "image": jnp.asarray(np.random.RandomState(0).uniform(size=(COUNT, 7, 7, 1)), "f4"),
  "label": jnp.zeros(COUNT, jnp.int32),
}


def tiny_system(poses):
  return tiny(probabilistic, poses=poses, num_samples=2, **{"object_inference.num_layers": 0})


@pytest.fixture(scope="module")
def gaussian():
  """System, variables, and of the batch: output, posteriors of encoder and prior, and a picture."""
  system = tiny_system("gaussian")
  variables = random_variables(system.module, BATCH, train=True)

  @compiled
  def run(variables):
    output = system.module.apply(variables, BATCH, train=False)
    encoded = system.free_form.encode(variables, BATCH)
    encoding, canvas = system.free_form.encoding(variables, encoded), BATCH["image"].shape[1]
    drawn = system.draws["parts"](variables, encoding, jnp.int32(-1), canvas)
    return output, encoded, system.free_form.prior(variables, BATCH), drawn

  return system, variables, *run(variables)


def test_encoded_posteriors_are_those_of_the_output(gaussian):
  system, variables, output, encoded, _, drawn = gaussian
  # Both are in one program, and may be computed apart.
  close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
  jax.tree.map(close, encoded, output.posteriors)
  encoding = system.free_form.encoding(variables, encoded)
  probe_features = encoding.probe_features
  assert probe_features["presence_logits"].shape == (COUNT, OBJECTS)
  poses = np.asarray(encoded[1].poses).reshape(COUNT, -1)
  expected = np.concatenate([encoded[1].presence_logits, poses], axis=1)
  np.testing.assert_array_equal(probe_features["presences_and_poses"], expected)
  jax.tree.map(close, encoding, system.encoding(output))
  np.testing.assert_allclose(drawn, output.picture, atol=1e-5)  # float32, of sums of 3 templates
  assert np.ptp(drawn) > 0.1


def test_point_posteriors_have_no_deviations():
  system = tiny_system("delta")
  assert system.free_form is not None
  variables = build(system, BATCH)
  for start in (system.free_form.encode, system.free_form.prior):
    posterior = jax.eval_shape(start, variables, BATCH)
    assert [layer.pose_scales for layer in posterior] == [None, None]
    assert [layer.poses.shape[1] for layer in posterior] == [PARTS, OBJECTS]
    free = jax.eval_shape(system.free_form.unconstrain, posterior)
    assert jax.tree.structure(free) == jax.tree.structure(posterior)


def test_the_prior_follows_the_config_and_is_the_same_for_all_images(gaussian):
  parts, top = gaussian[4]
  generative = PROBABILISTIC["generative"]
  presence = jax.nn.sigmoid(top.presence_logits)
  np.testing.assert_allclose(presence, generative["top_presence"], rtol=1e-5)
  # A constant that is not computed.
  np.testing.assert_array_equal(top.poses, np.broadcast_to(np.eye(2, 3), top.poses.shape))
  np.testing.assert_allclose(top.pose_scales, generative["top_scale"], rtol=1e-6)
  for leaf in jax.tree.leaves((parts, top)):
    assert leaf.shape[0] == COUNT
    # A compiler may treat some examples of a batch in another way than others.
    expected = np.broadcast_to(leaf[:1], leaf.shape)
    np.testing.assert_allclose(leaf, expected, rtol=1e-5, atol=1e-6)


def test_moments_of_children_are_those_of_samples():
  """Of parents that are certainly present."""
  _, parents, relations = random_layers()
  parents = Moments(jnp.full(2, selection.CERTAIN), parents.poses, jnp.full((2, 6), 0.5))
  moments = jax.jit(selection.child_moments)(parents, relations)

  @jax.jit
  @jax.vmap
  def sample(key):
    pose_key, child_key = jax.random.split(key)
    scales = parents.pose_scales.reshape(2, 2, 3)
    poses = parents.poses + scales * jax.random.normal(pose_key, (2, 2, 3))
    there = selection.Capsules(parents.presence_logits, poses)
    children, _ = selection.sample_children(child_key, there, relations)
    return children.presence > 0.5, children.poses

  count = 20_000
  presences, poses = map(np.asarray, sample(jax.random.split(jax.random.key(0), count)))
  # Five standard errors of a mean, and of a deviation whose own is below 2 / sqrt(count) of it:
  # mixtures have heavier tails than a Gaussian, whose is 0.7.
  error = 5 / np.sqrt(count)
  np.testing.assert_allclose(jax.nn.sigmoid(moments.presence_logits), presences.mean(0), atol=error)
  scales = np.asarray(moments.pose_scales).reshape(3, 2, 3)
  assert np.all(np.abs(moments.poses - poses.mean(0)) < error * scales)
  np.testing.assert_allclose(poses.std(axis=0), scales, rtol=2 * error)
