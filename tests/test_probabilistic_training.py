"""Probabilistic capsules in training: what is not finite is named, with its layer."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import probabilistic
from scae_jax.models.generative_capsules import GenerativeCapsules
from scae_jax.training.errors import NonFiniteError
from scae_jax.training.loop import train
from tests.test_models_probabilistic import THREE, Tiny, tiny_batch


@pytest.fixture(scope="module")
def three():
  return Tiny(**THREE)


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
  assert [name for name in three.system.loss_weights if np.isnan(terms[name])] == BROKEN[path]


def test_training_stops_and_names_the_term_and_the_layer(tmp_path, monkeypatch):
  """The deviations between the second layer and the third are broken from the start."""
  original = GenerativeCapsules.relations

  def relations(self):
    first, second = original(self)
    return [first, dataclasses.replace(second, scales=jnp.nan * second.scales)]

  monkeypatch.setattr(GenerativeCapsules, "relations", relations)
  config = probabilistic.get_config()
  config.update_from_flattened_dict(
    {f"model.{key}": value for key, value in THREE.items()}
    | {
      "model.part_inference.widths": (4,),
      "model.part_inference.strides": (2,),
      "train.num_steps": 2,
      "train.batch_size": 8,
      "train.steps_per_dispatch": 2,
      "train.log_every": 2,
      "evaluation.max_examples": 100,
    }
  )
  message = r"not finite at step 1: capsules_2 = nan, grad_norm = nan, total = nan\."
  with pytest.raises(NonFiniteError, match=message):
    train(config.lock(), tmp_path)
