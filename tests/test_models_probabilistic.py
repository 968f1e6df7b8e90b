"""Probabilistic capsules as a whole: every term of the bound against NumPy, layers, samples."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from scae_jax.models import probabilistic
from scae_jax.models.probabilistic_capsules import ProbabilisticOutput, repeat
from scae_jax.routing.selection import Relations
from tests.references import (
  in_float64,
  reference_concrete,
  reference_normal,
  reference_over,
  reference_selection,
  reference_warp,
)
from tests.tiny import PROBABILISTIC, build, compiled, random_variables, tiny

CANVAS, TEMPLATE, BATCH = 7, 3, 4
THREE = {"capsules": (3, 2, 2), "generative.shared_scales": True, "object_inference.num_layers": 0}


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
  return Tiny()


@pytest.fixture(scope="module")
def trained(two):
  """Output and loss terms of two layers, and the key that the module has made of the one given."""
  variables, keys = two.variables, {"noise": jax.random.key(3)}
  key = two.module.apply(variables, rngs=keys, method=lambda module: module.make_rng("noise"))
  return *jax.device_get(two.run(variables, tiny_batch(), keys["noise"])), key


def reference_relations(params, layer, options):
  """From the parameters themselves, as the docstrings have it."""
  p = {name: params[f"{name}_{layer}"] for name in ("affinity", "presence", "offset", "scale")}
  scales = options["min_scale"] + np.log1p(np.exp(p["scale"]))
  return Relations(
    affinity_logits=log_affinity(p["affinity"], options.get("max_affinity", 0)),
    dummy_logit=np.log(options["dummy_affinity"]),
    presence_logits=p["presence"],
    offsets=p["offset"],
    scales=np.broadcast_to(scales, (*p["affinity"].shape, 6)),  # which parents may share
    broad_scale=options["broad_scale"],
    temperature=temperature_of(layer - 1, options),
  )


def log_affinity(raw, limit):
  """Of a parameter; affinities start at 1 and stay below the limit, where there is one."""
  return np.log(limit * expit(raw - np.log(limit - 1))) if limit else raw


def temperature_of(layer, options):
  """Of relaxed presences; layer 0 is the parts."""
  return (
    options.get("upper_temperature", options["temperature"]) if layer else options["temperature"]
  )


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
      found = output.terms[name][b]
      np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(bound[b], -sum(expected.values()), rtol=1e-5)


def test_bound_of_two_layers_is_that_of_brute_force(two, trained):
  """In training: all joint choices of all children are summed one by one."""
  output, terms, key = trained
  assert_brute_force(two, output, key)
  for name, value in terms.items():
    np.testing.assert_allclose(value, output.terms[name].mean(), rtol=1e-6)


def test_bound_with_what_the_article_lacks_is_that_of_brute_force(two, trained):
  """Poses of children that are off summed out, a temperature of its own for the upper layer, and
  affinities with a limit."""
  changes = {"upper_temperature": 0.3, "max_affinity": 1.5}
  generative = {f"generative.{name}": value for name, value in changes.items()}
  other = Tiny(off_poses="summed_out", **generative)
  output, _ = jax.device_get(other.run(two.variables, tiny_batch(), jax.random.key(3)))
  assert_brute_force(other, output, trained[2], summed_out=True, **changes)
  # Expected children and joints are of the same choices.
  assert np.abs(output.children - trained[0].children).max() > 1e-3
  summed = np.logaddexp.reduce(output.joints[0], axis=2).sum(axis=-1)[:, 0]
  np.testing.assert_allclose(output.terms["capsules_1"], -summed, rtol=1e-5)


def test_several_samples_are_the_mean_of_single_ones(two, trained):
  """Two of each image are what one each of two copies are."""
  image, key = tiny_batch()["image"][: BATCH // 2], trained[2]
  copies = {"image": repeat(image, 2), "label": tiny_batch()["label"]}
  single, _ = two.run(two.variables, copies, jax.random.key(3))
  module = tiny_system(num_samples=2).module
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


@pytest.fixture(scope="module")
def without_attention():
  """A tiny system whose objects have no attention, to compile faster, and its float64 variables."""
  system = tiny_system(**{"object_inference.num_layers": 0})
  return system, in_float64(tiny_variables(system))


@pytest.fixture(scope="module")
def gradients(without_attention):
  """Function of variables, in float64: each term's gradient by all parameters, at one noise."""
  system = without_attention[0]
  names = list(system.loss_weights)

  def pull(variables, weights):
    image = tiny_batch()["image"].astype(jnp.float64)

    def terms(variables):
      values, _ = system.module.apply(variables, image, jax.random.key(4), method="estimate")
      return jnp.stack([jnp.sum(values[name]) for name in names])

    values, back = jax.vjp(terms, variables)
    return values, back(weights)[0]["params"]

  pull = compiled(pull)

  def run(variables, name=None):
    with jax.enable_x64(True):
      weights = np.array([other == name for other in names], np.float64)
      values, gradient = jax.device_get(pull(variables, weights))
    return dict(zip(names, values, strict=True)), gradient

  return run


def test_gradients_of_the_bound_by_differences(without_attention, gradients):
  """Of every term, in a direction of all parameters; a stopped gradient would be missing."""
  variables = without_attention[1]
  rng = np.random.RandomState(0)
  direction = jax.tree.map(lambda x: rng.normal(0, 1, x.shape), variables)

  def moved(size):
    return gradients(jax.tree.map(lambda x, d: x + size * d, variables, direction))[0]

  above, below = moved(1e-6), moved(-1e-6)
  for name in above:
    gradient = gradients(variables, name)[1]
    products = jax.tree.map(lambda g, d: np.sum(g * d), gradient, direction["params"])
    # Values of size 100 known to 1e-14 over differences of 1e-6; curvature adds about as much.
    difference = (above[name] - below[name]) / 2e-6
    slope = sum(jax.tree.leaves(products))
    np.testing.assert_allclose(slope, difference, rtol=1e-6, atol=1e-6, err_msg=name)


def test_every_term_reaches_what_it_should(without_attention, gradients):
  """No gradient is stopped: the objects' prior teaches the image's network too."""
  variables = without_attention[1]

  def reached(name):
    """Parameters of the generative model and networks by which a term has a gradient."""
    groups = set()
    for path, gradient in jax.tree_util.tree_leaves_with_path(gradients(variables, name)[1]):
      if np.abs(gradient).max() > 1e-6:  # float32 temperatures leave 1e-8
        groups.add(path[1].key if path[0].key == "generative" else path[0].key)
    return groups

  relations = {f"{name}_1" for name in ("affinity", "presence", "offset", "scale")}
  encoders = ["part_inference", "object_inference_0"]
  assert reached("pixels") == {"templates", "alphas", encoders[0]}
  assert reached("capsules_1") == relations | set(encoders)
  assert reached("capsules_2") == set(encoders)
  # A density at its own sample is that of the noise: logits and means cancel, and the deviations
  # of layer i depend on the sample of the one below.
  for i in (1, 2):
    assert reached(f"poses_{i}") == set(encoders[:i])
    assert reached(f"presences_{i}") == set()


@pytest.mark.parametrize(("shared", "of_each_child"), [(True, 1), (False, 2)])
def test_parents_share_their_deviations(shared, of_each_child):
  system = tiny_system(**{"generative.shared_scales": shared})
  variables = build(system, tiny_batch())
  scale = variables["params"]["generative"]["scale_1"]
  assert scale.shape == (of_each_child, 3, 6)


def test_all_terms_but_pixels_follow_the_schedule():
  points = ((0, 0.0), (100, 1.0))
  system = tiny_system(**{"loss.schedule.latents": points})
  names = {f"{kind}_{i}" for kind in ("capsules", "presences", "poses") for i in (1, 2)}
  assert system.loss_schedule == dict.fromkeys(names, points)
  assert system.loss_weights == dict.fromkeys([*names, "pixels"], 1.0)


def test_the_temperature_of_choices_falls_while_training():
  """Of both lower layers' terms and nothing else; held-out terms are of the bound."""
  rng = np.random.RandomState(0)
  joints = [rng.normal(size=(4, 2, 3, 5)), rng.normal(size=(4, 2, 4, 2))]
  untempered = [-np.logaddexp.reduce(joint, axis=2).sum(axis=-1).mean(axis=1) for joint in joints]
  terms = {"pixels": rng.normal(size=4), "capsules_3": rng.normal(size=4)}
  terms |= {f"capsules_{i}": value for i, value in enumerate(untempered, start=1)}
  output = ProbabilisticOutput(
    terms={name: jnp.asarray(value, jnp.float32) for name, value in terms.items()},
    posteriors=[],
    picture=jnp.zeros(()),
    children=jnp.zeros(()),
    joints=[jnp.asarray(joint, jnp.float32) for joint in joints],
  )
  temperatures = {"loss.choice_temperature": ((10, 5.0), (20, 1.0))}
  system = tiny_system(capsules=(5, 2, 3), poses="delta", **temperatures)
  for step, temperature in ((0, 5.0), (15, 3.0), (25, 1.0), (None, 1.0)):
    found = system.loss_terms(output, {}, step)
    assert set(found) == set(terms)
    for i, joint in enumerate(joints, start=1):
      tempered = temperature * np.logaddexp.reduce(joint / temperature, axis=2)
      expected = -tempered.sum(axis=-1).mean()
      np.testing.assert_allclose(found[f"capsules_{i}"], expected, rtol=1e-5)
    for name in ("pixels", "capsules_3"):
      np.testing.assert_allclose(found[name], terms[name].mean(), rtol=1e-5)
