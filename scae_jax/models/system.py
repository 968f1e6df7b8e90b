"""What the training loop and the evaluator know of a model."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from flax import linen as nn

from scae_jax.typing import Array, Batch


@dataclasses.dataclass(frozen=True)
class DataSpec:
  """The facts about a data set that a model is built from.

  Attributes:
    canvas: side of the square image that the model sees, pixels.
    channels: image channels.
    num_classes: number of labels.
  """

  canvas: int
  channels: int
  num_classes: int


@dataclasses.dataclass(frozen=True)
class System:
  """A model as `training` and `evaluation` see it; each model's file exports `make_system`.

  `make_system(model: dict, loss: dict, data: DataSpec) -> System` takes the config's model and loss
  sections as plain dicts and raises `ValueError` when they do not fit each other or the data.

  Attributes:
    module: `module.init({"params": key, "noise": key}, batch, train=True)` gives variables with the
      one collection `params`; `module.apply(variables, batch, train=..., rngs={"noise": key})` gives
      the output struct. With `train=False` no rng is needed.
    loss_terms: `(output, batch) -> {name: scalar}`, each term unweighted and to be minimised.
    loss_weights: weight of every term, same keys; the total is their weighted sum.
    measures: `(output, batch) -> {name: [b]}`, numbers an example that are reported and not
      trained, such as a squared error or whether a probe was right (0. or 1.).
    features: `output -> {name: [b, d]}`, non-negative activations that evaluation clusters and
      classifies linearly.
    pictures: `(variables, batch) -> {figure name: {argument: array}}`: for each figure of
      `scae_jax.figures` that the model can feed, the arrays that it takes. Jittable.
  """

  module: nn.Module
  loss_terms: Callable[[Any, Batch], dict[str, Array]]
  loss_weights: Mapping[str, float]
  measures: Callable[[Any, Batch], dict[str, Array]]
  features: Callable[[Any], dict[str, Array]]
  pictures: Callable[[Any, Batch], dict[str, dict[str, Array]]]
