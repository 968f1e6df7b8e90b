"""The tiny SCAE that the tests of models share, and the errors of configs that do not fit."""

import functools
import re
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from scae_jax.models.scae import make_system
from scae_jax.models.system import ImageSpec

PARTS, OBJECTS, CANVAS, TEMPLATE, FEATURES, CLASSES, BATCH = 3, 4, 12, 5, 4, 6, 3

MODEL = {
  "num_parts": PARTS,
  "num_objects": OBJECTS,
  "target": "image",
  "reconstruction_vote": "encoder",
  "reconstruction_presence": "encoder",
  "normalize_mixing": False,
  "stop_gradients": "parts",
  "feature_gradient": (),
  "compute_dtype": "float32",
  "part_encoder": {
    "widths": (6,),
    "strides": (2,),
    "num_features": FEATURES,
    "pooling": "attention",
    "presence_noise": 4.0,
    "noise_in_evaluation": False,
    "similarity": False,
  },
  "part_decoder": {
    "template_size": TEMPLATE,
    "nonlinearity": "sigmoid",
    "mixing": "alpha",
    "colour": True,
    "pixel_scale": 1.0,
    "likelihood": "composed",
    "likelihood_stride": 1,
    "warp": "gather",
  },
  "object_encoder": {
    "kind": "set_transformer",
    "output_features": 8,
    "num_layers": 1,
    "num_heads": 1,
    "features": 8,
    "num_inducing": 0,
    "mask": "log_presence",
  },
  "object_decoder": {
    "hidden": 8,
    "capsule_features": 6,
    "presence_noise": 4.0,
    "noise_in_evaluation": False,
    "similarity": False,
    "deformations": True,
    "learn_vote_scale": True,
  },
}
TERMS = (
  "image",
  "parts",
  "prior_within",
  "prior_between",
  "posterior_within",
  "posterior_between",
  "dynamic",
  "prior_probe",
  "posterior_probe",
)
LOSS = {
  "prior": "l2",
  "prior_within_constant": 0.0,
  "posterior": "entropy",
  "weights": dict.fromkeys(TERMS, 1.0),
  "schedule": {},
}

# Half the time to compile. The tests of one model compile some thirty functions and run each once.
compiled = functools.partial(
  jax.jit,
  compiler_options={
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
  },
)


def tiny_system(channels=1, loss=LOSS, **changes):
  """The tiny system with options changed, such as `**{"part_encoder.pooling": "mean"}`."""
  config = ConfigDict({"model": MODEL}, convert_dict=True)
  config.update_from_flattened_dict({f"model.{key}": value for key, value in changes.items()})
  return make_system(config.model.to_dict(), loss, ImageSpec(CANVAS, channels, CLASSES))


def tiny_batch(channels=1, batch=BATCH):
  rng = np.random.RandomState(0)
  image = rng.uniform(0, 1, (batch, CANVAS, CANVAS, channels)).astype(np.float32)
  return {"image": jnp.asarray(image), "label": jnp.asarray(rng.randint(0, CLASSES, batch))}


def random_variables(module, *inputs, scale=0.3, **options):
  """Parameters of the right shapes, all normal: no bias, alpha or dummy is left at zero."""
  keys = {"params": jax.random.key(0), "noise": jax.random.key(1)}
  shapes = jax.eval_shape(functools.partial(module.init, **options), keys, *inputs)

  def random(path, shape):
    # By its name, so that a new parameter leaves the others as they are.
    rng = np.random.RandomState(zlib.crc32(jax.tree_util.keystr(path).encode()))
    return jnp.asarray(rng.normal(0, scale, shape.shape), shape.dtype)

  return jax.tree_util.tree_map_with_path(random, shapes)


def build(system, channels=1):
  """Traces the module, as a program does that starts to train; computes nothing."""
  keys = {"params": jax.random.key(0), "noise": jax.random.key(1)}
  batch = tiny_batch(channels)
  return jax.eval_shape(lambda k: system.module.init(k, batch, train=True), keys)


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    ({"part_encoder.pooling": "max"}, ["part_encoder.pooling", "'max'", "attention, mean, linear"]),
    ({"stop_gradients": "some"}, ["stop_gradients", "'some'", "none, parts, all"]),
    (
      {"feature_gradient": ((5, -1.0),)},
      ["model.feature_gradient must be points", "values from 0"],
    ),
    (
      {"feature_gradient": ((0, 1.0),), "stop_gradients": "all"},
      ["model.feature_gradient must be ()", "stop_gradients is 'all'"],
    ),
    ({"part_decoder.mixing": "none"}, ["part_decoder.mixing", "'none'", "alpha, coupled"]),
    ({"part_decoder.likelihood": "exact"}, ["likelihood", "'exact'", "composed, fused"]),
    ({"part_decoder.warp": "tent"}, ["warp", "'tent'", "gather, gather_products, products"]),
    (
      {"part_decoder.likelihood": "fused", "part_decoder.mixing": "coupled"},
      ["part_decoder.likelihood must be 'composed'", "part_decoder.mixing is 'coupled'"],
    ),
    ({"part_decoder.nonlinearity": "relu"}, ["nonlinearity", "'relu'", "sigmoid, relu1"]),
    ({"object_encoder.kind": "cnn"}, ["object_encoder.kind", "'cnn'", "set_transformer, mlp"]),
    (
      {"object_encoder.mask": "soft"},
      ["object_encoder.mask", "'soft'", "log_presence, hard"],
    ),
    ({"target": "edges"}, ["model.target", "'edges'", "image, sobel"]),
    ({"reconstruction_vote": "mean"}, ["reconstruction_vote", "'mean'", "encoder, soft, hard"]),
    ({"reconstruction_presence": "x"}, ["reconstruction_presence", "'x'", "encoder, soft, hard"]),
    ({"part_decoder.pixel_scale": 0.0}, ["pixel_scale must be from 0.0001 to 10000; it is 0.0"]),
    ({"part_decoder.template_size": 13}, ["template_size", "13", "12", "must fit the canvas"]),
    ({"part_encoder.num_features": 0}, ["num_features is 0", "colour", "raise it or set"]),
    ({"part_encoder.strides": (2, 2, 1)}, ["strides must be as many values as", "which is (6,)"]),
    ({"object_encoder.num_heads": 3}, ["num_heads must be a divisor", "8", "it is 3"]),
    (
      {"part_encoder.widths": (6,) * 3, "part_encoder.strides": (2,) * 3},
      ["config.model.part_encoder.strides (2, 2, 2)", "12 -> 5 -> 2 -> 0"],
    ),
  ],
)
def test_options_that_do_not_fit(changes, words):
  with pytest.raises(ValueError, match=re.escape(words[0])) as error:
    build(tiny_system(**changes))
  for word in words:
    assert word in str(error.value)


def model_without(*path):
  model = {k: dict(v) if isinstance(v, dict) else v for k, v in MODEL.items()}
  section = model
  for key in path[:-1]:
    section = section[key]
  del section[path[-1]]
  return model


@pytest.mark.parametrize(
  ("model", "words"),
  [
    (MODEL | {"num_part": 3}, ["unknown keys ['num_part']", "stop_gradients"]),
    (
      MODEL | {"part_encoder": MODEL["part_encoder"] | {"pool": 1}},
      ["model.part_encoder", "unknown keys ['pool']", "missing keys []", "'pooling'"],
    ),
    (model_without("part_encoder", "pooling"), ["model.part_encoder", "missing keys ['pooling']"]),
    (model_without("object_decoder"), ["model.object_decoder", "missing keys ['capsule_features'"]),
    (model_without("num_parts"), ["config.model", "missing keys ['num_parts']"]),
    (MODEL | {"num_objects": 0}, ["num_objects must be from 1", "it is 0"]),
    (
      MODEL | {"num_objects": True},
      ["num_objects must be a whole number; it is True"],
    ),
    (MODEL | {"num_objects": 2.0}, ["num_objects must be a whole number; it is 2.0"]),
    # What follows from the data is not for the config to say.
    (MODEL | {"num_classes": 3}, ["unknown keys ['num_classes']"]),
  ],
)
def test_sections_that_do_not_fit(model, words):
  with pytest.raises(ValueError, match="config") as error:
    make_system(model, LOSS, ImageSpec(CANVAS, 1, CLASSES))
  for word in words:
    assert word in str(error.value)


@pytest.mark.parametrize("key", ["prior", "posterior"])
def test_unknown_sparsity(key):
  with pytest.raises(
    ValueError, match=f"config.loss.{key} must be one of l2, entropy, kl; it is 'l1'"
  ):
    tiny_system(loss=LOSS | {key: "l1"})


@pytest.mark.parametrize(
  ("loss", "words"),
  [
    (LOSS | {"kind": "l2"}, "unknown keys ['kind'], missing keys []"),
    (
      {key: LOSS[key] for key in LOSS if key != "weights"},
      "unknown keys [], missing keys ['weights']",
    ),
    (
      {"within_constant" if key == "prior_within_constant" else key: LOSS[key] for key in LOSS},
      "unknown keys ['within_constant'], missing keys ['prior_within_constant']",
    ),
  ],
)
def test_loss_section_that_does_not_fit(loss, words):
  valid = f"valid keys are {sorted(LOSS)}"
  with pytest.raises(ValueError, match=r"config\.loss: ") as error:
    tiny_system(loss=loss)
  assert words in str(error.value)
  assert valid in str(error.value)


def test_lists_of_a_config_become_tuples():
  model = MODEL | {"part_encoder": MODEL["part_encoder"] | {"widths": [6], "strides": [2]}}
  module = make_system(model, LOSS, ImageSpec(CANVAS, 1, CLASSES)).module
  assert module == tiny_system().module
