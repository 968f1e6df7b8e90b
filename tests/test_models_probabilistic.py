"""Probabilistic capsules as a whole: every term of the bound against NumPy, layers, samples.

Three layers are evaluated as in the article; two are trained with the options that it lacks.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from scae_jax.math.routing.selection import Capsules, Relations
from scae_jax.models import probabilistic
from scae_jax.models.probabilistic.autoencoder import ProbabilisticOutput, repeat
from scae_jax.models.system import Encoding
from tests.references import (
  assert_slope,
  in_float64,
  reference_concrete,
  reference_normal,
  reference_over,
  reference_selection,
  reference_vote,
  reference_warp,
)
from tests.tiny import PROBABILISTIC, compiled, random_variables, tiny

CANVAS, TEMPLATE, BATCH = 7, 3, 4
THREE = {"capsules": (3, 2, 2), "generative.shared_scales": True, "object_inference.num_layers": 0}
# What the article lacks: poses of children that are off summed out, a temperature of its own for
# the upper layer, and affinities with a limit.
OWN = {"upper_temperature": 0.3, "max_affinity": 1.5}
tiny_system = functools.partial(tiny, probabilistic)


def tiny_batch(batch=BATCH):
  rng = np.random.RandomState(0)
  image = rng.uniform(0, 1, (batch, CANVAS, CANVAS, 1)).astype(np.float32)
  return {"image": jnp.asarray(image), "label": jnp.zeros(batch, jnp.int32)}


def tiny_variables(system, scale=0.3):
  return random_variables(system.module, tiny_batch(), scale=scale, train=True)


class Tiny:
  """A tiny system, its variables, and its compiled functions.

  `run(variables, batch, key)`: output and loss terms, in training, or, without a key, evaluation.
  `infer(variables, image, key)`: posteriors and samples.
  """

  def __init__(self, **changes):
    self.system = tiny_system(**changes)
    self.module = self.system.module
    self.variables = tiny_variables(self.system)
    self.infer = compiled(functools.partial(self.module.apply, method="infer"))

    @compiled
    def run(variables, batch, key=None):
      rngs = None if key is None else {"noise": key}
      output = self.module.apply(variables, batch, train=key is not None, rngs=rngs)
      return output, self.system.loss_terms(output, batch, None)

    self.run = run


@pytest.fixture(scope="module")
def two():
  return Tiny(
    off_poses="summed_out", **{f"generative.{name}": value for name, value in OWN.items()}
  )


@pytest.fixture(scope="module")
def trained(two):
  """Output and loss terms of two layers, and the key that the module derives."""
  variables, keys = two.variables, {"noise": jax.random.key(3)}
  key = two.module.apply(variables, rngs=keys, method=lambda module: module.make_rng("noise"))
  return *jax.device_get(two.run(variables, tiny_batch(), keys["noise"])), key


@pytest.fixture(scope="module")
def three():
  """Three layers with shared deviations; without attention, to compile faster."""
  return Tiny(**THREE)


@pytest.fixture(scope="module")
def evaluated(three):
  """Output and loss terms of three layers."""
  return jax.device_get(three.run(three.variables, tiny_batch()))


def reference_relations(params, layer, options):
  """Relations from the parameters, as documented."""
  p = {name: params[f"{name}_{layer}"] for name in ("affinity", "presence", "offset", "scale")}
  scales = options["min_scale"] + np.log1p(np.exp(p["scale"]))
  return Relations(
    affinity_logits=log_affinity(p["affinity"], options.get("max_affinity")),
    dummy_logit=np.log(options["dummy_affinity"]),
    presence_logits=p["presence"],
    offsets=p["offset"],
    scales=np.broadcast_to(scales, (*p["affinity"].shape, 6)),  # which parents may share
    broad_scale=options["broad_scale"],
    temperature=temperature_of(layer - 1, options),
  )


def log_affinity(raw, limit):
  """Log affinity from its parameter; affinities start at 1 and stay below the limit, if any."""
  return np.log(limit * expit(raw - np.log(limit - 1))) if limit else raw


def temperature_of(layer, options):
  """The temperature of relaxed presences of a layer; layer 0 is the parts."""
  return options.get("upper_temperature" if layer else "temperature", options["temperature"])


def reference_parts(params, parts):
  """Every part's warped template times alpha, and its alpha, both times its presence."""
  colours, alphas = [], []
  for m, (logit, pose) in enumerate(zip(parts.presence_logits, parts.poses, strict=True)):
    template, alpha = expit(params["templates"][m]), expit(params["alphas"][m])
    warped = reference_warp(np.concatenate([template * alpha, alpha], -1), pose, CANVAS, CANVAS)
    colours.append(expit(logit) * warped[..., :-1])
    alphas.append(expit(logit) * warped[..., -1])
  return np.array(colours), np.array(alphas)


def painted(params, parts):
  colours, alphas = reference_parts(params, parts)
  # The operator of the article multiplies a colour by its alpha: here that was done before warping.
  plain = colours / np.where(alphas > 0, alphas, 1)[..., None]
  return reference_over(plain, alphas)


def reference_terms(params, options, image, posteriors, layers, *, summed_out=False):
  """The negative bound of one image, one term at a time: equation 8 and appendix A.

  Where poses of children that are off are summed out, their densities are the posterior's.
  """
  picture = painted(params, layers[0])
  terms = {"pixels": -stats.norm.logpdf(image, picture, options["pixel_scale"]).sum()}
  for i, (children, parents) in enumerate(itertools.pairwise(layers), start=1):
    relations, off = reference_relations(params, i, options), None
    if summed_out:
      belief = posteriors[i - 1]
      triples = zip(children.poses, belief.poses, belief.pose_scales, strict=True)
      off = [reference_normal(*triple) for triple in triples]
    terms[f"capsules_{i}"] = -reference_selection(children, parents, relations, off)[0]
  prior = np.log(options["top_presence"]) - np.log(1 - options["top_presence"])
  top = 0.0
  for logit, pose in zip(layers[-1].presence_logits, layers[-1].poses, strict=True):
    top += reference_concrete(logit, prior, temperature_of(len(layers) - 1, options))
    top += reference_normal(pose, np.eye(2, 3), options["top_scale"])
  terms[f"capsules_{len(layers)}"] = -top
  for i, (q, layer) in enumerate(zip(posteriors, layers, strict=True), start=1):
    t = temperature_of(i - 1, options)
    pairs = zip(layer.presence_logits, q.presence_logits, strict=True)
    terms[f"presences_{i}"] = sum(reference_concrete(value, logit, t) for value, logit in pairs)
    triples = zip(layer.poses, q.poses, q.pose_scales, strict=True)
    terms[f"poses_{i}"] = sum(reference_normal(*triple) for triple in triples)
  return terms


def assert_brute_force(tiny, output, key, *, summed_out=False, **changes):
  """Terms of an output are those of the references; their sum is the bound."""
  options = PROBABILISTIC["generative"] | changes
  image = tiny_batch()["image"]
  posteriors, layers = in_float64(jax.device_get(tiny.infer(tiny.variables, image, key)))
  params = in_float64(tiny.variables["params"]["generative"])
  assert tiny.system.loss_weights == dict.fromkeys(output.terms, 1.0)
  bound = tiny.system.metrics(output, tiny_batch())["bound"]
  for b in range(BATCH):
    posterior, layer = jax.tree.map(lambda x, b=b: x[b], (posteriors, layers))
    number = np.asarray(image[b], np.float64)
    expected = reference_terms(params, options, number, posterior, layer, summed_out=summed_out)
    assert set(expected) == set(output.terms)
    for name, value in expected.items():
      # Values up to 100 in float32; pictures are known to 1e-6 at every one of 49 pixels.
      actual = output.terms[name][b]
      np.testing.assert_allclose(actual, value, rtol=1e-5, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(bound[b], -sum(expected.values()), rtol=1e-5)


def test_bound_of_two_layers_is_that_of_brute_force(two, trained):
  """In training: all joint choices of all children are summed one by one."""
  output, terms, key = trained
  assert_brute_force(two, output, key, summed_out=True, **OWN)
  for name, value in terms.items():
    np.testing.assert_allclose(value, output.terms[name].mean(), rtol=1e-6)
  assert two.variables["params"]["generative"]["scale_1"].shape == (2, 3, 6)


def test_bound_of_three_layers_is_that_of_brute_force(three, evaluated):
  """In evaluation, where the samples' key is always the same."""
  assert_brute_force(three, evaluated[0], jax.random.key(0))
  assert three.variables["params"]["generative"]["scale_1"].shape == (1, 3, 6)


def test_several_samples_are_the_mean_of_single_ones(two, trained):
  """Two samples of each image equal one sample of each of two copies."""
  image, key = tiny_batch()["image"][: BATCH // 2], trained[2]
  copies = {"image": repeat(image, 2), "label": tiny_batch()["label"]}
  single, _ = two.run(two.variables, copies, jax.random.key(3))
  module = two.module.clone(num_samples=2)
  estimate = compiled(functools.partial(module.apply, method="estimate"))
  several, joints = estimate(two.variables, image, key)
  for name, values in single.terms.items():
    values = np.asarray(values).reshape(-1, 2)
    assert np.ptp(values, axis=1).min() > 1e-3, "samples differ"
    np.testing.assert_allclose(several[name], values.mean(axis=1), rtol=1e-5)
  for i, joint in enumerate(joints, start=1):
    assert joint.shape[:2] == (BATCH // 2, 2)
    summed_out = np.logaddexp.reduce(np.asarray(joint), axis=2).sum(axis=-1)
    np.testing.assert_allclose(several[f"capsules_{i}"], -summed_out.mean(axis=1), rtol=1e-5)
  assert len(joints) == 1


@pytest.mark.parametrize("poses", ["gaussian", "delta"])
def test_gradients_of_the_bound_by_differences(poses):
  """Of every term, along a random direction of all parameters."""
  # Without attention, to compile faster.
  system = tiny_system(poses=poses, **{"object_inference.num_layers": 0})
  names, rng = list(system.loss_weights), np.random.RandomState(0)
  start = in_float64(tiny_variables(system))

  @compiled
  def pull(variables, weights):
    image = tiny_batch()["image"].astype(jnp.float64)

    def terms(variables):
      values, _ = system.module.apply(variables, image, jax.random.key(4), method="estimate")
      return jnp.stack([jnp.sum(values[name]) for name in names])

    values, back = jax.vjp(terms, variables)
    return values @ weights, back(weights)[0]

  with jax.enable_x64(True):
    for name, weights in zip(names, np.eye(len(names)), strict=True):
      run = functools.partial(pull, weights=weights)
      # Values of size 100 known to 1e-14 over differences of 1e-6; curvature adds about as much.
      assert_slope(run, start, rng, 1e-6, rtol=1e-6, atol=1e-6, err_msg=name)


def test_all_terms_but_pixels_follow_the_schedule():
  points = ((0, 0.0), (100, 1.0))
  system = tiny_system(**{"loss.schedule.latents": points})
  # In the order in which they are computed: the first that is not finite is the cause.
  upper = ["presences_2", "poses_2", "capsules_1", "capsules_2"]
  names = ["presences_1", "poses_1", "pixels", *upper]
  assert list(system.loss_weights.items()) == [(name, 1.0) for name in names]
  assert system.loss_schedule == dict.fromkeys(set(names) - {"pixels"}, points)


def test_the_temperature_of_choices_falls_while_training():
  """In the terms of the two lower layers alone; held-out terms have no temperature."""
  rng = np.random.RandomState(0)
  joints = [rng.normal(size=(4, 2, 3, 5)), rng.normal(size=(4, 2, 4, 2))]
  untempered = [-np.logaddexp.reduce(joint, axis=2).sum(axis=-1).mean(axis=1) for joint in joints]
  terms = {"pixels": rng.normal(size=4), "capsules_3": rng.normal(size=4)}
  terms |= {f"capsules_{i}": value for i, value in enumerate(untempered, start=1)}
  output = ProbabilisticOutput(
    terms={name: jnp.asarray(value, jnp.float32) for name, value in terms.items()},
    posteriors=[],
    picture=jnp.zeros(()),
    encoding=Encoding(),
    joints=[jnp.asarray(joint, jnp.float32) for joint in joints],
  )
  temperatures = {"loss.choice_temperature": ((10, 5.0), (20, 1.0))}
  system = tiny_system(capsules=(5, 2, 3), poses="delta", **temperatures)
  for step, temperature in ((0, 5.0), (15, 3.0), (25, 1.0), (None, 1.0)):
    terms_at_step = system.loss_terms(output, {}, step)
    assert set(terms_at_step) == set(terms)
    for i, joint in enumerate(joints, start=1):
      tempered = temperature * np.logaddexp.reduce(joint / temperature, axis=2)
      expected = -tempered.sum(axis=-1).mean()
      np.testing.assert_allclose(terms_at_step[f"capsules_{i}"], expected, rtol=1e-5)
    for name in ("pixels", "capsules_3"):
      np.testing.assert_allclose(terms_at_step[name], terms[name].mean(), rtol=1e-5)


@pytest.mark.parametrize(("case", "changes"), [("trained", OWN), ("evaluated", {})])
def test_picture_is_drawn_from_the_means_of_the_posteriors(case, changes, two, three, request):
  """So are the expected children of the top capsules."""
  output, options = request.getfixturevalue(case)[0], PROBABILISTIC["generative"] | changes
  params = in_float64((two if changes else three).variables["params"]["generative"])
  posteriors = in_float64(jax.device_get(output.posteriors))
  layers = [
    Capsules(posterior.presence_logits / temperature_of(i, options), posterior.poses)
    for i, posterior in enumerate(posteriors)
  ]
  relations = reference_relations(params, len(layers) - 1, options)
  for b in range(BATCH):
    parts, *_ = layer = jax.tree.map(lambda x, b=b: x[b], layers)
    picture = painted(params, parts)
    # Positions are known to 1e-6 and poses are as small as 0.3.
    np.testing.assert_allclose(output.picture[b], picture, atol=1e-4)
    scales = posteriors[-2].pose_scales[b]
    # Where poses of children that are off are summed out, each is at its mean.
    off = [reference_normal(0, 0, scale) for scale in scales] if changes else None
    posterior = reference_selection(layer[-2], layer[-1], relations, off)[1]
    expected = posterior[:-1] @ expit(layer[-2].presence_logits)
    np.testing.assert_allclose(output.encoding.features["children"][b], expected, rtol=1e-4)


def test_samples_of_three_layers(three):
  """With certain presences and scales, every child is at the vote of its chosen parent."""
  params = dict(three.variables["params"])
  generative = params["generative"] = dict(params["generative"])
  for i in (1, 2):
    generative[f"presence_{i}"] += 50
    generative[f"affinity_{i}"] += 50
    generative[f"scale_{i}"] -= 50
  certain = {"generative.min_scale": 1e-5, "generative.top_presence": 0.999999}
  module = tiny_system(**THREE | certain).module

  def draw(module, key):
    top = module.generative.sample_top(jax.random.fold_in(key, 0))
    layers, choices = module.generative.sample(jax.random.fold_in(key, 1), top)
    return top, layers, choices

  draw = compiled(functools.partial(module.apply, {"params": params}, method=draw))
  tops, chosen_parents = [], set()
  for seed in range(5):
    top, layers, choices = draw(jax.random.key(seed))
    jax.tree.map(np.testing.assert_array_equal, top, layers[-1])  # handed on as it is
    assert [len(layer.poses) for layer in layers] == [3, 2, 2]
    for i, (children, parents, choice) in enumerate(
      zip(layers[:-1], layers[1:], choices, strict=True), start=1
    ):
      np.testing.assert_allclose(children.presence, 1, rtol=1e-6)
      for child, parent in enumerate(choice):
        offset = generative[f"offset_{i}"][parent, child]
        vote = reference_vote(parents.poses[parent], offset)
        # Five deviations of 1e-5, and float32.
        np.testing.assert_allclose(children.poses[child], vote, atol=1e-4)
        chosen_parents.add((i, child, int(parent)))
    tops.append(np.asarray(top.poses))
  assert len(chosen_parents) > 7  # of ten: keys of layers and children differ
  assert np.std(tops, axis=0).min() > 0.05
