"""The whole SCAE: where gradients flow and where not, losses, symmetries, noise, pictures."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import log_softmax, logsumexp

from scae_jax.training.objective import losses
from tests.test_math_routing import reference_routing
from tests.test_models_build import (
  BATCH,
  CANVAS,
  CLASSES,
  FEATURES,
  LOSS,
  OBJECTS,
  PARTS,
  TERMS,
  compiled,
  random_variables,
  tiny_batch,
  tiny_system,
)

KEYS = {"params": jax.random.key(0), "noise": jax.random.key(1)}
GROUPS = {
  "part_encoder/convnet": "convnet",
  "part_decoder/templates": "templates",
  "part_decoder/alphas": "alphas",
  "part_decoder/temperature": "temperature",
  "part_decoder/colour_mlp": "colour",
  "part_decoder/background_mean": "background",
  "part_decoder/background_logit": "background",
  "object_encoder": "object_encoder",
  "object_decoder": "object_decoder",
  "dummy_vote": "dummy_vote",
  "prior_probe": "prior_probe",
  "posterior_probe": "posterior_probe",
}


def sweeper(system, batch, *, train=False):
  """Compiled function of parameters and a key: gradient of every term, loss terms and output."""

  def stacked(variables, key):
    rngs = {"noise": key} if train else None
    output = system.module.apply(variables, batch, train=train, rngs=rngs)
    terms = system.loss_terms(output, batch, None)
    assert tuple(terms) == TERMS
    return jnp.stack(list(terms.values())), (terms, output)

  sweep = compiled(jax.jacrev(stacked, has_aux=True))

  def run(variables, key=KEYS["noise"]):
    jacobian, (terms, output) = jax.device_get(sweep(variables, key))
    return jacobian, terms, output

  return run


def group_gradients(jacobian, num_features=FEATURES):
  """Largest size of the gradient of each term to each group of parameters."""
  sizes = {term: {} for term in TERMS}

  def add(group, gradient):
    for i, term in enumerate(TERMS):
      largest = float(np.abs(gradient[i]).max(initial=0.0))
      sizes[term][group] = max(largest, sizes[term].get(group, 0.0))

  for path, gradient in jax.tree_util.tree_leaves_with_path(jacobian["params"]):
    name = "/".join(entry.key for entry in path)
    if name.startswith("part_encoder/pooling"):
      # Every part: six numbers of a pose, a presence logit, features, and attention if there is.
      columns = np.reshape(gradient, (*gradient.shape[:-1], PARTS, -1))
      edges = [6, 7, 7 + num_features]
      split = np.split(columns, edges, axis=-1)
      for group, piece in zip(("poses", "presence", "features", "attention"), split, strict=True):
        if piece.size:
          add(group, piece)
    else:
      add(next(group for start, group in GROUPS.items() if name.startswith(start)), gradient)
  return sizes


def assert_flows(sizes, expected):
  """Gradients are exactly zero everywhere but in the groups that are expected, by term."""
  for term in TERMS:
    flows = {group for group, size in sizes[term].items() if size > 0}
    assert all(np.isfinite(size) for size in sizes[term].values()), term
    assert flows == expected[term], term


DRAWN = {"convnet", "poses", "presence", "features", "attention", "templates", "alphas", "colour"}
DRAWN = DRAWN | {"background"}
# The object half, and through special features the encoder of parts.
OBJECT_HALF = {"convnet", "features", "attention", "object_encoder", "object_decoder"}
SPARSITY = ("prior_within", "prior_between", "posterior_within", "posterior_between")
PROBES = {"prior_probe": {"prior_probe"}, "posterior_probe": {"posterior_probe"}}


@pytest.fixture(scope="module")
def tiny():
  system, batch = tiny_system(), tiny_batch()
  return system, random_variables(system.module, batch, train=False), batch


@pytest.fixture(scope="module")
def run(tiny):
  """The published form, without noise."""
  return sweeper(tiny[0], tiny[2])


@pytest.fixture(scope="module")
def result(run, tiny):
  """Gradients by parameter, loss terms and output."""
  return run(tiny[1])


@pytest.fixture(scope="module")
def run_open():
  """In training, and with gradients that are not stopped."""
  return sweeper(tiny_system(stop_gradients="none"), tiny_batch(), train=True)


def test_gradients_flow_as_published(result):
  """Objects learn from parts as from constants, but for special features; probes learn alone."""
  assert_flows(
    group_gradients(result[0]),
    {"image": DRAWN, "parts": OBJECT_HALF, "dynamic": OBJECT_HALF, **PROBES}
    | dict.fromkeys(SPARSITY, OBJECT_HALF),
  )


def test_gradients_reach_only_the_heads_that_a_term_is_about(result):
  decoder = result[0]["params"]["object_decoder"]
  heads = ("viewer_bias", "object_part", "presence_bias", "vote_presence_bias", "vote_scale_bias")
  prior = {"presence_bias", "vote_presence_bias"}
  expected = {"parts": set(heads), "prior_within": prior, "prior_between": prior, "dynamic": set()}
  for term, wanted in expected.items():
    flows = {head for head in heads if np.any(decoder[head][TERMS.index(term)])}
    assert flows == wanted, term


def test_without_stop_gradients_they_flow(tiny, run_open):
  jacobian, _, _ = run_open(tiny[1])
  open_half = OBJECT_HALF | {"poses", "presence", "templates", "colour"}
  assert_flows(
    group_gradients(jacobian),
    {"image": DRAWN, "parts": open_half, "dynamic": open_half, **PROBES}
    | dict.fromkeys(SPARSITY, open_half),
  )


def test_objects_that_learn_alone(tiny):
  """With all gradients stopped the image alone trains what finds parts."""
  jacobian, _, _ = sweeper(tiny_system(stop_gradients="all"), tiny[2])(tiny[1])
  objects = {"object_encoder", "object_decoder"}
  assert_flows(
    group_gradients(jacobian),
    {"image": DRAWN, "parts": objects, "dynamic": objects, **PROBES}
    | dict.fromkeys(SPARSITY, objects),
  )


def test_gradient_of_features_follows_its_schedule(tiny):
  """What objects make of the part encoder's gradient: none, half, all; their own is as it was."""
  _, variables, batch = tiny
  loss = LOSS | {"weights": LOSS["weights"] | {"image": 0.0}}

  def gradients(step, **changes):
    system = tiny_system(loss=loss, **changes)

    def total(params):
      return losses(system, params, batch, step=step, noise_key=jax.random.key(0))[0]

    return jax.device_get(jax.jit(jax.value_and_grad(total))(variables["params"]))

  points = ((10, 0.0), (20, 1.0), (30, 0.5))
  value, full = gradients(0)
  assert np.abs(full["part_encoder"]["convnet"]["kernel_0"]).max() > 1e-4
  for step, factor in ((0, 0.0), (15, 0.5), (20, 1.0), (99, 0.5)):
    same, scaled = gradients(step, feature_gradient=points)
    np.testing.assert_allclose(same, value, rtol=1e-6)
    part_encoder = jax.tree.map(functools.partial(np.multiply, factor), full["part_encoder"])
    wanted = full | {"part_encoder": part_encoder}
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)  # two programs
    jax.tree.map(close, scaled, wanted)


def test_noise_of_training(tiny, result, run_open):
  first, again, other = (run_open(tiny[1], jax.random.key(i))[2] for i in (0, 0, 1))
  for stage, name in (("parts", "presence"), ("objects", "vote_presence")):
    one, same, another, clean = (
      getattr(getattr(output, stage), name) for output in (first, again, other, result[2])
    )
    np.testing.assert_array_equal(one, same)  # one program, one key
    for different in (another, clean):
      assert np.abs(one - different).max() > 0.05
  # Noise is on presences alone: what does not read them is untouched, up to another compilation.
  np.testing.assert_allclose(first.parts.poses, result[2].parts.poses, atol=1e-5)
  np.testing.assert_allclose(first.parts.features, result[2].parts.features, atol=1e-5)


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
  expected["prior_within"] = np.mean((presence.sum(axis=1) - OBJECTS / CLASSES) ** 2)
  expected["prior_between"] = np.mean((presence.sum(axis=0) - BATCH / CLASSES) ** 2)
  expected["posterior_within"] = np.mean([stats.entropy(row) for row in masses])
  expected["posterior_between"] = -stats.entropy(masses.sum(axis=0))
  for name, activation in (("prior", presence), ("posterior", masses)):
    probe = tiny[1]["params"][f"{name}_probe"]
    logits = activation @ np.asarray(probe["kernel"]) + np.asarray(probe["bias"])
    chosen = log_softmax(logits, axis=1)[np.arange(BATCH), batch["label"]]
    expected[f"{name}_probe"] = -chosen.mean()
  for term in TERMS:
    # Sums of 144 pixels and of densities of size 10, in float32.
    np.testing.assert_allclose(terms[term], expected[term], rtol=2e-5, atol=1e-5, err_msg=term)


def test_measures_and_features(tiny, result):
  system, _, batch = tiny
  output = result[2]
  measures = compiled(system.metrics)(output, batch)
  mixture = output.reconstruction.mixture
  winner = mixture.log_mixing.argmax(axis=1)
  shown = np.take_along_axis(mixture.mean, winner[:, None, ..., None], axis=1)[:, 0]
  error = ((shown - batch["image"]) ** 2).sum(axis=(1, 2, 3))
  np.testing.assert_allclose(measures["squared_error"], error, rtol=1e-5)  # sums of 144
  for name in ("prior", "posterior"):
    right = getattr(output, f"{name}_logits").argmax(axis=1) == batch["label"]
    np.testing.assert_array_equal(measures[f"{name}_accuracy"], right.astype(np.float32))
  features = system.features(output)
  np.testing.assert_array_equal(features["prior"], output.objects.presence)
  np.testing.assert_array_equal(features["posterior"], output.mass)
  assert set(features) == {"prior", "posterior"}


def permute_parts(variables, order):
  """The same model with its parts in another order."""
  params = jax.tree.map(np.asarray, variables["params"])
  dense = params["part_encoder"]["pooling"]["conv_1x1"]
  for name, value in dense.items():
    columns = value.reshape(*value.shape[:-1], PARTS, -1)
    dense[name] = columns[..., order, :].reshape(value.shape)
  for name in ("templates", "alphas"):
    params["part_decoder"][name] = params["part_decoder"][name][order]
  decoder = params["object_decoder"]
  for name in ("object_part", "vote_presence_bias", "vote_scale_bias"):
    decoder[name] = decoder[name][:, order]
  kernel = decoder["outputs"]["capsules"]["dense_1"]["kernel"]
  sizes = np.cumsum([6, 1, PARTS, PARTS])
  viewer, presence, *votes = np.split(kernel, sizes, axis=-1)
  votes = [v.reshape(*v.shape[:-1], PARTS, -1)[..., order, :].reshape(v.shape) for v in votes]
  kernel = np.concatenate([viewer, presence, *votes], axis=-1)
  decoder["outputs"]["capsules"]["dense_1"]["kernel"] = kernel
  params["dummy_vote"] = params["dummy_vote"][order]
  return {"params": params}


def test_permuting_parts_leaves_objects_as_they_are(tiny, run, result):
  order = np.array([2, 0, 1])
  _, terms, before = result
  _, permuted_terms, after = run(permute_parts(tiny[1], order))
  # The same sums in another order, through two layers of attention.
  close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
  for name in ("poses", "presence"):
    close(getattr(after.objects, name), getattr(before.objects, name))
    close(getattr(after.parts, name), getattr(before.parts, name)[:, order])
  for name in ("votes", "vote_scale", "vote_presence", "dynamic"):
    close(getattr(after.objects, name), getattr(before.objects, name)[:, :, order])
  close(after.mass, before.mass)
  np.testing.assert_array_equal(after.routing.winner, before.routing.winner[:, order])
  close(list(permuted_terms.values()), list(terms.values()))
  assert np.abs(after.parts.poses - before.parts.poses).max() > 0.01


def test_encode_takes_images_and_finds_what_the_whole_model_finds(tiny, result):
  system, variables, batch = tiny
  encode = compiled(functools.partial(system.module.apply, train=False, method="encode"))
  found, output = encode(variables, batch["image"]), result[2]
  for name in ("parts", "colours", "objects", "routing", "part_log_prob", "mass"):
    # Two compilations; positions of parts are tanh(5 x).
    chex.assert_trees_all_close(getattr(found, name), getattr(output, name), atol=1e-4)


def flops(function, *arguments):
  return jax.jit(function).lower(*arguments).cost_analysis()["flops"]


def test_a_training_step_does_not_pay_for_pictures(tiny):
  """The loss draws once; pictures draw once more for all objects, and once for each."""
  module, batch = tiny[0].module, tiny[2]

  def cost(function, num_objects):
    system = tiny_system(num_objects=num_objects)
    variables = jax.eval_shape(functools.partial(system.module.init, train=False), KEYS, batch)
    return flops(functools.partial(function, system), variables, batch)

  def loss(system, variables, batch):
    output = system.module.apply(variables, batch, train=False)
    return system.loss_terms(output, batch, None)

  def pictures(system, variables, batch):
    return system.pictures(variables, batch)

  def draw(params, poses, presence, colours):
    return module.part_decoder.apply({"params": params}, poses, presence, colours, CANVAS)

  params = tiny[1]["params"]["part_decoder"]
  shapes = ((PARTS, 2, 3), (PARTS,), (PARTS, 1))
  once = flops(draw, params, *(jnp.zeros((BATCH, *shape)) for shape in shapes))
  few, many = cost(loss, 2), cost(loss, 6)
  assert many - few < once
  assert cost(pictures, 2) - few > 1.9 * once
