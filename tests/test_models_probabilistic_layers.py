"""Probabilistic capsules of three layers: bound, pictures, samples, and what spoils which term."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

from scae_jax.models.capsule_inference import ObjectInference
from scae_jax.routing.selection import Capsules
from tests.references import in_float64, reference_selection, reference_vote
from tests.test_models_probabilistic import (
  BATCH,
  THREE,
  Tiny,
  assert_brute_force,
  painted,
  reference_relations,
  tiny_batch,
  tiny_system,
)
from tests.tiny import PROBABILISTIC, compiled


@pytest.fixture(scope="module")
def three():
  """Without attention among the children, which is the same for two layers, to compile faster.

  Deviations are shared by the parents, which they are not with two layers.
  """
  return Tiny(**THREE)


@pytest.fixture(scope="module")
def evaluated(three):
  """Output and loss terms of three layers."""
  return jax.device_get(three.run(three.variables, tiny_batch()))


def test_bound_of_three_layers_is_that_of_brute_force(three, evaluated):
  """In evaluation, where the samples' key is always the same."""
  assert_brute_force(three, evaluated[0], jax.random.key(0))


def test_picture_is_drawn_from_the_middle_of_belief(three, evaluated):
  """As are the expected children of the top capsules."""
  output, _ = evaluated
  params = in_float64(three.variables["params"]["generative"])
  options = PROBABILISTIC["generative"]
  layers = []
  for posterior in in_float64(jax.device_get(output.posteriors)):
    layers.append(Capsules(posterior.presence_logits / options["temperature"], posterior.poses))
  relations = reference_relations(params, len(layers) - 1, options)
  for b in range(BATCH):
    parts, *_ = layer = jax.tree.map(lambda x, b=b: x[b], layers)
    picture = painted(params, parts)
    # Positions are known to 1e-6 and poses are as small as 0.3.
    np.testing.assert_allclose(output.picture[b], picture, atol=1e-4)
    posterior = reference_selection(layer[-2], layer[-1], relations)[1]
    expected = posterior[:-1] @ expit(layer[-2].presence_logits)
    np.testing.assert_allclose(output.children[b], expected, rtol=1e-4)


def test_the_top_is_inferred_from_the_layer_below_alone(three):
  """Its posterior is what its network says of the sample below: nothing comes from the image."""
  image, key = tiny_batch()["image"], jax.random.key(2)
  posteriors, layers = three.infer(three.variables, image, key)
  network = ObjectInference(
    2, gaussian=True, **PROBABILISTIC["object_inference"] | {"num_layers": 0}
  )
  infer = compiled(network.apply)
  alone = infer({"params": three.variables["params"]["object_inference_1"]}, layers[1])
  # Another compilation of the same numbers.
  same = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
  jax.tree.map(same, alone, posteriors[2])


def test_samples_of_three_layers(three):
  """All on and certain: every child is where the pose of the parent that it chose has it."""
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
  tops, found = [], set()
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
        found.add((i, child, int(parent)))
    tops.append(np.asarray(top.poses))
  assert len(found) > 7  # of ten: keys of layers and children differ
  assert np.std(tops, axis=0).min() > 0.05


# What is broken; the terms that are not finite then, the first cause first.
AFTER_LAYER_3 = ["presences_3", "poses_3", "capsules_2", "capsules_3"]
AFTER_LAYER_2 = ["presences_2", "poses_2", "capsules_1", *AFTER_LAYER_3]
BROKEN = {
  "generative/templates": ["pixels"],
  "generative/alphas": ["pixels"],
  "generative/offset_1": ["capsules_1"],
  "generative/affinity_1": ["capsules_1"],
  "generative/scale_2": ["capsules_2"],
  "generative/presence_2": ["capsules_2"],
  "object_inference_1/set_transformer/seeds": AFTER_LAYER_3,
  "object_inference_0/set_transformer/seeds": AFTER_LAYER_2,
  "part_inference/convnet/bias_0": ["presences_1", "poses_1", "pixels", *AFTER_LAYER_2],
}


@pytest.mark.parametrize("path", BROKEN)
def test_broken_parameter_spoils_its_own_terms(path, three):
  def broken(leaf_path, leaf):
    name = "/".join(entry.key for entry in leaf_path[1:])
    return leaf.at[(0,) * leaf.ndim].set(jnp.nan) if name == path else leaf

  variables = jax.tree_util.tree_map_with_path(broken, three.variables)
  _, terms = three.run(variables, tiny_batch())
  # numpyro's density of what is not a number is zero, whose logarithm is infinite.
  assert [name for name in three.system.loss_weights if not np.isfinite(terms[name])] == BROKEN[
    path
  ]
