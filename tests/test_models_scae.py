"""The whole SCAE: where gradients flow and where not, losses, symmetries, noise, pictures."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import log_softmax, logsumexp

from scae_jax.math import sparsity
from scae_jax.training.step import losses
from tests.references import reference_routing, reference_sparsity
from tests.tiny import (
  BATCH,
  CANVAS,
  CLASSES,
  LOSS,
  PARTS,
  TERMS,
  assert_flows,
  compiled,
  random_variables,
  sweeper,
  tiny_batch,
  tiny_system,
)

DRAWN = {"convnet", "poses", "presence", "features", "attention", "templates", "alphas", "colour"}
DRAWN = DRAWN | {"background"}
# The object half, and through special features the encoder of parts.
OBJECT_HALF = {"convnet", "features", "attention", "object_encoder", "object_decoder"}


@pytest.fixture(scope="module")
def tiny():
  system, batch = tiny_system(), tiny_batch()
  return system, random_variables(system.module, batch, train=False), batch


@pytest.fixture(scope="module")
def result(tiny):
  """Gradients by parameter, loss terms and output of the published form, without noise."""
  system, variables, batch = tiny
  return sweeper(system, batch)(variables)


@pytest.fixture(scope="module")
def run_open():
  """In training, and with gradients that are not stopped."""
  return sweeper(tiny_system(stop_gradients="none"), tiny_batch(), train=True)


OPEN_HALF = OBJECT_HALF | {"poses", "presence", "templates", "colour"}


@functools.cache
def parts_and_encoder(frame):
  """The parts of a batch, and the compiled object half of a model with this frame."""
  system, batch = tiny_system(**{"object_encoder.frame": frame}), tiny_batch()
  variables = random_variables(system.module, batch, train=False)
  apply = functools.partial(system.module.apply, train=False)
  parts = compiled(apply)(variables, batch).parts
  encode = compiled(functools.partial(apply, method=type(system.module).encode_parts))
  return parts, functools.partial(encode, variables)


@pytest.mark.parametrize("moved", [(1.0, 0.3, -0.4), (0.6, 0.2, 0.1)])
def test_objects_in_the_frame_of_their_parts_follow_them(moved):
  """If all parts move or scale, poses of objects do too; presences and posteriors stay."""
  scale, right, down = moved
  results = {}
  for frame in ("image", "parts"):
    parts, encode = parts_and_encoder(frame)
    shift = np.array([[0, 0, right], [0, 0, down]])
    poses = jnp.asarray(scale * np.asarray(parts.poses) + shift, jnp.float32)
    before, after = jax.device_get((encode(parts), encode(parts.replace(poses=poses))))
    close = functools.partial(np.allclose, rtol=1e-4, atol=1e-4)
    flat_shift = np.array([0, 0, right, 0, 0, down])
    results[frame] = [
      close(after.objects.poses, scale * before.objects.poses + shift),
      close(after.objects.votes, scale * before.objects.votes + flat_shift),
      *(
        close(value, before_value)
        for value, before_value in zip(*map(unmoved, (after, before)), strict=True)
      ),
    ]
  assert all(results["parts"])
  assert not any(results["image"])


def unmoved(encoding):
  """What does not change if the frame of the objects moves with the parts."""
  objects, routing = encoding.objects, encoding.routing
  of_objects = (objects.presence, objects.vote_presence, objects.vote_scale, objects.object_part)
  return *of_objects, routing.posterior, encoding.mass, encoding.part_log_prob


def test_image_moved_by_whole_cells_has_the_same_objects_moved():
  """Parts of cells and objects in their frame; drawn from soft votes, the image moves, too."""
  options = {"part_encoder.places": "cells", "object_encoder.frame": "parts"}
  system = tiny_system(reconstruction_vote="soft", **options)
  ink = np.random.RandomState(0).uniform(size=(BATCH, 5, 4, 1))
  rows, columns = 4, -2  # the stride is 2
  image = np.pad(ink, ((0, 0), (2, CANVAS - 7), (4, CANVAS - 8), (0, 0))).astype(np.float32)
  moved = np.roll(image, (rows, columns), axis=(1, 2))
  batch = tiny_batch()
  variables = random_variables(system.module, batch, train=False)
  apply = compiled(functools.partial(system.module.apply, train=False))
  before, after = jax.device_get(
    [apply(variables, batch | {"image": jnp.asarray(half)}) for half in (image, moved)]
  )
  shift = 2 / (CANVAS - 1) * np.array([[0, 0, columns], [0, 0, rows]])
  close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
  close(after.parts.poses, before.parts.poses + shift)
  close(after.objects.poses, before.objects.poses + shift)
  for value, before_value in zip(unmoved(after), unmoved(before), strict=True):
    close(value, before_value)
  drawn_before, drawn = before.reconstruction.mixture, after.reconstruction.mixture
  inside = (slice(None), slice(None), slice(rows, CANVAS), slice(0, CANVAS + columns))
  there = np.roll(drawn_before.mean, (rows, columns), axis=(2, 3))
  close(drawn.mean[inside], there[inside])
  encode_moved = functools.partial(system.module.apply, method=type(system.module).encode_moved)
  image_map = jnp.asarray(np.eye(2, 3) + shift, jnp.float32)
  moved_parts = encode_moved(variables, batch | {"image": jnp.asarray(image)}, image_map)
  close(moved_parts.part_poses, after.parts.poses)
  close(moved_parts.posterior_mass, after.mass)


@pytest.mark.parametrize(("stop", "reached"), [("parts", OBJECT_HALF), ("none", OPEN_HALF)])
def test_gradients_flow_where_they_are_not_stopped(stop, reached, tiny, result, run_open):
  """As published, the object half sees part poses and presences as constants.

  Where all gradients are stopped: test_models_options.py.
  """
  jacobian = result[0] if stop == "parts" else run_open(tiny[1])[0]
  assert_flows(jacobian, image=DRAWN, objects=reached, dynamic=reached)


def test_gradient_of_features_follows_its_schedule(tiny, result):
  """The objects' gradient to the part encoder is scaled; their own gradient is not."""
  _, variables, batch = tiny
  jacobian, terms, _ = result
  no_noise = {"part_encoder.presence_noise": 0.0, "object_decoder.presence_noise": 0.0}
  schedule = ((10, 0.0), (20, 1.0), (30, 0.5))
  loss = LOSS | {"weights": LOSS["weights"] | {"image": 0.0}}
  system = tiny_system(loss=loss, feature_gradient=schedule, **no_noise)

  def total(params, step):
    return losses(system, params, batch, step=step, noise_key=None)[0]

  run = compiled(jax.value_and_grad(total))
  of_objects = [i for i, term in enumerate(TERMS) if term != "image"]
  full = jax.tree.map(lambda rows: rows[of_objects].sum(axis=0), jacobian["params"])
  assert np.abs(full["part_encoder"]["convnet"]["kernel_0"]).max() > 1e-4
  close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)  # two programs
  for step, factor in ((0, 0.0), (15, 0.5), (20, 1.0), (99, 0.5)):
    same, scaled = jax.device_get(run(variables["params"], jnp.int32(step)))
    np.testing.assert_allclose(same, sum(terms[TERMS[i]] for i in of_objects), rtol=1e-5)
    part_encoder = jax.tree.map(functools.partial(np.multiply, factor), full["part_encoder"])
    jax.tree.map(close, scaled, full | {"part_encoder": part_encoder})


def test_no_gradient_of_the_objects_reaches_features_at_a_factor_of_0():
  """Also where gradients are not stopped, and colours of templates are a second path."""
  system, batch = tiny_system(stop_gradients="none"), tiny_batch()
  variables = random_variables(system.module, batch, train=False)
  apply = functools.partial(system.module.apply, variables, train=False)
  parts = compiled(apply)(batch).parts

  def log_prob(features, factor):
    changed = parts.replace(features=features)
    encoded = apply(changed, feature_gradient=factor, method=type(system.module).encode_parts)
    return encoded.part_log_prob.sum()

  gradient = compiled(jax.grad(log_prob))
  assert np.abs(gradient(parts.features, jnp.float32(1))).max() > 1e-3
  assert not np.any(gradient(parts.features, jnp.float32(0)))


def test_noise_of_training(tiny, result, run_open):
  first = run_open(tiny[1], jax.random.key(0))[2]
  again = run_open(tiny[1], jax.random.key(0))[2]
  other = run_open(tiny[1], jax.random.key(1))[2]
  clean = result[2]
  # One program, one key.
  np.testing.assert_array_equal(first.parts.presence, again.parts.presence)
  np.testing.assert_array_equal(first.objects.vote_presence, again.objects.vote_presence)
  for different in (other, clean):
    assert np.abs(first.parts.presence - different.parts.presence).max() > 0.05
    assert np.abs(first.objects.vote_presence - different.objects.vote_presence).max() > 0.05
  # Noise is on presences alone; poses and features differ by another compilation.
  np.testing.assert_allclose(first.parts.poses, clean.parts.poses, atol=1e-5)
  np.testing.assert_allclose(first.parts.features, clean.parts.features, atol=1e-5)


def test_loss_terms_against_numpy(tiny, result):
  """Every term from the arrays of the output, by the formulas of Kosiorek et al. 2019."""
  _, terms, output = result
  batch = jax.device_get(tiny[2])
  expected = dict.fromkeys(TERMS, 0.0)
  masses = []
  for b in range(BATCH):
    mixture = output.reconstruction.mixture
    density = stats.norm.logpdf(batch["image"][b][None], mixture.mean[b], mixture.scale[b])
    pixels = logsumexp(mixture.log_mixing[b] + density.sum(axis=-1), axis=0)
    expected["image"] -= pixels.sum() / BATCH
    objects = output.objects
    log_prob, posterior = reference_routing(
      output.parts.poses[b].reshape(PARTS, 6),
      objects.votes[b],
      objects.vote_scale[b],
      objects.vote_presence[b],
      normalize_mixing=False,
    )
    np.testing.assert_allclose(output.routing.posterior[b], posterior, atol=1e-5)
    expected["parts"] -= np.sum(output.parts.presence[b] * log_prob) / BATCH
    masses.append(posterior[:-1].sum(axis=1) / PARTS)
    expected["dynamic"] += np.sum(objects.dynamic[b] ** 2) / 2 / BATCH
  masses, presence = np.array(masses), output.objects.presence
  np.testing.assert_allclose(output.mass, masses, atol=1e-5)
  expected |= reference_sparsity(presence, masses, CLASSES)
  for name, activation in (("prior", presence), ("posterior", masses)):
    probe = tiny[1]["params"][f"{name}_probe"]
    logits = activation @ np.asarray(probe["kernel"]) + np.asarray(probe["bias"])
    chosen = log_softmax(logits, axis=1)[np.arange(BATCH), batch["label"]]
    expected[f"{name}_probe"] = -chosen.mean()
  for term in TERMS:
    # Sums of 144 pixels and of densities of size 10, in float32.
    np.testing.assert_allclose(terms[term], expected[term], rtol=2e-5, atol=1e-5, err_msg=term)


def test_two_views_of_an_image_agree_in_training_alone(tiny):
  loss = LOSS | {"weights": LOSS["weights"] | {"views": 2.0}}
  system, batch = tiny_system(loss=loss, two_views=True), tiny_batch(batch=4)

  @compiled
  def terms_of(variables):
    output = system.module.apply(variables, batch, train=False)
    one_view = tiny[0].loss_terms(output, batch, 7)
    held_out = system.loss_terms(output, batch, None)
    training = system.loss_terms(output, batch, 7)
    return one_view, held_out, training, sparsity.view_divergence(output.mass)

  one_view, held_out, training, divergence = terms_of(tiny[1])
  np.testing.assert_allclose(training.pop("views"), divergence, rtol=1e-6)
  assert divergence > 0
  assert training.keys() == held_out.keys() == one_view.keys()
  with pytest.raises(ValueError, match=r"weights\.views.*two_views.* 2\b"):
    tiny_system(loss=loss)


def test_metrics_and_features(tiny, result):
  system, _, batch = tiny
  output = result[2]
  metrics = compiled(system.metrics)(output, batch)
  mixture = output.reconstruction.mixture
  winner = mixture.log_mixing.argmax(axis=1)
  reconstruction = np.take_along_axis(mixture.mean, winner[:, None, ..., None], axis=1)[:, 0]
  error = ((reconstruction - batch["image"]) ** 2).sum(axis=(1, 2, 3))
  np.testing.assert_allclose(metrics["squared_error"], error, rtol=1e-5)  # sums of 144
  for name in ("prior", "posterior"):
    right = getattr(output, f"{name}_logits").argmax(axis=1) == batch["label"]
    np.testing.assert_array_equal(metrics[f"{name}_accuracy"], right.astype(np.float32))
  features = system.encoding(output).features
  np.testing.assert_array_equal(features["prior"], output.objects.presence)
  np.testing.assert_array_equal(features["posterior"], output.mass)
  assert set(features) == {"prior", "posterior"}
