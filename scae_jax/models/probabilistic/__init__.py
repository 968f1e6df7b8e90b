"""Probabilistic capsules: one generative model, one bound, no auxiliary loss.

Smith et al. 2020, "Capsule Networks - A Probabilistic Perspective", arXiv 2004.03553. The
generative model is in `generative_model`, the inference networks are in `inference`; `autoencoder`
joins them.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from scae_jax import bounds
from scae_jax.bounds import (
  MAX_WEIGHT,
  MAX_WIDTH,
  Bound,
  Points,
  between,
  build_module,
  build_stage,
  each,
  line,
  one_of,
)
from scae_jax.layers.convnet import windows_of
from scae_jax.layers.receptive_field import require_receptive_field
from scae_jax.math.routing import selection
from scae_jax.math.schedules import line_through
from scae_jax.models import figure_arrays
from scae_jax.models.probabilistic.autoencoder import ProbabilisticCapsules, ProbabilisticOutput
from scae_jax.models.probabilistic.generative_model import GenerativeCapsules
from scae_jax.models.probabilistic.inference import (
  ObjectInference,
  PartInference,
  PosteriorScales,
  change_scales,
)
from scae_jax.models.scae.pcae import require_room
from scae_jax.models.system import FreeForm, Spec, System, require_images
from scae_jax.typing import Array, Batch

POSES = ("delta", "gaussian")
MAX_CAPSULE_LAYERS = 8
ENDS_AT_1 = Bound(
  "() or points that end at 1, where the loss is the bound",
  lambda points, fields: not points or points[-1][1] == 1,
)


@dataclasses.dataclass(frozen=True)
class BoundSchedule:
  """The section `loss.schedule`."""

  # Points (step, factor) for all terms but `pixels`; the factor is 1 on held-out examples.
  latents: Annotated[Points, line(0, MAX_WEIGHT)]


@dataclasses.dataclass(frozen=True)
class BoundOptions:
  """The config's loss section; the bound has no other weights."""

  schedule: BoundSchedule  # factors of the terms in training
  # Points (step, temperature) in training, ending at 1, see `loss_terms`.
  choice_temperature: Annotated[Points, line(1e-3, 1e3), ENDS_AT_1]


@dataclasses.dataclass(frozen=True)
class LayerOptions:
  """Keys of the model section that several stages share."""

  # Number of capsules of each layer, from the parts up.
  capsules: Annotated[
    tuple[int, ...], each(between(1, MAX_WIDTH), least=2, most=MAX_CAPSULE_LAYERS)
  ]
  poses: Annotated[str, one_of(*POSES)]  # posteriors of poses: points (`delta`) or `gaussian`
  posterior: PosteriorScales = dataclasses.field(default_factory=PosteriorScales)


def term_names(num_layers: int, *, gaussian: bool) -> list[str]:
  """Names of the terms of `ProbabilisticCapsules.negative_bound`, in their order."""
  posterior_terms = ("presences", "poses") if gaussian else ("presences",)
  names = []
  for i in range(1, num_layers + 1):
    names += [f"{kind}_{i}" for kind in posterior_terms]
    names.append("pixels" if i == 1 else f"capsules_{i - 1}")
  return [*names, f"capsules_{num_layers}"]


def loss_terms(
  output: ProbabilisticOutput,
  batch: Batch,
  step: Array | int | None,
  *,
  choice_temperature: Callable[[Array | int], Array] | None = None,
) -> dict[str, Array]:
  """The terms of the negative bound, each a mean over the batch, nats.

  `choice_temperature(step)` tempers `capsules_<i>` of all layers but the topmost, see
  `selection.tempered_log_prob`. Without it, and at the step None, the temperature is 1: the terms
  are those of the bound. Above 1 they are smaller, and not comparable with held-out terms.
  """
  terms = {name: jnp.mean(value) for name, value in output.terms.items()}
  if choice_temperature is None or step is None:
    return terms
  temper = functools.partial(
    selection.tempered_log_prob, choice_temperature=choice_temperature(step)
  )
  for i, joint in enumerate(output.joints, start=1):
    log_prob = jnp.sum(jax.vmap(jax.vmap(temper))(joint), axis=-1)
    terms[f"capsules_{i}"] = -jnp.mean(log_prob)
  return terms


def metrics(output: ProbabilisticOutput, batch: Batch) -> dict[str, Array]:
  """For each example, [b]: squared error of the picture, the estimated bound in nats, and the
  expected numbers of present parts and top objects."""
  first, last = output.posteriors[0], output.posteriors[-1]
  return {
    "squared_error": jnp.sum(jnp.square(output.picture - batch["image"]), axis=(1, 2, 3)),
    "bound": -sum(output.terms.values(), start=jnp.zeros(())),
    "parts_present": jnp.sum(jax.nn.sigmoid(first.presence_logits), axis=1),
    "objects_present": jnp.sum(jax.nn.sigmoid(last.presence_logits), axis=1),
  }


def make_free_form(module: ProbabilisticCapsules) -> FreeForm:
  """Free-form inference (section 2.4): posteriors of all layers, from the parts up.

  `encode` infers each layer from the centre of the posterior below. Its bound therefore differs
  from `ProbabilisticOutput.terms`, where each layer is inferred from samples of the one below.
  """
  scales_of = module.part_inference.scales_of
  infer = nn.apply(ProbabilisticCapsules.infer, module)
  prior = nn.apply(ProbabilisticCapsules.prior, module)
  estimate = nn.apply(ProbabilisticCapsules.estimate, module)
  return FreeForm(
    encode=lambda variables, batch: infer(variables, batch["image"], None)[0],
    prior=lambda variables, batch: prior(variables, len(batch["image"])),
    unconstrain=functools.partial(change_scales, scales_of.unconstrain),
    constrain=functools.partial(change_scales, scales_of.constrain),
    terms=lambda variables, posterior, batch, key: estimate(
      variables, batch["image"], key, posterior
    )[0],
    encoding=nn.apply(ProbabilisticCapsules.encoding, module),
  )


# The classes that sections of the config are read into.
SECTIONS = {
  "model": (LayerOptions, ProbabilisticCapsules),
  "model.generative": (GenerativeCapsules,),
  "model.part_inference": (PartInference,),
  "model.object_inference": (ObjectInference,),
  "loss": (BoundOptions,),
}


def make_system(model: Mapping[str, Any], loss: Mapping[str, Any], data: Spec) -> System:
  """Probabilistic capsules from config sections: fields of `ProbabilisticCapsules`, with a section
  for each of its parts (one for all layers above the parts), `LayerOptions` and `BoundOptions`."""
  data = require_images("probabilistic", data, in_unit_range=True)
  options = bounds.read(BoundOptions, "loss", loss)
  layers, model = bounds.read_some(LayerOptions, "model", model)
  capsules = layers.capsules
  kind_of_posterior = {"gaussian": layers.poses == "gaussian", "scales_of": layers.posterior}
  generative = build_stage(
    model, "generative", GenerativeCapsules, capsules=capsules, channels=data.channels
  )
  require_room("generative", generative.template_size, data.canvas)
  part_inference = build_stage(
    model, "part_inference", PartInference, num_parts=capsules[0], **kind_of_posterior
  )
  strides = part_inference.strides
  require_receptive_field(
    data.canvas, windows_of(strides), {"model.part_inference.strides": strides}
  )
  section = model.pop("object_inference", {})
  above = functools.partial(
    build_module, ObjectInference, "model.object_inference", section, **kind_of_posterior
  )
  object_inference = tuple(above(num_capsules=count) for count in capsules[1:])
  networks = {"part_inference": part_inference, "object_inference": object_inference}
  module = build_module(ProbabilisticCapsules, "model", model, generative=generative, **networks)
  names = term_names(len(capsules), gaussian=part_inference.gaussian)

  return System(
    module=module,
    loss_terms=functools.partial(
      loss_terms, choice_temperature=line_through(options.choice_temperature)
    ),
    loss_weights=dict.fromkeys(names, 1.0),
    loss_schedule={name: options.schedule.latents for name in names if name != "pixels"},
    metrics=metrics,
    encoding=lambda output: output.encoding,
    pictures=figure_arrays.of_parts_and_objects(module),
    free_form=make_free_form(module),
    draws={
      "objects": nn.apply(ProbabilisticCapsules.draw_from_objects, module),
      "parts": nn.apply(ProbabilisticCapsules.draw_from_parts, module),
    },
  )
