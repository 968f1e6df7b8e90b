"""Probabilistic capsules in training: what is not finite is named, with its layer."""

import dataclasses

import jax.numpy as jnp
import pytest

from configs import probabilistic
from scae_jax.models.generative_capsules import GenerativeCapsules
from scae_jax.training.errors import NonFiniteError
from scae_jax.training.loop import train
from tests.test_models_probabilistic import THREE
from tests.test_scae_training import one_device

__all__ = ["one_device"]  # a fixture


@pytest.mark.usefixtures("one_device")
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
