"""The interface between a model and the training loop, evaluation and library.

A model is a `System`; what it finds in examples is an `Encoding`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import struct

from scae_jax import bounds
from scae_jax.typing import Array, Batch, Float, Int


@dataclasses.dataclass(frozen=True)
class ImageSpec:
  """The properties of a data set of images that a model is built from."""

  canvas: int  # side of the square image that the model sees, pixels
  channels: int  # image channels
  num_classes: int  # number of classes
  num_labels: int = 1  # labels of an image: 1, or 2 where two images of different classes overlap
  # Whether each image has zero mean and unit variance; otherwise pixels are in [0, 1].
  normalized: bool = False
  # Whether a training batch has two views of each image, in consecutive rows.
  two_views: bool = False

  def blank_batch(self, batch_size: int) -> Batch:
    """A batch of black images with the shapes and types of real ones."""
    size = (self.canvas, self.canvas, self.channels)
    label = jnp.zeros((batch_size,), jnp.int32)
    batch = {"image": jnp.zeros((batch_size, *size)), "label": label}
    if self.normalized:
      batch |= {"mean": jnp.zeros((batch_size,)), "std": jnp.ones((batch_size,))}
    if self.num_labels == 2:
      batch["other_label"] = jnp.ones((batch_size,), jnp.int32)
      batch["sources"] = jnp.zeros((batch_size, 2, *size))
    return batch


def labels_of(batch: Batch) -> Int[Array, "b labels"]:
  """The one or two labels of every image."""
  names = [name for name in ("label", "other_label") if name in batch]
  return jnp.stack([batch[name] for name in names], axis=1)


def pixels_of(batch: Batch) -> Float[Array, "b h w c"]:
  """The images in [0, 1]; normalisation is undone."""
  if "mean" not in batch:
    return batch["image"]
  mean, std = (batch[name][:, None, None, None] for name in ("mean", "std"))
  return batch["image"] * std + mean


@dataclasses.dataclass(frozen=True)
class PointSpec:
  """The properties of scenes of points that a model is built from."""

  num_points: int  # points of a scene, absent ones included
  num_patterns: int  # groups that points can belong to
  largest_pattern: int  # points of the largest group

  def blank_batch(self, batch_size: int) -> Batch:
    """A batch of scenes with the shapes and types of real ones; all points are at the origin."""
    shape = (batch_size, self.num_points)
    return {
      "points": jnp.zeros((*shape, 2)),
      "presence": jnp.ones(shape),
      "pattern": jnp.zeros(shape, jnp.int32),
    }


Spec = ImageSpec | PointSpec
Numbers = np.ndarray | jax.Array
# Lower bound of an encoded presence where a changed presence is divided by it.
MIN_PRESENCE = 1e-30


@struct.dataclass
class Encoding:
  """What a model finds in a batch of examples; fields that a model lacks are None or {}.

  Report, library, page and experiments read it. `replace(object_poses=...)` returns a changed copy,
  which can be drawn. `encoding[3:5]` selects examples.

  Attributes:
    object_presence: [b, k], in [0, 1].
    object_poses: [b, k, 2, 3], from object to image coordinates; for a CapsNet the vectors
      [b, k, d] of its capsules, for matrix capsules their matrices [b, k, 4, 4].
    part_presence: [b, m], in [0, 1].
    part_poses: [b, m, 2, 3], from part to image coordinates.
    part_winner: int32 [b, m], the object that explains each part best, k for none of them.
    posterior_mass: [b, k], share of all parts that each object explains.
    scores: [b, classes], in [0, 1], for a model that is trained with labels. The class of the
      largest score is the prediction, the score its confidence.
    groups: int32 [b, n], the object that each point belongs to, if it is present with a probability
      above 0.5; -1 for none.
    point_winner: int32 [b, n], the object that each point belongs to, whatever its presence; -1 for
      absent points.
    features: {name: [b, d]}, non-negative activations that evaluation clusters and classifies
      linearly; {} for a model that is trained with labels.
    probe_features: {name: [b, d]}, numbers of any sign that evaluation only classifies linearly,
      such as logits and poses. Names differ from those of `features`.
    details: {name: [b, ...]}, what drawing needs besides; not to be changed.
  """

  object_presence: Numbers | None = None
  object_poses: Numbers | None = None
  part_presence: Numbers | None = None
  part_poses: Numbers | None = None
  part_winner: Numbers | None = None
  posterior_mass: Numbers | None = None
  scores: Numbers | None = None
  groups: Numbers | None = None
  point_winner: Numbers | None = None
  features: Mapping[str, Numbers] = dataclasses.field(default_factory=dict)
  probe_features: Mapping[str, Numbers] = dataclasses.field(default_factory=dict)
  details: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __len__(self) -> int:
    """Number of examples."""
    return len(jax.tree.leaves(self)[0])

  def __repr__(self) -> str:
    """Names and shapes of the arrays."""
    leaves = jax.tree.leaves_with_path(self)
    names = (jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves)
    shapes = (
      f"{name}={list(np.shape(leaf))}" for name, (_, leaf) in zip(names, leaves, strict=True)
    )
    return f"Encoding({', '.join(shapes)})"

  def __getitem__(self, rows: int | slice | np.ndarray) -> "Encoding":
    """Selects examples; a single index gives a batch of one."""
    indices = [rows] if isinstance(rows, int | np.integer) else rows
    return jax.tree.map(lambda array: np.asarray(array)[indices], self)


Found = Encoding  # its name in version 0.1


# (variables, encoding, number, canvas) -> images [b, h, w, c] of canvas x canvas pixels. `number`,
# int32 [], is the capsule to draw alone; a negative number draws all. Jittable.
Draw = Callable[[Any, Encoding, Array, int], Array]


@dataclasses.dataclass(frozen=True)
class FreeForm:
  """Encodes, optimises and scores posteriors of single examples without the encoder.

  A posterior is a tree of arrays [b, ...] of independent examples. All functions are jittable.
  """

  # `(variables, batch) -> posterior`, inferred by the model's networks.
  encode: Callable[[Any, Batch], Any]
  prior: Callable[[Any, Batch], Any]  # `(variables, batch) -> posterior`, the moments of the prior
  # `posterior -> tree` of unconstrained float arrays [b, ...] for an optimiser, such as the
  # logarithm of a standard deviation.
  unconstrain: Callable[[Any], Any]
  constrain: Callable[[Any], Any]  # `tree -> posterior`, the inverse
  # `(variables, posterior, batch, key) -> {name: [b]}`, terms to minimise, nats, differentiable in
  # the posterior. Their sum is minus an unbiased estimate of the lower bound on the log-likelihood
  # of each example. They are in the order of computation, as in `System.loss_weights`.
  terms: Callable[[Any, Any, Batch, Array], dict[str, Array]]
  encoding: Callable[[Any, Any], Encoding]  # `(variables, posterior) -> Encoding`


def _empty(*_: Any) -> dict[str, Any]:
  return {}


@dataclasses.dataclass(frozen=True, eq=False)  # hashed by identity: jit takes it as a static one
class System:
  """A model as `training` and `evaluation` see it; each model's file exports `make_system`.

  `make_system(model: dict, loss: dict, data: Spec) -> System` takes the config's model and loss
  sections as plain dicts and raises `ValueError` when they do not fit each other or the data.
  """

  # `module.init({"params": key, "noise": key}, batch, train=True)` gives variables with the one
  # collection `params`; `module.apply(variables, batch, train=..., rngs={"noise": key})` gives the
  # output struct. With `train=False` no rng is needed.
  module: nn.Module
  # `(output, batch, step) -> {name: scalar}`, unweighted terms to minimise, each a mean over the
  # examples. Each device computes the terms of its own examples: terms that compare examples, and
  # noise in the module, use `shards`. `step` counts from 0, for terms that change in training.
  # Held-out examples have the step None: terms have their final form, and terms that only training
  # has are left out.
  loss_terms: Callable[[Any, Batch, Array | int | None], dict[str, Array]]
  # Weight of each term; the total loss is the weighted sum. A term without a weight is left out.
  # Terms are in the order of computation: if several are not finite, the error names them in this
  # order.
  loss_weights: Mapping[str, float]
  # Points (step, factor) for terms whose weight changes during training; see
  # `training.step.scheduled_weights`.
  loss_schedule: Mapping[str, tuple[tuple[float, float], ...]]
  # `(output, batch) -> {name: [b]}`, one number for each example, reported and not trained, such as
  # a squared error or whether a probe was right (0. or 1.).
  metrics: Callable[[Any, Batch], dict[str, Array]]
  # `output -> Encoding` of the output without noise; it must not depend on labels.
  encoding: Callable[[Any], Encoding]
  # `(variables, batch) -> {figure name: {argument: array}}`: the arguments of each figure of
  # `scae_jax.figures` that the model supports. Jittable.
  pictures: Callable[[Any, Batch], dict[str, dict[str, Array]]] = _empty
  free_form: FreeForm | None = None  # inference without the encoder; None if not supported
  # How images are drawn from an encoding: by `objects` or by `parts`, the default first; {} if the
  # model draws none.
  draws: Mapping[str, Draw] = dataclasses.field(default_factory=dict)
  # `(variables, batch, map) -> Encoding`: as `encode`, but a map [2, 3] of the image moves the
  # poses of all parts before objects see them; presences and special features stay. Jittable. None
  # for a model without parts and objects.
  encode_moved: Callable[[Any, Batch, Array], Encoding] | None = None
  # `path -> bool`: whether the first axis of a parameter, such as "object_decoder/object_part", is
  # object capsules, so that an object can be copied onto another. None if objects cannot be copied;
  # otherwise encodings have `posterior_mass`.
  object_params: Callable[[str], bool] | None = None
  # `step -> {name: value}`, further keyword arguments of the module in training; None for none.
  # Without them the module runs with their final values, as it does on held-out examples.
  arguments: Callable[[Array | int], Mapping[str, Any]] | None = None

  def encode(self, variables: Any, batch: Batch) -> Encoding:
    """Encodes a batch; its labels are not used. Jittable."""
    return self.encoding(self.module.apply(variables, batch, train=False))

  def encoding_shapes(self, variables: Any, data: Spec, batch_size: int = 1) -> Encoding:
    """Shapes and types of the encoding of a batch; computes nothing."""
    return jax.eval_shape(self.encode, variables, data.blank_batch(batch_size))


@dataclasses.dataclass(frozen=True)
class LossOptions:
  """The config's loss section of a system without further keys."""

  weights: bounds.Weights  # of each loss term
  # Points (step, factor) for terms whose weight changes during training.
  schedule: bounds.Schedules


def require_images(system: str, data: Spec, *, in_unit_range: bool = False) -> ImageSpec:
  """The data as an `ImageSpec`.

  ValueError if the data are points or, with `in_unit_range`, if pixels are normalised.
  """
  if not isinstance(data, ImageSpec):
    raise ValueError(
      f"config.system {system!r} takes images, but config.data.name names scenes of points; their"
      " system is 'ccae'."
    )
  if in_unit_range and data.normalized:
    raise ValueError(
      f"config.data.normalize must be False with config.system {system!r}, whose drawings are"
      " compared with pixels in [0, 1]; it is True."
    )
  return data
