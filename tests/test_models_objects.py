"""Object capsules: the decoder's heads against NumPy and by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logit

from scae_jax.models.scae.ocae import ObjectDecoder
from tests.references import affine_reference, similarity_reference, square
from tests.tiny import MODEL, OBJECTS, PARTS, compiled, random_variables

BATCH = 2


@functools.cache
def compiled_decoder(**changes):
  module = ObjectDecoder(num_parts=PARTS, **(MODEL["object_decoder"] | changes))
  x = jnp.asarray(np.random.RandomState(0).normal(0, 1, (BATCH, OBJECTS, 5)), jnp.float32)
  variables = random_variables(module, x, train=False)
  apply = compiled(functools.partial(module.apply, train=False))
  return lambda *inputs: jax.device_get(apply(*inputs)), variables, x


@pytest.mark.parametrize(("similarity", "deformations"), [(False, True), (True, False)])
def test_a_vote_is_viewer_times_object_part(similarity, deformations):
  apply, variables, x = compiled_decoder(similarity=similarity, deformations=deformations)
  objects = apply(variables, x)
  static = np.asarray(variables["params"]["object_part"])
  matrix = similarity_reference if similarity else affine_reference
  if deformations:
    assert np.abs(objects.dynamic).min() > 0
  else:
    np.testing.assert_array_equal(objects.dynamic, np.zeros((BATCH, OBJECTS, PARTS, 6)))
  for b, k, m in np.ndindex(BATCH, OBJECTS, PARTS):
    object_part = square(matrix(static[k, m] + objects.dynamic[b, k, m]))
    expected = (square(objects.poses[b, k]) @ object_part)[:2].reshape(6)
    # Angles of 2 pi x in float32.
    np.testing.assert_allclose(objects.votes[b, k, m], expected, atol=1e-5)
  if similarity:
    poses = objects.poses
    # Entries of size 1, each computed in its own place.
    np.testing.assert_allclose(poses[..., 0, 0], poses[..., 1, 1], atol=1e-6)
    np.testing.assert_allclose(poses[..., 0, 1], -poses[..., 1, 0], atol=1e-6)


def test_by_hand():
  """With weights of zero, each bias moves its own output of its own capsule alone."""
  apply, variables, x = compiled_decoder(similarity=False, deformations=True)
  params = jax.tree.map(jnp.zeros_like, variables["params"])
  params["presence_bias"] = params["presence_bias"].at[1, 0].set(1.0)
  params["vote_presence_bias"] = params["vote_presence_bias"].at[1, 2].set(2.0)
  params["vote_scale_bias"] = params["vote_scale_bias"].at[1, 0].set(-0.5).at[1, 1].set(-200.0)
  params["viewer_bias"] = params["viewer_bias"].at[1, 4].set(0.1)
  objects = jax.tree.map(lambda a: a[0], apply({"params": params}, x))
  # sigmoid(0) = 0.5; scales 0.51; softplus(0.5) = 0.974077, softplus(0) = 0.693147; tanh(0.5).
  close = functools.partial(np.testing.assert_allclose, rtol=1e-5)
  close(objects.poses[1], [[0.51, 0, 0.462117], [0, 0.51, 0]])
  close(objects.votes[1], [[0.2601, 0, 0.462117, 0, 0.2601, 0]] * PARTS)
  close(objects.vote_scale[1], [0.703147, 0.01, 0.984077])
  close(objects.vote_presence[1], [0.365529, 0.365529, 0.643914])
  for other in (0, 2, 3):
    close(objects.poses[other], [[0.51, 0, 0], [0, 0.51, 0]])
    close(objects.votes[other], [[0.2601, 0, 0, 0, 0.2601, 0]] * PARTS)
    close(objects.vote_scale[other], [0.984077] * PARTS)
    close(objects.vote_presence[other], [0.25] * PARTS)
  close(objects.presence, [0.25, 0.643914, 0.25, 0.25])
  np.testing.assert_array_equal(objects.presence_logits, [0, 1, 0, 0])  # zeros and a bias
  assert not objects.dynamic.any()


def test_fixed_vote_scale():
  apply, variables, x = compiled_decoder(learn_vote_scale=False)
  np.testing.assert_array_equal(apply(variables, x).vote_scale, np.ones((BATCH, OBJECTS, PARTS)))
  assert "vote_scale_bias" not in variables["params"]


def test_constant_noise_in_evaluation():
  """Noise of capsules and noise of votes are independent."""
  options = MODEL["object_decoder"] | {"noise_in_evaluation": True}
  module = ObjectDecoder(num_parts=PARTS, **options)
  x = jnp.zeros((50, OBJECTS, 5))
  params = jax.tree.map(jnp.zeros_like, random_variables(module, x, train=False)["params"])
  apply = compiled(functools.partial(module.apply, train=False))

  def noise_besides(surely_on):
    on = params | {surely_on: params[surely_on] + 200}
    return logit(np.asarray(apply({"params": on}, x).vote_presence, np.float64))

  capsule, vote = noise_besides("vote_presence_bias"), noise_besides("presence_bias")
  # Float32 probabilities from 0.1 to 0.9 give logits to 1e-6.
  assert np.ptp(capsule, axis=-1).max() < 1e-5
  assert np.ptp(vote, axis=-1).min() > 1e-3
  for noise in (capsule, vote):
    assert 1.5 < np.abs(noise).max() < 2 + 1e-4
  capsule = capsule[..., 0].ravel()
  # 200 independent pairs are correlated by 0.07 on average.
  assert abs(np.corrcoef(capsule, vote.ravel()[: capsule.size])[0, 1]) < 0.3
