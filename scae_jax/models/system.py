"""What the training loop and the evaluator know of a model."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import struct

from scae_jax import bounds
from scae_jax.typing import Array, Batch, Float, Int


@dataclasses.dataclass(frozen=True)
class ImageSpec:
  """The facts about a data set of images that a model is built from."""

  canvas: int  # side of the square image that the model sees, pixels
  channels: int  # image channels
  num_classes: int  # number of labels
  num_labels: int = 1  # of an image: 1, or 2 where it is two images of different classes overlaid
  # Whether pixels are not in [0, 1] but of zero mean and unit variance in each image.
  normalized: bool = False
  # Whether a training batch has two views of each image, in succession.
  two_views: bool = False

  def blank_batch(self, batch_size: int) -> Batch:
    """Black images of the first class, overlaid with the second, for shapes only."""
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
  """The images in [0, 1], to be looked at: of normalised ones what they were before."""
  if "mean" not in batch:
    return batch["image"]
  mean, std = (batch[name][:, None, None, None] for name in ("mean", "std"))
  return batch["image"] * std + mean


@dataclasses.dataclass(frozen=True)
class PointSpec:
  """The facts about scenes of points that a model is built from."""

  num_points: int  # points of a scene, absent ones included
  num_patterns: int  # groups that points can belong to
  largest_pattern: int  # points of the largest group

  def blank_batch(self, batch_size: int) -> Batch:
    """Scenes of present points in the middle, all of the first pattern, for shapes only."""
    shape = (batch_size, self.num_points)
    return {
      "points": jnp.zeros((*shape, 2)),
      "presence": jnp.ones(shape),
      "pattern": jnp.zeros(shape, jnp.int32),
    }


Spec = ImageSpec | PointSpec
Numbers = np.ndarray | jax.Array
# Least found presence by which a changed one is divided.
MIN_PRESENCE = 1e-30


@struct.dataclass
class Encoding:
  """What a model finds in examples; None where it has no such thing.

  `replace(object_poses=...)` gives a changed copy to draw, `found[3:5]` some of the examples.

  Attributes:
    object_presence: [b, k], in [0, 1].
    object_poses: [b, k, 2, 3], from an object's own to image coordinates; of a CapsNet the vectors
      [b, k, d] of its capsules, of matrix capsules their matrices [b, k, 4, 4].
    part_presence: [b, m], in [0, 1].
    part_poses: [b, m, 2, 3].
    posterior_mass: [b, k], share of all parts that every object explains.
    scores: [b, classes], in [0, 1], of a model that is trained with labels.
    groups: int32 [b, n], the object that every point belongs to, -1 for none.
    features: {name: [b, d]}, what evaluation clusters; {} of a model that is trained with labels.
    details: {name: [b, ...]}, what else the model draws from; not to be changed.
  """

  object_presence: Numbers | None = None
  object_poses: Numbers | None = None
  part_presence: Numbers | None = None
  part_poses: Numbers | None = None
  posterior_mass: Numbers | None = None
  scores: Numbers | None = None
  groups: Numbers | None = None
  features: Mapping[str, Numbers] = dataclasses.field(default_factory=dict)
  details: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __len__(self) -> int:
    """Number of examples."""
    return len(jax.tree.leaves(self)[0])

  def __repr__(self) -> str:
    """Shapes, not numbers."""
    leaves = jax.tree.leaves_with_path(self)
    names = (jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves)
    shapes = (f"{n}={list(np.shape(leaf))}" for n, (_, leaf) in zip(names, leaves, strict=True))
    return f"Encoding({', '.join(shapes)})"

  def __getitem__(self, rows: int | slice | np.ndarray) -> "Encoding":
    """Some of the examples; of a number, this one as a batch of one."""
    chosen = [rows] if isinstance(rows, int | np.integer) else rows
    return jax.tree.map(lambda array: np.asarray(array)[chosen], self)


Found = Encoding  # its name in version 0.1


# (variables, found, number, canvas) -> images [b, h, w, c]: of one capsule alone, or of all where
# the number, int32 [], is negative. Jittable.
Draw = Callable[[Any, Encoding, Array, int], Array]


@dataclasses.dataclass(frozen=True)
class FreeForm:
  """Encodes, optimises and scores posteriors of single examples without the encoder.

  A posterior is a tree of arrays [b, ...] of independent examples. All functions are jittable.
  """

  # `(variables, batch) -> posterior`, as the model's networks find it.
  encode: Callable[[Any, Batch], Any]
  prior: Callable[[Any, Batch], Any]  # `(variables, batch) -> posterior`, the moments of the prior
  # `posterior -> tree` of float arrays [b, ...] without constraints, for an optimiser; for example
  # the logarithm of a standard deviation.
  unconstrain: Callable[[Any], Any]
  constrain: Callable[[Any], Any]  # `tree -> posterior`, the inverse
  # `(variables, posterior, batch, key) -> {name: [b]}`, terms whose sum is minus an unbiased
  # estimate of the lower bound on the log-likelihood of each example, nats, differentiable in the
  # posterior; to be minimised. In the order of computation, as in `System.loss_weights`.
  terms: Callable[[Any, Any, Batch, Array], dict[str, Array]]
  # `posterior -> {name: [b, d]}`, as `System.readings` of the model's output.
  readings: Callable[[Any], dict[str, Array]]
  find: Callable[[Any, Any], Encoding]  # `(variables, posterior) -> Encoding`


def _nothing(*_: Any) -> dict[str, Any]:
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
  # `(output, batch, step) -> {name: scalar}`, each term unweighted, to be minimised, and a mean
  # over the examples. Every device computes the terms of its own examples: terms that compare
  # examples, and noise in the module, use `shards`. `step` counts from 0, for terms that change
  # in training; None, for held-out examples, gives their final form, and leaves out what is of
  # training alone.
  loss_terms: Callable[[Any, Batch, Array | int | None], dict[str, Array]]
  # Weight of every term; the total is their weighted sum. A term without a weight is left out.
  # Where several terms are not finite, they are named in this order: what is computed first comes
  # first.
  loss_weights: Mapping[str, float]
  # Points (step, factor) of the terms whose weight changes while training; see
  # `training.step.scheduled_weights`.
  loss_schedule: Mapping[str, tuple[tuple[float, float], ...]]
  # `(output, batch) -> {name: [b]}`, numbers an example that are reported and not trained, such as
  # a squared error or whether a probe was right (0. or 1.).
  metrics: Callable[[Any, Batch], dict[str, Array]]
  # `output -> {name: [b, d]}`, non-negative activations that evaluation clusters and classifies
  # linearly; {} of a model that has `classify`.
  features: Callable[[Any], dict[str, Array]] = _nothing
  # `(variables, batch) -> {figure name: {argument: array}}`: for each figure of `scae_jax.figures`
  # that the model can feed, the arrays that it takes. Jittable.
  pictures: Callable[[Any, Batch], dict[str, dict[str, Array]]] = _nothing
  # `output -> {name: [b, n]}`, of a model of points: the capsule that each point belongs to, int32,
  # -1 for none; None if there are no points.
  segment: Callable[[Any], dict[str, Array]] | None = None
  # `output -> {kind of capsule: (poses [b, n, 2, 3], presences [b, n])}`, poses from a capsule's
  # own to image coordinates, see `scae_jax.math.geometry`; None if the model has none.
  poses: Callable[[Any], dict[str, tuple[Array, Array]]] | None = None
  # `output -> [b, classes]`, scores in [0, 1] of a model that is trained with labels; the largest
  # is its answer and its confidence. None for the others.
  classify: Callable[[Any], Array] | None = None
  # `output -> {name: [b, d]}`, numbers of any sign that evaluation only classifies linearly, such
  # as logits and poses, under other names than `features`.
  readings: Callable[[Any], dict[str, Array]] = _nothing
  free_form: FreeForm | None = None  # how to infer without the networks; None if the model cannot
  # `(variables, batch) -> Encoding`, without any label of the batch; None for `look`'s default.
  find: Callable[[Any, Batch], Encoding] | None = None
  # What images can be drawn from, `objects` or `parts`, the usual one first; {} of a model that
  # draws none.
  draws: Mapping[str, Draw] = dataclasses.field(default_factory=dict)
  # `path -> bool`, whether a parameter, such as "object_decoder/object_part", has one entry an
  # object capsule in front, so that one object can become a copy of another; None if none can. What
  # `find` gives then has `posterior_mass`.
  object_params: Callable[[str], bool] | None = None
  # `step -> {name: value}`, more keyword arguments of the module in training. Without them it runs
  # as it does at last: so are held-out examples judged. None if there are none.
  arguments: Callable[[Array | int], Mapping[str, Any]] | None = None

  def look(self, variables: Any, batch: Batch) -> Encoding:
    """What the model finds in a batch, whose labels mean nothing; jittable."""
    if self.find is not None:
      return self.find(variables, batch)
    output = self.module.apply(variables, batch, train=False)
    scores = None if self.classify is None else self.classify(output)
    return Encoding(scores=scores, features=self.features(output))


@dataclasses.dataclass(frozen=True)
class LossOptions:
  """The config's loss section of a system without further keys."""

  weights: bounds.Weights  # of each loss term
  # Points (step, factor) of the terms whose weight changes while training.
  schedule: bounds.Schedules


ModuleType = TypeVar("ModuleType", bound=nn.Module)


def build_module(kind: type[ModuleType], section: str, values: Any, **derived: Any) -> ModuleType:
  """`bounds.read` of a Flax module, whose fields are the keys of a config section."""
  return bounds.read(kind, section, values, parent=None, name=None, **derived)


def build_stage(
  model: dict[str, Any], name: str, kind: type[ModuleType], **derived: Any
) -> ModuleType:
  """`build_module` of a section of the model, which is taken out of it."""
  return build_module(kind, f"model.{name}", model.pop(name, {}), **derived)


def require_images(system: str, data: Spec, *, in_unit_range: bool = False) -> ImageSpec:
  """The spec, if it is of images and, for systems that draw, pixels in [0, 1]; or `ValueError`."""
  if not isinstance(data, ImageSpec):
    raise ValueError(
      f"config.system {system!r} takes images, and config.data.name names scenes of points; the"
      " system for those is 'ccae'."
    )
  if in_unit_range and data.normalized:
    raise ValueError(
      f"config.data.normalize must be False with config.system {system!r}, which compares what it"
      " draws with pixels in [0, 1]; it is True."
    )
  return data
