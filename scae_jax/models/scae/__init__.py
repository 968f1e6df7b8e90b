"""Stacked Capsule Autoencoder (SCAE): a part autoencoder with an object autoencoder on top.

Kosiorek et al. 2019, "Stacked Capsule Autoencoders", arXiv 1906.06818. The part capsule autoencoder
(PCAE) is in `pcae`, the object capsule autoencoder (OCAE) in `ocae`; `scae` stacks them, `losses`
has the terms to minimise.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from flax import linen as nn

from scae_jax import bounds
from scae_jax.bounds import (
  MAX_WEIGHT,
  MAX_WIDTH,
  Points,
  between,
  build_module,
  build_stage,
  line,
  one_of,
)
from scae_jax.layers.convnet import windows_of
from scae_jax.layers.receptive_field import require_receptive_field
from scae_jax.math.schedules import line_through
from scae_jax.models import figure_arrays
from scae_jax.models.scae.losses import loss_terms, metrics
from scae_jax.models.scae.ocae import CapsuleLoss, ObjectDecoder, ObjectEncoder
from scae_jax.models.scae.pcae import PartDecoder, PartEncoder, require_room
from scae_jax.models.scae.scae import SCAE, encoding
from scae_jax.models.system import Spec, System, require_images
from scae_jax.typing import Array

COMPUTE_DTYPES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class StageOptions:
  """Keys of the model section that several stages share."""

  num_parts: Annotated[int, between(1, MAX_WIDTH)]  # m
  num_objects: Annotated[int, between(1, MAX_WIDTH)]  # k
  compute_dtype: Annotated[str, one_of(*COMPUTE_DTYPES)]  # of CNN and set transformer
  # Points (step, factor) for the argument `feature_gradient` of `SCAE.__call__` in training, see
  # `schedules.line_through`; () is 1 at all steps.
  feature_gradient: Annotated[Points, line(0, MAX_WEIGHT)]


# The classes that sections of the config are read into.
SECTIONS = {
  "model": (StageOptions, SCAE),
  "model.part_encoder": (PartEncoder,),
  "model.part_decoder": (PartDecoder,),
  "model.object_encoder": (ObjectEncoder,),
  "model.object_decoder": (ObjectDecoder,),
  "loss": (CapsuleLoss,),
}


def make_system(model: Mapping[str, Any], loss: Mapping[str, Any], data: Spec) -> System:
  """An SCAE from config sections: `SCAE` and its stages, `StageOptions`, `CapsuleLoss`."""
  data = require_images("scae", data, in_unit_range=True)
  options = bounds.read(CapsuleLoss, "loss", loss)
  weights, schedule = dict(options.weights), dict(options.schedule)
  if not data.two_views:
    schedule.pop("views", None)
    if weight := weights.pop("views", 0):
      raise ValueError(
        "config.loss.weights.views must be 0 where config.data.two_views is False; it is"
        f" {weight!r}."
      )
  shared, model = bounds.read_some(StageOptions, "model", model)
  m, k = shared.num_parts, shared.num_objects
  # Parameters and images are float32.
  dtype = None if shared.compute_dtype == "float32" else shared.compute_dtype
  stage = functools.partial(build_stage, model)
  stages = {
    "part_encoder": stage("part_encoder", PartEncoder, num_parts=m, compute_dtype=dtype),
    "part_decoder": stage("part_decoder", PartDecoder, num_parts=m, channels=data.channels),
    "object_encoder": stage("object_encoder", ObjectEncoder, num_objects=k, compute_dtype=dtype),
    "object_decoder": stage("object_decoder", ObjectDecoder, num_parts=m),
  }
  require_room("part_decoder", stages["part_decoder"].template_size, data.canvas)
  strides = stages["part_encoder"].strides
  require_receptive_field(data.canvas, windows_of(strides), {"model.part_encoder.strides": strides})
  module = build_module(SCAE, "model", model, num_classes=data.num_classes, **stages)

  return System(
    module=module,
    loss_terms=functools.partial(
      loss_terms, loss=options, num_classes=data.num_classes, two_views=data.two_views
    ),
    loss_weights=weights,
    loss_schedule=schedule,
    metrics=metrics,
    encoding=encoding,
    pictures=figure_arrays.of_parts_and_objects(module),
    draws={
      "objects": nn.apply(SCAE.draw_from_objects, module),
      "parts": nn.apply(SCAE.draw_from_parts, module),
    },
    encode_moved=nn.apply(SCAE.encode_moved, module),
    # Objects of an MLP encoder share its hidden layers, so they cannot be copied.
    object_params=_is_of_object if module.object_encoder.kind == "set_transformer" else None,
    arguments=_feature_gradient(shared.feature_gradient, module.stop_gradients),
  )


def _is_of_object(path: str) -> bool:
  return path.startswith("object_decoder/") or path == "object_encoder/set_transformer/seeds"


def _feature_gradient(
  points: Points, stop_gradients: str
) -> Callable[[Array | int], dict[str, Array]] | None:
  """The schedule of the argument `feature_gradient` of `SCAE.__call__`; None if always 1."""
  factor = line_through(points)
  if factor is None:
    return None
  if stop_gradients == "all":
    raise ValueError(
      "config.model.feature_gradient must be () where config.model.stop_gradients is 'all', which"
      f" stops that gradient at every step; it is {points!r}."
    )
  return lambda step: {"feature_gradient": factor(step)}
