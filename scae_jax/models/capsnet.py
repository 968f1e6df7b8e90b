"""CapsNet: capsules are vectors; the length of a class capsule is the probability of its class.

Sabour, Frosst and Hinton 2017, "Dynamic Routing Between Capsules", arXiv 1710.09829.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import struct

from scae_jax import bounds
from scae_jax.bounds import (
  MAX_ITERATIONS,
  MAX_KERNEL,
  MAX_WIDTH,
  between,
  build_module,
  each,
  one_of,
)
from scae_jax.layers.convnet import Convolution
from scae_jax.layers.mlp import MLP
from scae_jax.layers.receptive_field import Window, require_receptive_field
from scae_jax.math.margins import margin_loss
from scae_jax.math.routing import dynamic
from scae_jax.models import supervised, system
from scae_jax.models.system import Encoding, LossOptions, Spec, System, require_images
from scae_jax.typing import Array, Batch, Float, Int, typed

GRADIENTS = ("all", "last")
# Changes of each number of a capsule, in the figure of capsule dimensions.
OFFSETS = np.linspace(-0.25, 0.25, 11, dtype=np.float32)
NUM_PERTURBED = 3


@dataclasses.dataclass(frozen=True)
class CapsNetLoss(LossOptions):
  """The config's loss section; see `margins.margin_loss`."""

  present_margin: Annotated[float, between(0, 1)]  # lengths of capsules are in [0, 1)
  absent_margin: Annotated[float, between(0, 1)]
  absent_weight: Annotated[float, between(0, bounds.MAX_WEIGHT)]


@struct.dataclass
class CapsNetOutput:
  """Everything that one pass computes."""

  lengths: Float[Array, "b k"]  # of the class capsules, in [0, 1)
  # Couplings of primary capsules to classes, with a leading batch axis; its parents are the class
  # capsules' vectors.
  routing: dynamic.DynamicRouting
  # The classes that are reconstructed: the true ones in training, those with the longest capsules
  # otherwise.
  drawn: Int[Array, "b labels"]
  # In [0, 1], the image that the decoder draws from the capsule of each of these classes.
  reconstruction: Float[Array, "b labels h w c"]


class CapsNet(nn.Module):
  """A convolution, convolutional primary capsules, class capsules and a decoder.

  In the paper's size (256 channels, 32 types of 8 numbers, 9x9 kernels, classes of 16 numbers,
  decoder of 512 and 1,024) it has 8,215,568 parameters on 28x28 grey images of ten classes. Routing
  has no biases.
  """

  conv_width: Annotated[int, between(1, MAX_WIDTH)]  # channels of the first convolution
  conv_kernel: Annotated[int, between(1, MAX_KERNEL)]  # side of its kernel, pixels
  primary_types: Annotated[int, between(1, MAX_WIDTH)]  # primary capsules at each position
  primary_features: Annotated[int, between(1, MAX_WIDTH)]  # numbers of a primary capsule
  primary_kernel: Annotated[int, between(1, MAX_KERNEL)]  # side of their kernel, pixels
  primary_stride: Annotated[int, between(1, MAX_KERNEL)]  # stride of their convolution
  class_features: Annotated[int, between(1, MAX_WIDTH)]  # numbers of a class capsule
  routing_iterations: Annotated[int, between(1, MAX_ITERATIONS)]  # of dynamic routing
  # Whether gradients flow through `all` iterations or only through the `last`.
  routing_gradient: Annotated[str, one_of(*GRADIENTS)]
  # Hidden units of the decoder's layers.
  decoder_widths: Annotated[tuple[int, ...], each(between(1, MAX_WIDTH))]
  canvas: int  # side of the image, pixels
  channels: int  # of the image
  num_classes: int  # k

  def setup(self):
    he = nn.initializers.he_normal()
    self.convolution = Convolution(self.conv_width, self.conv_kernel, kernel_init=he)
    width = self.primary_types * self.primary_features
    self.primary = Convolution(width, self.primary_kernel, self.primary_stride)
    self.class_capsules = ClassCapsules(
      self.num_classes, self.class_features, self.routing_iterations, self.routing_gradient == "all"
    )
    self.decoder = MLP((*self.decoder_widths, self.canvas * self.canvas * self.channels))

  def __call__(self, batch: Batch, *, train: bool) -> CapsNetOutput:
    """One pass over a batch; see `CapsNetOutput`."""
    image, labels = batch["image"], system.labels_of(batch)
    x = self.primary(jax.nn.relu(self.convolution(image)))
    primary = dynamic.squash(x.reshape(image.shape[0], -1, self.primary_features))
    routing = self.class_capsules(primary)
    lengths = dynamic.length(routing.parents)
    predicted = supervised.answers(lengths, labels.shape[1])
    drawn = labels if train else in_order_of(labels, predicted)
    return CapsNetOutput(lengths, routing, drawn, self._decode_each(routing.parents, drawn))

  def _decode_each(self, capsules: Array, classes: Array) -> Array:
    """Images [b, n, h, w, c] of classes [b, n], each decoded from its own capsule, [b, k, d]."""
    mask = jax.nn.one_hot(classes, self.num_classes)
    return self._decode(mask[..., None] * capsules[:, None])

  def _decode(self, masked: Array) -> Array:
    """Images [..., h, w, c] from capsules [..., k, d]; all but one of the k are zero."""
    pixels = self.decoder(masked.reshape(*masked.shape[:-2], -1))
    shape = (self.canvas, self.canvas, self.channels)
    return jax.nn.sigmoid(pixels).reshape(*masked.shape[:-2], *shape)

  def draw_from_objects(
    self, encoding: Encoding, number: Array, canvas: int, *, num_labels: int
  ) -> Array:
    """Images [b, h, w, c] from the longest capsule; see `system.Draw`.

    With two labels the two longest are decoded, and each pixel is the lighter of both images.
    """
    longest = supervised.answers(jnp.asarray(encoding.object_presence), num_labels)
    classes = jnp.where(number < 0, longest, number)
    return jnp.max(self._decode_each(jnp.asarray(encoding.object_poses), classes), axis=1)

  def draw(self, batch: Batch) -> dict[str, dict[str, Array]]:
    """Arrays of the figures: reconstructions, capsule dimensions, and the routing of an example."""
    output = self(batch, train=False)
    routing = {name: getattr(output.routing, name)[0] for name in ("coupling", "agreement")}
    return {
      **_reconstructions(batch, output),
      "capsule_dimensions": {"perturbed": self._perturbed(output), "offsets": jnp.asarray(OFFSETS)},
      "coupling": {"image": batch["image"][0], **routing},
    }

  def _perturbed(self, output: CapsNetOutput) -> Array:
    """Images [n, d, s, h, w, c] of a few examples, with number d of the capsule changed by s."""
    capsules = output.routing.parents[:NUM_PERTURBED]
    mask = jax.nn.one_hot(output.drawn[:NUM_PERTURBED, 0], self.num_classes)
    changes = OFFSETS[:, None] * np.eye(self.class_features, dtype=np.float32)[:, None]
    changed = capsules[:, None, None] + changes[None, :, :, None]
    return self._decode(mask[:, None, None, :, None] * changed)


class ClassCapsules(nn.Module):
  """Class capsules: linear predictions of the primary capsules, routed by agreement."""

  num_classes: int  # k
  features: int  # numbers of a class capsule
  iterations: int  # of routing
  through_all: bool  # whether gradients flow through all iterations

  @nn.compact
  @typed
  def __call__(self, primary: Float[Array, "b n d"]) -> dynamic.DynamicRouting:
    shape = (primary.shape[1], self.num_classes, primary.shape[2], self.features)
    # The standard deviation of the authors' release.
    maps = self.param("maps", nn.initializers.truncated_normal(0.1), shape, jnp.float32)
    predictions = jnp.einsum("bnd,nkde->bnke", primary, maps)
    route = functools.partial(
      dynamic.route_by_agreement, iterations=self.iterations, through_all=self.through_all
    )
    return jax.vmap(route)(predictions)


@typed
def in_order_of(
  labels: Int[Array, "b labels"], predicted: Int[Array, "b labels"]
) -> Int[Array, "b labels"]:
  """Predicted classes, swapped where that makes more of them equal to their labels."""
  swapped = predicted[:, ::-1]
  matches = jnp.sum(predicted == labels, axis=1, keepdims=True)
  is_better = jnp.sum(swapped == labels, axis=1, keepdims=True) > matches
  return jnp.where(is_better, swapped, predicted)


def _reconstructions(batch: Batch, output: CapsNetOutput) -> dict[str, dict[str, Array]]:
  classes = {"label": system.labels_of(batch), "predicted": output.drawn}
  if "sources" not in batch:
    classes = {name: array[:, 0] for name, array in classes.items()}
    images = {"image": batch["image"], "reconstruction": output.reconstruction[:, 0]}
    return {"class_reconstructions": classes | images}
  images = {name: batch[name] for name in ("image", "sources")}
  images["reconstructions"] = output.reconstruction
  return {"overlaid_reconstructions": classes | images}


def _squared_error(output: CapsNetOutput, batch: Batch) -> Array:
  """Squared error of each image's reconstructions, summed over pixels, [b]."""
  targets = batch["sources"] if "sources" in batch else batch["image"][:, None]
  return jnp.sum(jnp.square(output.reconstruction - targets), axis=(1, 2, 3, 4))


def loss_terms(
  output: CapsNetOutput, batch: Batch, step: Array | int | None, *, loss: CapsNetLoss
) -> dict[str, Array]:
  """Terms to minimise, each unweighted and a mean over the batch.

  `margin`: the margin loss, summed over classes. `reconstruction`: the squared error, summed over
  pixels and, with two labels, over both images.
  """
  present = supervised.present(system.labels_of(batch), output.lengths.shape[1])
  names = ("present_margin", "absent_margin", "absent_weight")
  options = {name: getattr(loss, name) for name in names}
  margin = jax.vmap(functools.partial(margin_loss, **options))(output.lengths, present)
  return {"margin": jnp.mean(margin), "reconstruction": jnp.mean(_squared_error(output, batch))}


def encoding(output: CapsNetOutput) -> Encoding:
  """The `Encoding` of images; presences and scores are the lengths of capsules."""
  lengths = output.lengths
  return Encoding(object_presence=lengths, object_poses=output.routing.parents, scores=lengths)


def metrics(output: CapsNetOutput, batch: Batch) -> dict[str, Array]:
  """`accuracy` [b], the share of labels predicted; `squared_error` [b] of the reconstructions."""
  accuracy = supervised.accuracy(output.lengths, system.labels_of(batch))
  return {"accuracy": accuracy, "squared_error": _squared_error(output, batch)}


# The classes that sections of the config are read into.
SECTIONS = {
  "model": (CapsNet,),
  "loss": (CapsNetLoss,),
}


def make_system(model: Mapping[str, Any], loss: Mapping[str, Any], data: Spec) -> System:
  """A CapsNet from config sections: fields of `CapsNet`, and `CapsNetLoss`."""
  spec = require_images("capsnet", data, in_unit_range=True)
  options = bounds.read(CapsNetLoss, "loss", loss)
  sizes = {name: getattr(spec, name) for name in ("canvas", "channels", "num_classes")}
  module = build_module(CapsNet, "model", model, **sizes)
  windows = [Window(module.conv_kernel, 1), Window(module.primary_kernel, module.primary_stride)]
  keys = ("conv_kernel", "primary_kernel", "primary_stride")
  require_receptive_field(
    spec.canvas, windows, {f"model.{key}": getattr(module, key) for key in keys}
  )
  draw_from_objects = nn.apply(CapsNet.draw_from_objects, module)
  return System(
    module=module,
    loss_terms=functools.partial(loss_terms, loss=options),
    loss_weights=options.weights,
    loss_schedule=options.schedule,
    metrics=metrics,
    encoding=encoding,
    pictures=nn.apply(CapsNet.draw, module),
    draws={"objects": functools.partial(draw_from_objects, num_labels=spec.num_labels)},
  )
