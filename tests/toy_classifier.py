"""The toy system as a classifier: its probe is the output.

A config names it by `system = "tests.toy_classifier"`; `classifier_config` makes such a config.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from scae_jax.models.system import Encoding, ImageSpec, System
from scae_jax.typing import Array, Batch
from tests import toy_system


def make_system(model: dict[str, Any], loss: dict[str, float], data: ImageSpec) -> System:
  """Takes what `toy_system.make_system` does."""
  system = toy_system.make_system(model, loss, data)

  def pictures(variables: Any, batch: Batch) -> dict[str, dict[str, Array]]:
    output = system.module.apply(variables, batch, train=False)
    reconstructions = {"image": batch["image"], "reconstruction": output.reconstruction}
    reconstructions |= {"label": batch["label"], "predicted": jnp.argmax(output.logits, axis=1)}
    return {"class_reconstructions": reconstructions}

  return dataclasses.replace(
    system,
    encoding=lambda output: Encoding(scores=jax.nn.softmax(output.logits)),
    pictures=pictures,
  )


def classifier_config(**changes: Any) -> ConfigDict:
  """`toy_config` of this system; its changes are `section__key=value`."""
  config = toy_system.toy_config(**changes)
  config.system = "tests.toy_classifier"
  return config
