"""Options of the constellation autoencoder: scales of votes, and what does not fit."""

import functools
import re

import jax
import numpy as np
import pytest

from tests.test_models_build import compiled, random_variables
from tests.test_models_ccae import (
  BATCH,
  CAPSULES,
  LOSS,
  MODEL,
  NOISE,
  VOTES,
  tiny_batch,
  tiny_system,
)


@pytest.mark.parametrize("decoder", ["capsules", "mlp"])
def test_scales_that_are_not_learnt_are_one_for_all(decoder):
  """Its outputs are as many fewer; what the others say is still told apart."""
  name = {"capsules": "object_decoder", "mlp": "mlp_decoder"}[decoder]
  system = tiny_system(section(name, learn_vote_scale=False) | {"decoder": decoder})
  variables = random_variables(system.module, tiny_batch(), train=False)
  objects = compiled(functools.partial(system.module.apply, train=False))(
    variables, tiny_batch()
  ).objects
  np.testing.assert_array_equal(objects.vote_scale, np.full((BATCH, CAPSULES, VOTES), 0.5))
  for values in (objects.votes, objects.vote_presence, objects.presence_logits):
    assert np.ptp(values) > 1e-3
  learnt = tiny_system(MODEL | {"decoder": decoder}).module
  shapes = jax.eval_shape(functools.partial(learnt.init, train=False), NOISE["noise"], tiny_batch())
  sizes = [
    sum(leaf.size for leaf in jax.tree.leaves(params))
    for params in (shapes["params"], variables["params"])
  ]
  width = {"capsules": 8, "mlp": 16}[decoder]
  assert sizes[0] - sizes[1] == CAPSULES * VOTES * (width + 1)


def section(name, **changes):
  return MODEL | {name: MODEL[name] | changes}


@pytest.mark.parametrize(
  ("model", "words"),
  [
    (MODEL | {"num_objects": 0}, ["model.num_objects must be from 1", "it is 0"]),
    (MODEL | {"num_votes": 2.5}, ["model.num_votes must be a whole number; it is 2.5"]),
    (MODEL | {"decoder": "pose"}, ["model.decoder must be one of capsules, mlp; it is 'pose'"]),
    (MODEL | {"num_part": 3}, ["model: unknown keys ['num_part']"]),
    (section("object_encoder", width=3), ["model.object_encoder: unknown keys ['width']"]),
    (section("mlp_decoder", hidden=3), ["model.mlp_decoder: unknown keys ['hidden']", "widths"]),
    (section("object_decoder", num_parts=3), ["model.object_decoder: unknown keys ['num_parts']"]),
  ],
)
def test_models_that_do_not_fit(model, words):
  with pytest.raises(ValueError, match=r"config") as error:
    tiny_system(model)
  for word in words:
    assert word in str(error.value)


def test_a_baseline_may_be_a_linear_map():
  system = tiny_system(section("mlp_decoder", widths=()) | {"decoder": "mlp"})
  keys = {"params": jax.random.key(0)} | NOISE
  jax.eval_shape(functools.partial(system.module.init, train=True), keys, tiny_batch())


@pytest.mark.parametrize(
  ("loss", "words"),
  [
    (LOSS | {"kind": "l2"}, "unknown keys ['kind'], missing keys []"),
    ({key: LOSS[key] for key in LOSS if key != "weights"}, "missing keys ['weights']"),
    (LOSS | {"prior": "l1"}, "config.loss.prior must be one of l2, entropy, kl; it is 'l1'"),
  ],
)
def test_losses_that_do_not_fit(loss, words):
  with pytest.raises(ValueError, match=re.escape(words)):
    tiny_system(loss=loss)
