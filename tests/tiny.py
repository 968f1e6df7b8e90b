"""The smallest model of each system, batches, and random parameters, for the tests of models."""

import copy
import functools
import zlib

import jax
import jax.numpy as jnp
import numpy as np

from configs import digits
from scae_jax.models import capsnet, ccae, cnn, matrix_capsules, probabilistic, scae
from scae_jax.models.system import ImageSpec, PointSpec

PARTS, OBJECTS, CANVAS, TEMPLATE, FEATURES, CLASSES, BATCH = 3, 4, 12, 5, 4, 6, 3


def changed(section, changes):
  """A config with some keys changed, such as `part_encoder.pooling`; the value ... removes one."""
  section = copy.deepcopy(section)
  for path, value in changes.items():
    *outer, key = path.split(".")
    inner = functools.reduce(lambda subsection, name: subsection[name], outer, section)
    if value is ...:
      del inner[key]
    else:
      inner[key] = value
  return section


MODEL = changed(
  digits.get_config().model.to_dict(),
  {
    "num_parts": PARTS,
    "num_objects": OBJECTS,
    "part_encoder.widths": (6,),
    "part_encoder.strides": (2,),
    "part_encoder.num_features": FEATURES,
    "part_decoder.template_size": TEMPLATE,
    "object_encoder.output_features": 8,
    "object_encoder.num_layers": 1,
    "object_encoder.features": 8,
    "object_decoder.hidden": 8,
    "object_decoder.capsule_features": 6,
  },
)
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
LOSS = digits.get_config().loss.to_dict() | {"weights": dict.fromkeys(TERMS, 1.0), "schedule": {}}

CCAE = {
  "num_objects": 3,
  "num_votes": 4,
  "decoder": "capsules",
  "vote_scale": 0.5,
  "object_encoder": MODEL["object_encoder"] | {"num_heads": 2},
  "object_decoder": MODEL["object_decoder"] | {"similarity": True},
  "mlp_decoder": {"widths": (16,), "presence_noise": 4.0, "learn_vote_scale": True},
}
CCAE_TERMS = ("points", "presence", *TERMS[2:7])
PROBABILISTIC = {
  "capsules": (3, 2),
  "poses": "gaussian",
  "num_samples": 1,
  "generative": {
    "template_size": 3,
    "nonlinearity": "sigmoid",
    "pixel_scale": 0.5,
    "temperature": 0.6,
    "top_presence": 0.3,
    "top_scale": 0.7,
    "dummy_affinity": 0.2,
    "broad_scale": 1.5,
    "min_scale": 0.1,
    "initial_scale": 0.4,
    "shared_scales": False,
  },
  "part_inference": {"widths": (4,), "strides": (2,), "min_part_scale": 0.01},
  "object_inference": {
    "num_layers": 1,
    "num_heads": 1,
    "features": 4,
    "num_inducing": 2,
    "output_features": 4,
    "hidden": 4,
  },
}
CAPSNET = {
  "conv_width": 4,
  "conv_kernel": 3,
  "primary_types": 2,
  "primary_features": 3,
  "primary_kernel": 4,
  "primary_stride": 2,
  "class_features": 5,
  "routing_iterations": 3,
  "routing_gradient": "all",
  "decoder_widths": (6,),
}
MATRIX_CAPSULES = {
  "conv_width": 3,
  "conv_kernel": 5,
  "primary_types": 2,
  "first_types": 2,
  "second_types": 2,
  "routing_iterations": 2,
  "inverse_temperature_limit": 0.5,
  "normalize_poses": False,
  "add_coordinates": True,
}
LENET = {
  "widths": (2, 3),
  "kernel": 3,
  "padding": "valid",
  "pool": 2,
  "hidden": (7, 5),
  "dropout": 0.5,
}


def weighted(*terms, **others):
  return {**others, "weights": dict.fromkeys(terms, 1.0), "schedule": {}}


MARGINS = {"present_margin": 0.9, "absent_margin": 0.1, "absent_weight": 0.5}
# What each system's `make_system` takes: model, loss, data.
TINY = {
  scae: (MODEL, LOSS, ImageSpec(CANVAS, 1, CLASSES)),
  ccae: (CCAE, LOSS | weighted(*CCAE_TERMS), PointSpec(11, 3, 4)),
  probabilistic: (
    PROBABILISTIC,
    {"schedule": {"latents": ()}, "choice_temperature": ()},
    ImageSpec(7, 1, 10),
  ),
  capsnet: (CAPSNET, weighted("margin", "reconstruction", **MARGINS), ImageSpec(10, 1, 3)),
  matrix_capsules: (MATRIX_CAPSULES, weighted("spread", margin_scale=50.0), ImageSpec(19, 1, 3)),
  cnn: (LENET, weighted("cross_entropy"), ImageSpec(14, 1, 4)),
}


def tiny(module, data=None, **changes):
  """The system of a module with keys of its model, or of `loss`, changed; see `changed`."""
  model, loss, own_data = TINY[module]
  model = changed({**model, "loss": loss}, changes)
  loss = model.pop("loss")
  return module.make_system(model, loss, data or own_data)


# Half the time to compile. The tests of one model compile some thirty functions and run each once.
compiled = functools.partial(
  jax.jit,
  compiler_options={"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True},
)


def tiny_system(channels=1, loss=LOSS, two_views=False, **changes):
  """The tiny SCAE."""
  spec = ImageSpec(CANVAS, channels, CLASSES, two_views=two_views)
  return tiny(scae, spec, **changes, loss=loss)


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


def initial(system, data, seed=0):
  """A system's parameters before training."""
  keys = {"params": jax.random.key(seed), "noise": jax.random.key(seed + 1)}
  return jax.jit(lambda: system.module.init(keys, data.blank_batch(2), train=True))()


def build(system, batch):
  """Traces the module, as a program does that starts to train; computes nothing."""
  keys = {"params": jax.random.key(0), "noise": jax.random.key(1)}
  return jax.eval_shape(lambda k: system.module.init(k, batch, train=True), keys)


GROUPS = {
  "part_encoder/convnet": "convnet",
  "part_decoder/templates": "templates",
  "part_decoder/alphas": "alphas",
  "part_decoder/temperature": "temperature",
  "part_decoder/colour_mlp": "colour",
  "part_decoder/background_mean": "background",
  "part_decoder/background_logit": "background",
  "object_encoder": "object_encoder",
  "object_decoder": "object_decoder",
  "dummy_vote": "dummy_vote",
  "prior_probe": "prior_probe",
  "posterior_probe": "posterior_probe",
}


def sweeper(system, batch, *, train=False):
  """Compiled function of parameters and a key: gradient of every term, loss terms and output."""

  def stacked(variables, key):
    rngs = {"noise": key} if train else None
    output = system.module.apply(variables, batch, train=train, rngs=rngs)
    terms = system.loss_terms(output, batch, None)
    terms = {name: term for name, term in terms.items() if name in TERMS}
    assert tuple(terms) == TERMS
    return jnp.stack(list(terms.values())), (terms, output)

  sweep = compiled(jax.jacrev(stacked, has_aux=True))

  def run(variables, key=None):
    jacobian, (terms, output) = jax.device_get(
      sweep(variables, jax.random.key(1) if key is None else key)
    )
    return jacobian, terms, output

  return run


def group_gradients(jacobian, num_features=FEATURES):
  """Largest size of the gradient of each term to each group of parameters."""
  sizes = {term: {} for term in TERMS}

  def add(group, gradient):
    for i, term in enumerate(TERMS):
      largest = float(np.abs(gradient[i]).max(initial=0.0))
      sizes[term][group] = max(largest, sizes[term].get(group, 0.0))

  for path, gradient in jax.tree_util.tree_leaves_with_path(jacobian["params"]):
    name = "/".join(entry.key for entry in path)
    if name.startswith("part_encoder/pooling"):
      # Every part: six numbers of a pose, a presence logit, features, and attention if there is.
      columns = np.reshape(gradient, (*gradient.shape[:-1], PARTS, -1))
      edges = [6, 7, 7 + num_features]
      split = np.split(columns, edges, axis=-1)
      for group, piece in zip(("poses", "presence", "features", "attention"), split, strict=True):
        if piece.size:
          add(group, piece)
    else:
      add(next(group for start, group in GROUPS.items() if name.startswith(start)), gradient)
  return sizes


def assert_flows(jacobian, *, image, objects, dynamic, num_features=FEATURES):
  """Gradients are exactly zero outside of the named groups of parameters.

  `image` are the groups of the image's term, `objects` those of the terms of parts and sparsity,
  `dynamic` those of the deformations' term. The terms of probes move the probes alone.
  """
  sizes = group_gradients(jacobian, num_features)
  expected = dict.fromkeys(TERMS, objects) | {"image": image, "dynamic": dynamic}
  expected |= {name: {name} for name in ("prior_probe", "posterior_probe")}
  for term in TERMS:
    flows = {group for group, size in sizes[term].items() if size > 0}
    assert all(np.isfinite(size) for size in sizes[term].values()), term
    assert flows == expected[term], term
