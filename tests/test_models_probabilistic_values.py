"""Configs that no probabilistic capsules can be built from: each is refused by its key."""

import dataclasses
import re

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


POSITIVE = (
  "pixel_scale",
  "temperature",
  "upper_temperature",
  "top_scale",
  "dummy_affinity",
  "broad_scale",
  "min_scale",
  "initial_scale",
)


FLOORS = {"min_scale": 0.2, "initial_scale": 0.3}


@pytest.mark.parametrize("name", POSITIVE)
def test_numbers_that_must_be_positive(name):
  for value in (0.0, -0.5, float("nan"), float("inf"), "1", True):
    words = f"config.model.generative.{name} is {value!r}; expected a positive number"
    with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
      build({f"generative.{name}": value})


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    *(
      ({"generative.top_presence": value}, "generative.top_presence is .*between 0 and 1, neither")
      for value in (0.0, 1.0, 1.5, -0.1, float("nan"))
    ),
    (
      {"generative.min_scale": 0.4},
      r"initial_scale is 0\.4; expected more than min_scale, 0\.4",
    ),
    ({"generative.max_affinity": 1.0}, r"max_affinity is 1\.0; expected more than 1, .* or 0"),
    ({"generative.max_affinity": -2.0}, r"max_affinity is -2\.0; expected a positive number"),
    ({"capsules": (3,)}, r"config\.model\.capsules is \(3,\); expected two layers or more"),
    ({"capsules": ()}, r"config\.model\.capsules is \(\); expected two layers or more"),
    ({"capsules": 3}, r"config\.model\.capsules is 3; expected a tuple of whole numbers"),
    ({"capsules": (3, 0)}, r"config\.model\.capsules is \(3, 0\); .*at least 1"),
    ({"capsules": (3, 2.0)}, r"config\.model\.capsules is \(3, 2\.0\); .*at least 1"),
    ({"poses": "full"}, r"config\.model\.poses is 'full'; expected one of delta, gaussian"),
    ({"poses": None}, r"config\.model\.poses is None; expected one of delta, gaussian"),
    ({"off_poses": "off"}, r"config\.model\.off_poses is 'off'; expected one of broad, summed_out"),
    ({"num_samples": 0}, r"config\.model\.num_samples is 0; .*at least 1"),
    ({"num_samples": 1.0}, r"config\.model\.num_samples is 1\.0; .*at least 1"),
    ({"generative.template_size": CANVAS + 1}, "template_size is 8 and the canvas 7 .*must fit"),
    ({"generative.template_size": 1}, "generative.template_size is 1; .*at least 2"),
    ({"generative.nonlinearity": "tanh"}, "nonlinearity is 'tanh'; expected one of sigmoid, relu1"),
    ({"part_inference.widths": (0,)}, r"part_inference\.widths is \(0,\); .*at least 1"),
    ({"part_inference.strides": (0,)}, r"part_inference\.strides is \(0,\); .*at least 1"),
    ({"part_inference.strides": (2, 1)}, "widths.*strides.*must be equally many"),
    (
      {"part_inference.widths": (4,) * 3, "part_inference.strides": (2,) * 3},
      "canvas of 7 pixels is too small.*enlarge config.data.canvas or lower the strides",
    ),
    *(
      ({f"object_inference.{name}": -1}, rf"object_inference\.{name} is -1; .*at least")
      for name in MODEL["object_inference"]
    ),
    ({"object_inference.num_heads": 3}, "num_heads 3 must divide the features, 4"),
    # What is not in the config, or should not be.
    ({"sparsity": 1.0}, r"section model: unknown keys \['sparsity'\], .*\['num_samples', 'off"),
    (
      {"generative.scale": 1.0},
      r"section model\.generative: unknown keys \['scale'\], missing keys \[\].*'temperature'",
    ),
    ({"generative.channels": 1}, r"section model\.generative: unknown keys \['channels'\]"),
    ({"part_inference.gaussian": True}, r"model\.part_inference: unknown keys \['gaussian'\]"),
    ({"object_inference.mask": "hard"}, r"model\.object_inference: unknown keys \['mask'\]"),
    ({"generative": {}}, r"section model\.generative: .*missing keys \['broad_scale'"),
    ({"object_inference": {}}, r"section model\.object_inference: .*missing keys \['features'"),
    ({"posterior": {"min_scale": 0.1}}, r"section model\.posterior: .*keys \['initial_scale'\]"),
    ({"posterior": FLOORS | {"min_scale": 0.0}}, r"posterior\.min_scale is 0\.0; .*positive"),
    ({"posterior": FLOORS | {"initial_scale": -1}}, r"posterior\.initial_scale is -1; .*positive"),
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
  with pytest.raises(ValueError, match=r"section loss: unknown keys \['weights'\]"):
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
    with pytest.raises(ValueError, match="config section loss"):
      make_system(MODEL, wrong, ImageSpec(CANVAS, 1, 10))


@pytest.mark.parametrize(
  ("points", "message"),
  [
    (
      ((0, 8.0), (100, 0.0)),
      r"choice_temperature must be points \(step, temperature\) with .*above",
    ),
    (((0, 8.0), (0, 1.0)), "choice_temperature must have rising steps"),
    ((0, 8.0), r"choice_temperature must be points"),
    (((0, 8.0), (1,)), r"choice_temperature must be points"),
    (((0, float("nan")),), r"choice_temperature must be points"),
    ("high", r"choice_temperature must be points"),
    (((0, 8.0), (100, 2.0)), r"choice_temperature must end at 1.*it ends at 2"),
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
