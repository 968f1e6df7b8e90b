"""Convolutional networks without capsules, for comparison: LeNet-5, and the baseline of CapsNet.

LeCun, Bottou, Bengio and Haffner 1998, "Gradient-Based Learning Applied to Document Recognition",
with ReLU and plain average pooling; Sabour, Frosst and Hinton 2017, section 5.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct

from scae_jax import bounds, shards
from scae_jax.bounds import MAX_KERNEL, MAX_WIDTH, Bound, below, between, build_module, each, one_of
from scae_jax.layers.convnet import PADDINGS, Convolution
from scae_jax.layers.receptive_field import Window, require_receptive_field
from scae_jax.models import supervised, system
from scae_jax.models.system import Encoding, LossOptions, Spec, System, require_images
from scae_jax.typing import Array, Batch, Float

ODD_IF_SAME = Bound(
  "an odd number of pixels where {section}.padding is {padding!r}",
  lambda value, fields: fields["padding"] != "same" or value % 2 == 1,
)


@struct.dataclass
class CNNOutput:
  """Logits [b, k] of the classes."""

  logits: Float[Array, "b k"]


class CNN(nn.Module):
  """Convolutions with ReLU and optional average pooling, then dense layers.

  On 28x28 grey images of ten classes, LeNet-5 (`widths` 6 and 16, `pool` 2, `hidden` 120 and 84,
  `valid` 5x5 kernels) has 44,426 parameters, and the baseline of CapsNet (`widths` 256, 256 and
  128, no pooling, `hidden` 328 and 192, `same` 5x5 kernels, dropout) 35,445,522.
  """

  widths: Annotated[tuple[int, ...], each(between(1, MAX_WIDTH))]  # channels of each convolution
  kernel: Annotated[int, between(1, MAX_KERNEL), ODD_IF_SAME]  # side of all kernels, pixels
  padding: Annotated[str, one_of(*PADDINGS)]  # of convolutions, `valid` or `same`
  # Side of the squares over which feature maps are averaged, pixels; 1 is no pooling.
  pool: Annotated[int, between(1, MAX_KERNEL)]
  # Units of each dense layer but the last.
  hidden: Annotated[tuple[int, ...], each(between(1, MAX_WIDTH))]
  dropout: Annotated[float, below(0, 1)]  # share of the last hidden units dropped in training
  num_classes: int  # k

  @nn.compact
  def __call__(self, batch: Batch, *, train: bool) -> CNNOutput:
    """One pass over a batch."""
    x = batch["image"]
    he = nn.initializers.he_normal()
    for i, width in enumerate(self.widths):
      x = Convolution(
        width, self.kernel, padding=self.padding, kernel_init=he, name=f"convolution_{i}"
      )(x)
      x = nn.avg_pool(jax.nn.relu(x), (self.pool, self.pool), strides=(self.pool, self.pool))
    x = x.reshape(x.shape[0], -1)
    for i, width in enumerate(self.hidden):
      x = jax.nn.relu(nn.Dense(width, kernel_init=he, name=f"dense_{i}")(x))
    if train and self.dropout > 0:
      # Not nn.Dropout: its mask would be the same on each device.
      kept = shards.draw(self._is_kept, self.make_rng("noise"), x.shape)
      x = jnp.where(kept, x / (1 - self.dropout), 0)
    return CNNOutput(nn.Dense(self.num_classes, name="classes")(x))

  def _is_kept(self, key: Array, shape: Sequence[int]) -> Array:
    return jax.random.bernoulli(key, 1 - self.dropout, shape)


def loss_terms(output: CNNOutput, batch: Batch, step: Array | int | None) -> dict[str, Array]:
  """`cross_entropy` of the labels, nats, mean over labels and batch; independent of the step."""
  labels = system.labels_of(batch)
  logits = jnp.broadcast_to(output.logits[:, None], (*labels.shape, output.logits.shape[1]))
  cross_entropy = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
  return {"cross_entropy": jnp.mean(cross_entropy)}


def metrics(output: CNNOutput, batch: Batch) -> dict[str, Array]:
  """`accuracy` [b], the share of labels predicted."""
  return {"accuracy": supervised.accuracy(output.logits, system.labels_of(batch))}


# The classes that sections of the config are read into.
SECTIONS = {
  "model": (CNN,),
  "loss": (LossOptions,),
}


def make_system(model: Mapping[str, Any], loss: Mapping[str, Any], data: Spec) -> System:
  """A CNN from config sections: fields of `CNN`, and `LossOptions`."""
  spec = require_images("cnn", data)
  options = bounds.read(LossOptions, "loss", loss)
  module = build_module(CNN, "model", model, num_classes=spec.num_classes)
  margin = module.kernel // 2 if module.padding == "same" else 0
  layer = [Window(module.kernel, 1, margin), Window(module.pool, module.pool)]
  keys = {f"model.{key}": getattr(module, key) for key in ("widths", "kernel", "pool")}
  require_receptive_field(spec.canvas, layer * len(module.widths), keys)
  return System(
    module=module,
    loss_terms=loss_terms,
    loss_weights=options.weights,
    loss_schedule=options.schedule,
    metrics=metrics,
    encoding=lambda output: Encoding(scores=jax.nn.softmax(output.logits)),
  )
