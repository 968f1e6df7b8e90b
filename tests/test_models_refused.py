"""Configs and data that no model can be built from, and the smallest valid configs."""

import dataclasses

import pytest

from scae_jax.models import capsnet, ccae, cnn, matrix_capsules, probabilistic, scae
from scae_jax.models.system import ImageSpec, PointSpec
from tests.tiny import TINY, build, tiny, tiny_system


@pytest.mark.parametrize(
  ("module", "changes", "message"),
  [
    (
      scae,
      {"feature_gradient": ((0, 1.0),), "stop_gradients": "all"},
      r"model\.feature_gradient.*stop_gradients.*'all'",
    ),
    (scae, {"part_decoder.template_size": 13}, r"template_size.* 13\b.* 12\b"),
    (scae, {"part_encoder.num_features": 0}, r"num_features.* 0\b"),
    (scae, {"part_encoder.strides": (2, 2, 1)}, r"strides.*\(6,\)"),
    (
      scae,
      {"part_encoder.widths": (), "part_encoder.strides": ()},
      r"part_encoder\.widths.* 1 to 32\b",
    ),
    (scae, {"loss.posterior": "l2"}, r"loss\.posterior.*entropy, kl.*'l2'"),
    (
      scae,
      {"loss.prior": "kl", "loss.prior_within_constant": 2.0},
      r"prior_within_constant.*config\.loss\.prior.*'kl'",
    ),
    (scae, {"object_encoder.num_heads": 3}, r"object_encoder\.num_heads.* 8\b.* 3\b"),
    (
      scae,
      {"part_encoder.widths": (6,) * 3, "part_encoder.strides": (2,) * 3},
      r"config\.model\.part_encoder\.strides \(2, 2, 2\).*12 -> 5 -> 2 -> 0",
    ),
    # What follows from the data or from other keys is not for the config to say.
    (scae, {"num_classes": 3}, r"\['num_classes'\]"),
    (ccae, {"object_decoder.num_parts": 3}, r"\['num_parts'\]"),
    (ccae, {"num_objects": 2}, r"num_objects.* 3\b"),
    (ccae, {"num_votes": 3}, r"num_votes.* 4\b"),
    (
      probabilistic,
      {"generative.min_scale": 0.4},
      r"min_scale.* 1e-06.* 0\.4.*config\.model\.generative\.initial_scale",
    ),
    (probabilistic, {"generative.max_affinity": 1.0}, r"generative\.max_affinity.* 0 .* 1\b"),
    (probabilistic, {"capsules": (3,)}, r"model\.capsules.* 2 to 8\b.*\(3,\)"),
    (probabilistic, {"generative.template_size": 8}, r"template_size.* 8\b.* 7\b"),
    (probabilistic, {"part_inference.strides": (2, 1)}, r"part_inference\.strides.*\(2, 1\)"),
    (
      probabilistic,
      {"part_inference.widths": (), "part_inference.strides": ()},
      r"part_inference\.widths.* 1 to 32\b",
    ),
    (
      probabilistic,
      {"part_inference.widths": (4,) * 3, "part_inference.strides": (2,) * 3},
      r"part_inference\.strides \(2, 2, 2\).* 7\b.*\(7 -> 3 -> 1 -> 0\)",
    ),
    (probabilistic, {"object_inference.num_heads": 3}, r"object_inference\.num_heads.* 3\b"),
    (probabilistic, {"posterior": {"min_scale": 0.0}}, r"posterior\.min_scale.* 0\.0"),
    (
      probabilistic,
      {"loss.choice_temperature": ((0, 8.0), (100, 2.0))},
      r"choice_temperature.* 1\b.*\(100\.0, 2\.0\)",
    ),
    (capsnet, {"primary_kernel": 9}, r"primary_kernel 9\b.*\(10 -> 8 -> 0\)"),
    (matrix_capsules, {"conv_kernel": 13}, r"conv_kernel 13\b.*\(19 -> 4 -> 1 -> 0\)"),
    (matrix_capsules, {"inverse_temperature_limit": 0.0}, r"inverse_temperature_limit.* 0\b"),
    (matrix_capsules, {"loss.margin_scale": 0.0}, r"config\.loss\.margin_scale.* 0\b"),
    (cnn, {"dropout": 1.0}, r"dropout.* 0 .* 1\.0"),
    (cnn, {"kernel": 2, "padding": "same"}, r"model\.kernel.*'same'"),
    (cnn, {"pool": 9}, r"config\.model\.pool 9\b.*\(14 -> 12 -> 1 -> 0\)"),
  ],
)
def test_inconsistent_values_are_refused(module, changes, message):
  with pytest.raises(ValueError, match=message):
    build(tiny(module, **changes), TINY[module][2].blank_batch(2))


@pytest.mark.parametrize("module", TINY)
def test_other_kinds_of_data_are_refused(module):
  data = ImageSpec(28, 1, 10) if module is ccae else PointSpec(11, 3, 4)
  with pytest.raises(ValueError, match="'scae'" if module is ccae else "'ccae'"):
    tiny(module, data)
  normalized = ImageSpec(28, 1, 10, normalized=True)
  if module in (scae, probabilistic, capsnet):
    with pytest.raises(ValueError, match=r"config\.data\.normalize.*False"):
      tiny(module, normalized)


@pytest.mark.parametrize(
  ("module", "changes"),
  [
    (
      scae,
      {
        "part_encoder.presence_noise": 0,
        "part_encoder.num_features": 0,
        "part_encoder.widths": (1,),
        "part_encoder.strides": (1,),
        "part_decoder.colour": False,
        "part_decoder.pixel_scale": 1,
        "part_decoder.template_size": 2,
        "object_encoder.num_inducing": 1,
        "object_encoder.output_features": 1,
        "object_encoder.features": 1,
        "object_decoder.presence_noise": 0.0,
        "object_decoder.hidden": 1,
        "object_decoder.capsule_features": 1,
      },
    ),
    # A linear map.
    (ccae, {"object_encoder.num_layers": 0, "decoder": "mlp", "mlp_decoder.widths": ()}),
    (
      probabilistic,
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
      },
    ),
  ],
)
def test_smallest_values_build(module, changes):
  build(tiny(module, **changes), TINY[module][2].blank_batch(2))


@pytest.mark.parametrize(("value", "expected"), [("float32", None), ("bfloat16", "bfloat16")])
def test_config_names_the_type_of_both_encoders(value, expected):
  module = tiny_system(compute_dtype=value).module
  assert module.part_encoder.compute_dtype == expected
  assert module.object_encoder.compute_dtype == expected


def test_deviations_of_posteriors_are_those_of_the_section():
  """Keys that the section leaves out have defaults."""
  for section, expected in (({}, (0.001, 0.05)), ({"min_scale": 0.2}, (0.2, 0.05))):
    module = tiny(probabilistic, posterior=section).module
    for network in (module.part_inference, *module.object_inference):
      assert dataclasses.astuple(network.scales_of) == expected
