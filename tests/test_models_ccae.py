"""CCAE: votes, losses and metrics against NumPy, gradients, symmetries."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, log_expit

from scae_jax.data.constellations import scenes
from scae_jax.models import ccae
from scae_jax.models.ccae import encoding, point_votes
from scae_jax.models.scae.ocae import ObjectCapsules
from tests.references import reference_points, reference_sparsity
from tests.tiny import CCAE_TERMS as TERMS
from tests.tiny import compiled, random_variables, tiny
from tests.toy_data import SCENES

CAPSULES, VOTES, POINTS, PATTERNS, BATCH = 3, 4, 11, 3, 5
NOISE = {"noise": jax.random.key(1)}


def tiny_batch():
  return scenes(jax.random.key(0), SCENES, BATCH)


@pytest.fixture(scope="module", params=["capsules", "mlp"])
def both_decoders(request):
  """Of both decoders: the system, parameters, and a compiled function of parameters, batch and key
  that returns gradients of every term, terms, output and metrics; in training."""
  system = tiny(ccae, decoder=request.param)
  variables = random_variables(system.module, tiny_batch(), train=False)

  def stacked(variables, batch, key):
    output = system.module.apply(variables, batch, train=True, rngs={"noise": key})
    terms = system.loss_terms(output, batch, None)
    assert tuple(terms) == TERMS
    return jnp.stack(list(terms.values())), (terms, output)

  run = compiled(jax.jacrev(stacked, has_aux=True))

  def call(variables=variables, batch=None, key=NOISE["noise"]):
    jacobian, (terms, output) = jax.device_get(run(variables, batch or tiny_batch(), key))
    return jacobian["params"], terms, output

  return request.param, variables, call


@pytest.fixture(scope="module")
def capsules():
  """The capsule model without noise: parameters and a compiled function of them and a batch."""
  system = tiny(ccae)
  variables = random_variables(system.module, tiny_batch(), train=False)

  def run(variables, batch):
    output = system.module.apply(variables, batch, train=False)
    return output, system.metrics(output, batch), system.pictures(variables, batch)

  run = compiled(run)
  return variables, lambda v, b: jax.device_get(run(v, b))


def moved(gradients):
  return any(np.any(gradient) for gradient in jax.tree.leaves(gradients))


def test_a_vote_is_the_translation_of_a_pose():
  fields = dict.fromkeys(
    (field.name for field in dataclasses.fields(ObjectCapsules)), jnp.zeros(())
  )
  points = point_votes(ObjectCapsules(**fields | {"votes": jnp.arange(6.0)}))
  np.testing.assert_array_equal(points.votes, [2, 5])


def test_loss_terms_against_numpy(both_decoders):
  """Every term from the arrays of the output, by the formulas of Kosiorek et al. 2019."""
  _, _, call = both_decoders
  _, terms, output = call()
  batch, objects = jax.device_get(tiny_batch()), output.objects
  expected = dict.fromkeys(TERMS, 0.0)
  masses = np.zeros((BATCH, CAPSULES))
  for b in range(BATCH):
    log_prob, posterior = reference_points(
      batch["points"][b], objects.votes[b], objects.vote_scale[b], objects.vote_presence[b]
    )
    expected["points"] -= np.sum(log_prob * batch["presence"][b]) / BATCH
    by_capsule = posterior[:-1].reshape(CAPSULES, VOTES, POINTS).sum(axis=1)
    masses[b] = (by_capsule * batch["presence"][b]).sum(axis=1) / POINTS
    winner = by_capsule.argmax(axis=0)
    for k in range(CAPSULES):
      won = np.sum((winner == k) & (batch["presence"][b] > 0))
      assert output.won[b, k] == won
      logit = objects.presence_logits[b, k]
      if won:
        expected["presence"] -= (log_expit(logit) if won >= 2 else log_expit(-logit)) / BATCH
    expected["dynamic"] += np.sum(objects.dynamic[b] ** 2) / 2 / BATCH
  np.testing.assert_allclose(output.mass, masses, atol=1e-5)
  presence = objects.vote_presence.max(axis=-1)
  # A compiler may compute probabilities anew where it takes their largest.
  np.testing.assert_allclose(objects.presence, presence, rtol=1e-6)
  expected |= reference_sparsity(presence, masses, PATTERNS)
  for term in TERMS:
    # Sums of 35 points of densities of size 10, in float32.
    np.testing.assert_allclose(terms[term], expected[term], rtol=2e-5, atol=1e-5, err_msg=term)


def test_gradients_reach_the_heads_that_a_term_is_about(both_decoders):
  """Seen by the biases of the capsule decoder; the baseline has one layer for all heads."""
  decoder, _, call = both_decoders
  jacobian, _, _ = call()
  for i, term in enumerate(TERMS):
    of_term = jax.tree.map(lambda gradient, i=i: gradient[i], jacobian)
    dynamic_of_mlp = decoder == "mlp" and term == "dynamic"
    for part in ("object_encoder", "object_decoder"):
      assert moved(of_term[part]) != dynamic_of_mlp, (term, part)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(of_term))
  if decoder == "mlp":
    return
  heads = ("viewer_bias", "object_part", "presence_bias", "vote_presence_bias", "vote_scale_bias")
  presences = {"presence_bias", "vote_presence_bias"}
  expected = {
    "points": set(heads),
    "presence": {"presence_bias"},
    "prior_within": presences,
    "prior_between": presences,
    "dynamic": set(),
  }
  for term, wanted in expected.items():
    i = TERMS.index(term)
    flows = {head for head in heads if np.any(jacobian["object_decoder"][head][i])}
    assert flows == wanted, term


def test_capsules_are_invariant_to_the_order_of_points(both_decoders):
  """Permuted slots give the same capsules; points of absent slots do not matter."""
  _, _, call = both_decoders
  batch = tiny_batch()
  order = np.random.RandomState(0).permutation(POINTS)
  _, terms, before = call()
  _, permuted, after = call(batch=jax.tree.map(lambda x: x[:, order], batch))
  close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)  # other order of sums
  close(after.objects.votes, before.objects.votes)
  close(after.routing.posterior, before.routing.posterior[..., order])
  close(list(permuted.values()), list(terms.values()))

  absent = batch["presence"][..., None] == 0
  assert absent.any()
  _, same, _ = call(batch=batch | {"points": jnp.where(absent, 0.7, batch["points"])})
  close(list(same.values()), list(terms.values()))
  _, other, _ = call(batch=batch | {"points": jnp.where(absent, batch["points"], 0.7)})
  assert abs(other["points"] - terms["points"]) > 0.01


@pytest.mark.parametrize("mask", ["log_presence", "none"])
def test_capsules_in_the_frame_of_the_points_follow_them(mask):
  """The scene is moved and scaled: votes follow, and the same capsules win the same points.

  Absent points stay at 0, where an encoder without a mask reads them, too.
  """
  batch, shift = tiny_batch(), np.array([0.3, -0.2])
  batch["presence"] = jnp.ones((BATCH, POINTS)).at[:, -1].set(0)
  outputs = {}
  for frame in ("image", "parts"):
    system = tiny(ccae, **{"object_encoder.frame": frame, "object_encoder.mask": mask})
    variables = random_variables(system.module, batch, train=False)
    apply = compiled(functools.partial(system.module.apply, train=False))
    for name, points in (
      ("as it is", batch["points"]),
      ("moved", 0.5 * np.array(batch["points"]) + shift),
    ):
      points = np.where(batch["presence"][..., None] > 0, points, 0.0)
      scene = batch | {"points": jnp.asarray(points, jnp.float32)}
      outputs[frame, name] = jax.device_get(apply(variables, scene))
  close = functools.partial(np.allclose, rtol=1e-4, atol=1e-4)
  for frame, follows in (("image", False), ("parts", True)):
    before, after = outputs[frame, "as it is"], outputs[frame, "moved"]
    assert close(after.objects.votes, 0.5 * before.objects.votes + shift) == follows
    assert close(after.routing.posterior, before.routing.posterior) == follows
    assert close(after.log_prob, before.log_prob) == follows


def test_a_scene_without_points_has_finite_gradients(both_decoders):
  """Such scenes are never drawn; given one, no point is explained."""
  _, _, call = both_decoders
  batch = tiny_batch() | {"presence": jnp.zeros((BATCH, POINTS))}
  jacobian, terms, output = call(batch=batch)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((jacobian, terms)))
  assert terms["points"] == 0  # sums of zeros, here and below
  assert not output.won.any()
  assert terms["presence"] == 0


def test_metrics_against_brute_force(capsules):
  variables, run = capsules
  batch = jax.device_get(tiny_batch())
  output, metrics, _ = run(variables, batch)
  encoded = jax.device_get(encoding(output))
  groups = {"true_presence": encoded.point_winner, "predicted_presence": encoded.groups}
  for name in groups:
    for b in range(BATCH):
      there = batch["presence"][b] > 0
      true, groups_of_points = batch["pattern"][b][there], groups[name][b][there]
      matchings = itertools.permutations(range(CAPSULES), PATTERNS)
      best = max(np.mean(np.array(m)[true] == groups_of_points) for m in matchings)
      np.testing.assert_allclose(metrics[f"accuracy_{name}"][b], best, rtol=1e-6)
  dummy = output.routing.posterior.argmax(axis=1) == CAPSULES
  share = (dummy * batch["presence"]).sum(axis=1) / batch["presence"].sum(axis=1)
  np.testing.assert_allclose(metrics["unexplained_points"], share, rtol=1e-6)


def test_segments_are_of_winners_and_of_those_that_are_present(capsules):
  variables, run = capsules
  output, _, _ = run(variables, tiny_batch())
  logits = np.tile(np.float32([1, -1, 1]), (BATCH, 1))
  encoded = encoding(output.replace(objects=output.objects.replace(presence_logits=logits)))
  winner, there = output.routing.winner, tiny_batch()["presence"] > 0
  np.testing.assert_array_equal(encoded.point_winner, np.where(there, winner, -1))
  expected = np.where(there & (winner != 1), winner, -1)
  np.testing.assert_array_equal(encoded.groups, expected)
  assert set(np.unique(winner[there])) > {1}


def test_pictures_and_features_show_the_output(capsules):
  variables, run = capsules
  batch = jax.device_get(tiny_batch())
  output, _, pictures = run(variables, batch)
  fed = pictures["constellations"]
  for name in ("points", "presence", "pattern"):
    np.testing.assert_array_equal(fed[name], batch[name])
  np.testing.assert_array_equal(fed["capsule"], encoding(output).point_winner)
  # Votes of size 1, which a compiler may compute anew for what is drawn.
  np.testing.assert_allclose(fed["votes"], output.objects.votes, atol=1e-6)
  used = np.zeros((BATCH, CAPSULES, VOTES), bool)
  for b, n in np.argwhere(batch["presence"] > 0):
    used[b, output.routing.winner[b, n], output.routing.winning_vote[b, n]] = True
  np.testing.assert_array_equal(fed["vote_won"], used)
  np.testing.assert_allclose(
    fed["capsule_presence"], expit(output.objects.presence_logits), rtol=1e-5
  )
  features = tiny(ccae).encoding(output).features
  np.testing.assert_array_equal(features["prior"], output.objects.presence)
  np.testing.assert_array_equal(features["posterior"], output.mass)


def test_scales_that_are_not_learnt_are_one_for_all():
  """For the baseline; for capsules: test_models_objects.py."""
  system = tiny(ccae, decoder="mlp", **{"mlp_decoder.learn_vote_scale": False})
  variables = random_variables(system.module, tiny_batch(), train=False)
  objects = compiled(functools.partial(system.module.apply, train=False))(
    variables, tiny_batch()
  ).objects
  np.testing.assert_array_equal(objects.vote_scale, np.full((BATCH, CAPSULES, VOTES), 0.5))
  for values in (objects.votes, objects.vote_presence, objects.presence_logits):
    assert np.ptp(values) > 1e-3


def test_noise_of_training(both_decoders):
  _, _, call = both_decoders
  first, again, other = (call(key=jax.random.key(i))[2].objects for i in (0, 0, 1))
  np.testing.assert_array_equal(first.vote_presence, again.vote_presence)  # one program, one key
  assert np.abs(first.vote_presence - other.vote_presence).max() > 0.05
  for name in ("votes", "vote_scale", "presence_logits", "dynamic"):
    np.testing.assert_allclose(getattr(first, name), getattr(other, name), atol=1e-6)
