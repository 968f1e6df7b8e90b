"""Matrix capsules: capsules are 4x4 poses with activations; a parent is a cluster of votes.

Hinton, Sabour and Frosst 2018, "Matrix Capsules with EM Routing".
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from scae_jax import bounds
from scae_jax.bounds import (
  MAX_ITERATIONS,
  MAX_KERNEL,
  MAX_STEPS,
  MAX_WIDTH,
  above,
  between,
  build_module,
)
from scae_jax.layers.capsule_convolutions import ClassCapsules, ConvCapsules, PrimaryCapsules
from scae_jax.layers.convnet import Convolution
from scae_jax.layers.receptive_field import Window, require_receptive_field
from scae_jax.math.margins import spread_loss, spread_margin
from scae_jax.math.routing import em
from scae_jax.models import supervised, system
from scae_jax.models.system import Encoding, LossOptions, Spec, System, require_images
from scae_jax.typing import Array, Batch, Float

# The published layout.
CONV_STRIDE, CAPSULE_KERNEL, CAPSULE_STRIDES = 2, 3, (2, 1)


@dataclasses.dataclass(frozen=True)
class MatrixCapsulesLoss(LossOptions):
  """The config's loss section."""

  margin_scale: Annotated[float, above(0, MAX_STEPS)]  # steps, see `margins.spread_margin`


@struct.dataclass
class MatrixCapsulesOutput:
  """What one pass computes."""

  activation: Float[Array, "b k"]  # of the class capsules, in [0, 1]
  routing: em.EMRouting  # of the class capsules, which have one position, with a leading batch axis


class MatrixCapsules(nn.Module):
  """A convolution, primary capsules, two layers of convolutional capsules and class capsules.

  With `conv_width`, `primary_types`, `first_types` and `second_types` (A, B, C and D of the paper)
  of 32 each it has 316,650 parameters on stereo pairs (2 channels) of 5 classes, with 64, 8, 16 and
  16 it has 68,618; a grey image has 25 A fewer. The primary capsules have no biases.
  """

  # A, channels of the convolution, which has stride 2.
  conv_width: Annotated[int, between(1, MAX_WIDTH)]
  conv_kernel: Annotated[int, between(1, MAX_KERNEL)]  # side of its kernel, pixels; published: 5
  primary_types: Annotated[int, between(1, MAX_WIDTH)]  # B
  first_types: Annotated[int, between(1, MAX_WIDTH)]  # C, of the 3x3 layer with stride 2
  second_types: Annotated[int, between(1, MAX_WIDTH)]  # D, of the 3x3 layer with stride 1
  routing_iterations: Annotated[int, between(1, MAX_ITERATIONS)]  # of each layer
  # Limit of the inverse temperature of activations in routing, see `em.inverse_temperature`.
  inverse_temperature_limit: Annotated[float, above(0, 1e6)]
  normalize_poses: bool  # whether poses of primary capsules are scaled, see `PrimaryCapsules`
  add_coordinates: bool  # whether votes for class capsules include the children's positions
  num_classes: int  # k

  @nn.compact
  def __call__(self, batch: Batch, *, train: bool) -> MatrixCapsulesOutput:
    """One pass over a batch, the same in training and evaluation."""
    routing_options = {
      "iterations": self.routing_iterations,
      "inverse_temperature_limit": self.inverse_temperature_limit,
    }
    he = nn.initializers.he_normal()
    convolution = Convolution(
      self.conv_width, self.conv_kernel, CONV_STRIDE, kernel_init=he, name="convolution"
    )
    capsules = PrimaryCapsules(self.primary_types, self.normalize_poses, name="primary")(
      jax.nn.relu(convolution(batch["image"]))
    )
    counts = (self.first_types, self.second_types)
    for i, (types, stride) in enumerate(zip(counts, CAPSULE_STRIDES, strict=True)):
      layer = ConvCapsules(types, CAPSULE_KERNEL, stride, **routing_options, name=f"capsules_{i}")
      capsules = layer(capsules)
    classes = ClassCapsules(
      self.num_classes, self.add_coordinates, **routing_options, name="classes"
    )
    routing = classes(capsules)
    return MatrixCapsulesOutput(routing.activation[:, 0], routing)


def loss_terms(
  output: MatrixCapsulesOutput, batch: Batch, step: Array | int | None, *, margin_scale: float
) -> dict[str, Array]:
  """`spread`: the mean spread loss with the margin of the step; None is the last step."""
  steps = jnp.asarray(math.inf if step is None else step, jnp.float32)
  margin = spread_margin(steps, margin_scale)
  present = supervised.present(system.labels_of(batch), output.activation.shape[1])
  spread = jax.vmap(spread_loss, in_axes=(0, 0, None))(output.activation, present, margin)
  return {"spread": jnp.mean(spread)}


def metrics(output: MatrixCapsulesOutput, batch: Batch) -> dict[str, Array]:
  """`accuracy` [b], the share of labels predicted."""
  return {"accuracy": supervised.accuracy(output.activation, system.labels_of(batch))}


def encoding(output: MatrixCapsulesOutput) -> Encoding:
  """The `Encoding` of images; presences and scores are the activations of the class capsules."""
  poses = output.routing.poses[:, 0]  # at their single position
  return Encoding(
    object_presence=output.activation,
    object_poses=poses.reshape(*poses.shape[:2], 4, 4),
    scores=output.activation,
  )


# The classes that sections of the config are read into.
SECTIONS = {
  "model": (MatrixCapsules,),
  "loss": (MatrixCapsulesLoss,),
}


def make_system(model: Mapping[str, Any], loss: Mapping[str, Any], data: Spec) -> System:
  """Matrix capsules from config sections: fields of `MatrixCapsules`, and `MatrixCapsulesLoss`."""
  spec = require_images("matrix_capsules", data)
  options = bounds.read(MatrixCapsulesLoss, "loss", loss)
  module = build_module(MatrixCapsules, "model", model, num_classes=spec.num_classes)
  capsule_layers = [Window(CAPSULE_KERNEL, stride) for stride in CAPSULE_STRIDES]
  windows = [Window(module.conv_kernel, CONV_STRIDE), *capsule_layers]
  require_receptive_field(spec.canvas, windows, {"model.conv_kernel": module.conv_kernel})

  def pictures(variables: Any, batch: Batch) -> dict[str, dict[str, Array]]:
    output: Any = module.apply(variables, batch, train=False)
    # The first example; class capsules have a single position.
    arrays = {name: getattr(output.routing, name)[0, :, 0] for name in ("coupling", "agreement")}
    return {"coupling": {"image": system.pixels_of(batch)[0], **arrays}}

  return System(
    module=module,
    loss_terms=functools.partial(loss_terms, margin_scale=options.margin_scale),
    loss_weights=options.weights,
    loss_schedule=options.schedule,
    metrics=metrics,
    encoding=encoding,
    pictures=pictures,
  )
