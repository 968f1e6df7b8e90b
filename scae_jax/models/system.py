"""What the training loop and the evaluator know of a model."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax.numpy as jnp
from flax import linen as nn

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

  def blank_batch(self, batch_size: int) -> Batch:
    """Black images of the first class, overlaid with the second, for shapes only."""
    size = (self.canvas, self.canvas, self.channels)
    batch = {
      "image": jnp.zeros((batch_size, *size)),
      "label": jnp.zeros((batch_size,), jnp.int32),
    }
    if self.normalized:
      batch |= {"mean": jnp.zeros((batch_size,)), "std": jnp.ones((batch_size,))}
    if self.num_labels == 1:
      return batch
    return {
      **batch,
      "other_label": jnp.ones((batch_size,), jnp.int32),
      "sources": jnp.zeros((batch_size, 2, *size)),
    }


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


@dataclasses.dataclass(frozen=True)
class FreeForm:
  """Encodes, optimises and scores posteriors of single examples without the encoder.

  Free-form inference optimises the parameters of each example's approximate posterior. A posterior
  is a tree of arrays [b, ...]. Examples do not depend on each other. All functions are jittable.
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
  # posterior; to be minimised. As `System.loss_weights`, in the order in which they are computed.
  terms: Callable[[Any, Any, Batch, Array], dict[str, Array]]
  # `posterior -> {name: [b, d]}`, as `System.readings` of the model's output.
  readings: Callable[[Any], dict[str, Array]]
  # `(variables, posterior, batch) -> [b, h, w, c]`, the reconstruction.
  draw: Callable[[Any, Any, Batch], Array]


def _nothing(*_: Any) -> dict[str, Any]:
  return {}


@dataclasses.dataclass(frozen=True)
class System:
  """A model as `training` and `evaluation` see it; each model's file exports `make_system`.

  `make_system(model: dict, loss: dict, data: Spec) -> System` takes the config's model and loss
  sections as plain dicts and raises `ValueError` when they do not fit each other or the data.
  """

  # `module.init({"params": key, "noise": key}, batch, train=True)` gives variables with the one
  # collection `params`; `module.apply(variables, batch, train=..., rngs={"noise": key})` gives the
  # output struct. With `train=False` no rng is needed.
  module: nn.Module
  # `(output, batch, step) -> {name: scalar}`, each term unweighted and to be minimised. A mean over
  # the examples; where examples see each other, or the module draws noise, it uses `shards`, as
  # every device computes these of its own examples. The step of training, counted from 0, is for
  # terms that change with it; None asks for them as they are at last, of held-out examples.
  loss_terms: Callable[[Any, Batch, Array | int | None], dict[str, Array]]
  # Weight of every term, same keys; the total is their weighted sum. Where several terms are not
  # finite, they are named in this order: what is computed first comes first.
  loss_weights: Mapping[str, float]
  # Points (step, factor) of the terms whose weight changes while training; see
  # `training.objective.scheduled_weights`.
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
  # own to image coordinates, see `scae_jax.geometry`; None if the model has none.
  poses: Callable[[Any], dict[str, tuple[Array, Array]]] | None = None
  # `output -> [b, classes]`, scores in [0, 1] of a model that is trained with labels; the largest
  # is its answer and its confidence. None for the others.
  classify: Callable[[Any], Array] | None = None
  # `output -> {name: [b, d]}`, numbers of any sign that evaluation only classifies linearly, such
  # as logits and poses, under other names than `features`; None if there are none.
  readings: Callable[[Any], dict[str, Array]] | None = None
  free_form: FreeForm | None = None  # how to infer without the networks; None if the model cannot
  # `step -> {name: value}`, more keyword arguments of the module in training. Without them it runs
  # as it does at last: so are held-out examples judged. None if there are none.
  arguments: Callable[[Array | int], Mapping[str, Any]] | None = None

  def all_readings(self, output: Any) -> dict[str, Array]:
    """`readings` of an output; {} where the model has none."""
    return {} if self.readings is None else dict(self.readings(output))


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
  """The spec, if it is that of images, and, for systems that draw, of pixels in [0, 1].

  Otherwise raises `ValueError`.
  """
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
