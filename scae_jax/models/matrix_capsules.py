"""Matrix capsules: parts vote by 4x4 poses for wholes, and a whole is a cluster of votes.

Hinton, Sabour and Frosst 2018, "Matrix Capsules with EM Routing".
"""

import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from scae_jax.layers.convolution import Convolution
from scae_jax.layers.matrix_capsules import ClassCapsules, ConvCapsules, PrimaryCapsules
from scae_jax.margins import spread_loss, spread_margin
from scae_jax.models import supervised
from scae_jax.models.system import (
  Spec,
  System,
  build_module,
  check_keys,
  labels_of,
  pixels_of,
  positive,
  whole,
)
from scae_jax.routing import em
from scae_jax.typing import Array, Batch, Float

# The published layout.
CONV_STRIDE, CAPSULE_KERNEL = 2, 3


@struct.dataclass
class MatrixCapsulesOutput:
  """What one pass computes.

  Attributes:
    activation: [b, k], of the class capsules, in [0, 1].
    routing: of the class capsules, which have one position, with a leading batch axis.
  """

  activation: Float[Array, "b k"]
  routing: em.EMRouting


class MatrixCapsules(nn.Module):
  """A convolution, primary capsules, two layers of convolutional capsules and class capsules.

  With `conv_width`, `primary_types`, `first_types` and `second_types` (A, B, C and D of the paper)
  of 32 each it has 316,650 parameters on stereo pairs (2 channels) of 5 classes, with 64, 8, 16 and
  16 it has 68,618; a grey image has 25 A fewer. The primary capsules have no biases.

  Attributes:
    conv_width: A, channels of the convolution, which has stride 2.
    conv_kernel: its side, pixels; published with 5.
    primary_types: B.
    first_types: C, of the 3x3 layer with stride 2.
    second_types: D, of the 3x3 layer with stride 1.
    routing_iterations: of each layer.
    inverse_temperature_limit: of activations in routing, see `em.inverse_temperature`.
    normalize_poses: whether poses of primary capsules are scaled, see `PrimaryCapsules`.
    add_coordinates: whether class capsules are told where their children stand.
    num_classes: k.
  """

  conv_width: int
  conv_kernel: int
  primary_types: int
  first_types: int
  second_types: int
  routing_iterations: int
  inverse_temperature_limit: float
  normalize_poses: bool
  add_coordinates: bool
  num_classes: int

  @nn.compact
  def __call__(self, batch: Batch, *, train: bool) -> MatrixCapsulesOutput:
    """One pass over a batch, the same in training and evaluation."""
    counts = ("conv_width", "conv_kernel", "primary_types", "first_types", "second_types")
    for name in (*counts, "routing_iterations"):
      whole(f"config.model.{name}", getattr(self, name), 1)
    positive("config.model.inverse_temperature_limit", self.inverse_temperature_limit)
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
    for i, (types, stride) in enumerate(((self.first_types, 2), (self.second_types, 1))):
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
  """`spread`, the spread loss, mean over the batch.

  Args:
    output: of the module.
    batch: the same batch.
    step: of training, on which the margin depends; None for the margin at the end.
    margin_scale: steps, see `spread_margin`.
  """
  steps = jnp.asarray(math.inf if step is None else step, jnp.float32)
  margin = spread_margin(steps, margin_scale)
  present = supervised.present(labels_of(batch), output.activation.shape[1])
  spread = jax.vmap(spread_loss, in_axes=(0, 0, None))(output.activation, present, margin)
  return {"spread": jnp.mean(spread)}


def measures(output: MatrixCapsulesOutput, batch: Batch) -> dict[str, Array]:
  """`accuracy` [b], the share of labels found."""
  return {"accuracy": supervised.accuracy(output.activation, labels_of(batch))}


def make_system(model: Mapping[str, Any], loss: Mapping[str, Any], data: Spec) -> System:
  """Matrix capsules from config sections.

  Args:
    model: fields of `MatrixCapsules`.
    loss: `margin_scale`, and `weights` and `schedule` of the one loss term.
    data: canvas, channels and number of classes.

  Raises:
    ValueError: a key or value that does not fit, or data that are not images.
  """
  spec = supervised.require_images("matrix_capsules", data)
  check_keys("loss", loss, ("margin_scale", "weights", "schedule"))
  positive("config.loss.margin_scale", loss["margin_scale"])
  module = build_module(MatrixCapsules, "model", model, num_classes=spec.num_classes)

  def pictures(variables: Any, batch: Batch) -> dict[str, dict[str, Array]]:
    output: Any = module.apply(variables, batch, train=False)
    coupling, agreement = output.routing.coupling[0], output.routing.agreement[0]
    # The one position of the class capsules is left out.
    return {
      "coupling": {
        "image": pixels_of(batch)[0],
        "coupling": coupling[:, 0],
        "agreement": agreement[:, 0],
      }
    }

  return System(
    module=module,
    loss_terms=functools.partial(loss_terms, margin_scale=loss["margin_scale"]),
    loss_weights=dict(loss["weights"]),
    loss_schedule=dict(loss["schedule"]),
    measures=measures,
    features=lambda output: {},
    pictures=pictures,
    classify=lambda output: output.activation,
  )
