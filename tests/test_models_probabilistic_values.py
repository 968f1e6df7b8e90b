"""Configs that no probabilistic capsules can be built from: each is refused by its key."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scae_jax.models.probabilistic import make_system
from scae_jax.models.probabilistic_capsules import ProbabilisticOutput
from scae_jax.models.system import ImageSpec, PointSpec
from tests.test_models_probabilistic import CANVAS, LOSS, MODEL, tiny_batch

SECTIONS = ("generative", "part_inference", "object_inference")


def build(changes, loss=None, data=None):
  """Traces the module of the tiny config with changes, `{"generative.pixel_scale": 0}`."""
  model = {name: dict(value) if name in SECTIONS else value for name, value in MODEL.items()}
  for path, value in changes.items():
    *section, key = path.split(".")
    (model[section[0]] if section else model)[key] = value
  system = make_system(model, loss or LOSS, data or ImageSpec(CANVAS, 1, 10))
  keys = {"params": jax.random.key(0), "noise": jax.random.key(1)}
  return jax.eval_shape(lambda k: system.module.init(k, tiny_batch(), train=True), keys)


FLOORS = {"min_scale": 0.2, "initial_scale": 0.3}


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (
      {"generative.min_scale": 0.4},
      r"min_scale must be from 1e-06 to below 0\.4 \(config\.model\.generative\.initial_scale\)",
    ),
    ({"generative.max_affinity": 1.0}, r"max_affinity must be 0 or above 1 .*; it is 1\.0"),
    ({"capsules": (3,)}, r"config\.model\.capsules must be a tuple of 2 to 8 values.*\(3,\)"),
    ({"poses": "full"}, r"config\.model\.poses must be one of delta, gaussian; it is 'full'"),
    ({"generative.template_size": CANVAS + 1}, "template_size is 8 and the canvas 7 .*must fit"),
    ({"part_inference.strides": (2, 1)}, r"strides must be as many .* has, which is \(4,\)"),
    (
      {"part_inference.widths": (4,) * 3, "part_inference.strides": (2,) * 3},
      r"part_inference\.strides \(2, 2, 2\) .*canvas 7 .*\(7 -> 3 -> 1 -> 0\)",
    ),
    ({"object_inference.num_heads": 3}, r"num_heads must be a divisor of .*features, 4.*it is 3"),
    # What is not in the config, or should not be.
    ({"sparsity": 1.0}, r"config.model: unknown keys \['sparsity'\], .*\['num_samples', 'off"),
    (
      {"generative.scale": 1.0},
      r"config\.model\.generative: unknown keys \['scale'\], missing keys \[\].*'temperature'",
    ),
    ({"generative.channels": 1}, r"config\.model\.generative: unknown keys \['channels'\]"),
    ({"part_inference.gaussian": True}, r"model\.part_inference: unknown keys \['gaussian'\]"),
    ({"object_inference.mask": "hard"}, r"model\.object_inference: unknown keys \['mask'\]"),
    ({"generative": {}}, r"config\.model\.generative: .*missing keys \['broad_scale'"),
    ({"object_inference": {}}, r"config\.model\.object_inference: .*missing keys \['features'"),
    ({"posterior": FLOORS | {"min_scale": 0.0}}, r"posterior\.min_scale must be .*; it is 0\.0"),
    ({"posterior": 3}, r"config\.model\.posterior must be a section .*; it is 3"),
  ],
)
def test_what_is_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    build(changes)


def test_deviations_of_posteriors_are_those_of_the_section():
  """Runs from before there was one have those that were constants then."""
  for section, expected in (({}, (0.001, 0.05)), ({"posterior": FLOORS}, (0.2, 0.3))):
    module = make_system(MODEL | section, LOSS, ImageSpec(CANVAS, 1, 10)).module
    for network in (module.part_inference, *module.object_inference):
      assert dataclasses.astuple(network.scales_of) == expected


def test_the_bound_has_no_weights():
  with pytest.raises(ValueError, match=r"config\.loss: unknown keys \['weights'\]"):
    build({}, loss=LOSS | {"weights": {"pixels": 1.0}})


def test_points_are_not_images():
  with pytest.raises(ValueError, match=r"'probabilistic' takes images.*'ccae'"):
    build({}, data=PointSpec(11, 3, 4))


def test_smallest_values_are_taken():
  """And lists, as a config that was saved has them."""
  build(
    {
      "capsules": [1, 1, 1],
      "poses": "delta",
      "generative.template_size": 2,
      "generative.pixel_scale": 1,
      "generative.min_scale": 1e-3,
      "object_inference.num_layers": 0,
      "object_inference.num_inducing": 0,
      "object_inference.output_features": 1,
      "object_inference.hidden": 1,
      "part_inference.widths": [1],
      "part_inference.strides": [1],
    }
  )


@pytest.mark.parametrize(("shared", "of_each_child"), [(True, 1), (False, 2)])
def test_parents_share_their_deviations(shared, of_each_child):
  variables = build({"generative.shared_scales": shared})
  scale = variables["params"]["generative"]["scale_1"]
  assert scale.shape == (of_each_child, 3, 6)


def test_all_terms_but_pixels_follow_the_schedule():
  points = ((0, 0.0), (100, 1.0))
  loss = {"schedule": {"latents": points}, "choice_temperature": ()}
  system = make_system(MODEL, loss, ImageSpec(CANVAS, 1, 10))
  names = {f"{kind}_{i}" for kind in ("capsules", "presences", "poses") for i in (1, 2)}
  assert system.loss_schedule == dict.fromkeys(names, points)
  assert system.loss_weights == dict.fromkeys([*names, "pixels"], 1.0)
  for wrong in (
    {},
    {"schedule": {"latents": ()}},
    loss | {"schedule": {}},
    loss | {"schedule": {"latents": (), "pixels": ()}},
  ):
    with pytest.raises(ValueError, match=r"config\.loss.*: unknown keys"):
      make_system(MODEL, wrong, ImageSpec(CANVAS, 1, 10))


@pytest.mark.parametrize(
  ("points", "message"),
  [
    (((0, 8.0), (100, 0.0)), "choice_temperature must be points .* from 0.001 to 1,000"),
    (((0, 8.0), (0, 1.0)), "choice_temperature must be points .* with rising steps"),
    (((0, 8.0), (1,)), "choice_temperature must be points"),
    (((0, 8.0), (100, 2.0)), r"choice_temperature must be .* end at 1.*\(100.0, 2.0\)"),
  ],
)
def test_a_temperature_of_choices_that_is_none_is_refused(points, message):
  loss = {"schedule": {"latents": ()}, "choice_temperature": points}
  with pytest.raises(ValueError, match=message):
    make_system(MODEL, loss, ImageSpec(CANVAS, 1, 10))


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
  capsules = {"capsules": (5, 2, 3), "poses": "delta"}
  loss = {"schedule": {"latents": ()}, "choice_temperature": ((10, 5.0), (20, 1.0))}
  system = make_system({**MODEL, **capsules}, loss, ImageSpec(CANVAS, 1, 10))
  for step, temperature in ((0, 5.0), (15, 3.0), (25, 1.0), (None, 1.0)):
    found = system.loss_terms(output, {}, step)
    assert set(found) == set(terms)
    for i, joint in enumerate(joints, start=1):
      tempered = temperature * np.logaddexp.reduce(joint / temperature, axis=2)
      expected = -tempered.sum(axis=-1).mean()
      np.testing.assert_allclose(found[f"capsules_{i}"], expected, rtol=1e-5)
    for name in ("pixels", "capsules_3"):
      np.testing.assert_allclose(found[name], terms[name].mean(), rtol=1e-5)
