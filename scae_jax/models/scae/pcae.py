"""Part capsule autoencoder (PCAE): an image to part capsules, and a mixture drawn from them.

Kosiorek et al. 2019, section 2.2 and appendix A.
"""

import functools
import math
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import struct

from scae_jax import shards
from scae_jax.bounds import (
  MAX_KERNEL,
  MAX_SIDE,
  MAX_WIDTH,
  Bound,
  as_many_as,
  between,
  each,
  one_of,
)
from scae_jax.kernels.image_likelihood import cells_of, image_log_prob, sum_by_example
from scae_jax.layers.convnet import ConvNet, covering_cells, sees_ink
from scae_jax.layers.mlp import MLP
from scae_jax.layers.pooling import POOLINGS, Pooling
from scae_jax.math import geometry, mixtures, warping
from scae_jax.typing import Array, Float, typed

POSE_SIZE = 6
# Corners are aligned: the pixels of a template span [-1, 1], which one pixel cannot.
MIN_TEMPLATE_SIZE = 2
NONLINEARITIES = ("sigmoid", "relu1")
MIXINGS = ("alpha", "coupled")
PLACES = ("free", "cells")
REACH = 2  # cells from the attended place to a part, at most
MAX_LIKELIHOOD_STRIDE = 4
MAX_NOISE = 1_000.0  # width of the noise on logits
# Range of standard deviations: squares and logarithms stay accurate in float32.
STD_RANGE = (1e-4, 1e4)


OFF_WITHOUT_COLOUR = Bound(
  "False where {section}.colour is False",
  lambda value, fields: not value or fields["colour"],
)
FREE_WITHOUT_ATTENTION = Bound(
  "'free' where {section}.pooling is {pooling!r}, which attends to no place",
  lambda value, fields: value == "free" or fields["pooling"] == "attention",
)


@struct.dataclass
class PartCapsules:
  """Poses, presences and special features of parts; gradients flow through every field."""

  poses: Float[Array, "b m 2 3"]  # from template to image coordinates
  presence: Float[Array, "b m"]  # probabilities
  features: Float[Array, "b m d"]  # special features


def noisy_sigmoid(
  module: nn.Module, logits: Array, scale: float, *, train: bool, in_evaluation: bool, use: int
) -> Array:
  """sigmoid(logits + uniform noise in [-scale / 2, scale / 2]).

  In training the key comes from the module's `noise` stream. In evaluation there is noise only with
  `in_evaluation`, as in the authors' release. Its key is made from `use`, a different number for
  each call in a model; an example's noise then depends on its position in the batch
  (`config.evaluation.batch_size`).
  """
  if scale == 0 or not (train or in_evaluation):
    return jax.nn.sigmoid(logits)
  key = module.make_rng("noise") if train else jax.random.key(use)
  uniform = functools.partial(jax.random.uniform, minval=-scale / 2, maxval=scale / 2)
  noise = shards.draw(uniform, key, logits.shape)
  return jax.nn.sigmoid(logits + noise)


def squash(x: Array, nonlinearity: str) -> Array:
  """x in [0, 1], by a `sigmoid` or by clipping (`relu1`)."""
  return jax.nn.sigmoid(x) if nonlinearity == "sigmoid" else jnp.clip(x, 0.0, 1.0)


def require_room(section: str, template_size: int, canvas: int) -> None:
  """Raises `ValueError` if the templates of a section of the model are larger than the canvas."""
  if template_size > canvas:
    raise ValueError(
      f"config.model.{section}.template_size is {template_size} and the canvas {canvas} pixels; a"
      " template must fit the canvas"
    )


class PartEncoder(nn.Module):
  """Image to part capsules."""

  num_parts: int  # m
  # Channels of the convolutions.
  widths: Annotated[tuple[int, ...], each(between(1, MAX_WIDTH), least=1)]
  strides: Annotated[tuple[int, ...], each(between(1, MAX_KERNEL)), as_many_as("widths")]
  num_features: Annotated[int, between(0, MAX_WIDTH)]  # d, special features of a part; 0 for none
  pooling: Annotated[str, one_of(*POOLINGS)]  # `attention`, or the ablations `mean` and `linear`
  # Width of the uniform noise on presence logits in training.
  presence_noise: Annotated[float, between(0, MAX_NOISE)]
  # Keep this noise in evaluation, with a constant key, as the authors' release does. An example's
  # presences then depend on its position in the batch.
  noise_in_evaluation: bool
  similarity: bool  # poses are similarity transforms instead of affine ones
  compute_dtype: str | None  # of the convolutions, such as `bfloat16`; None: the image's
  # Where a part is. `free`: anywhere, as published; a bias at each position of the map tells the
  # positions apart. `cells`: at most two cells from the place that its attention looks at, without
  # that bias; attention is on cells that see anything but black. An image that moves by whole cells
  # has the same parts, moved.
  places: Annotated[str, one_of(*PLACES), FREE_WITHOUT_ATTENTION] = "free"

  @nn.compact
  @typed
  def __call__(self, image: Float[Array, "b h w c"], *, train: bool) -> PartCapsules:
    side, has_cells = image.shape[1], self.places == "cells"
    convnet = ConvNet(
      self.widths,
      self.strides,
      self.compute_dtype,
      position_bias=not has_cells,
      name="convnet",
    )
    size = POSE_SIZE + 1 + self.num_features
    pooling = Pooling(self.pooling, self.num_parts, size, name="pooling")
    if has_cells:
      margins, cells = covering_cells(side, self.strides)
      image = jnp.pad(image, ((0, 0), margins, margins, (0, 0)))
      centres = 2 * cells / (side - 1) - 1  # in image coordinates
      y, x = np.meshgrid(centres, centres, indexing="ij")
      centres = jnp.asarray(np.stack([x.ravel(), y.ravel()], axis=1), jnp.float32)
      pooled = pooling(convnet(image), centres, sees_ink(image, self.strides))
    else:
      pooled = pooling(convnet(image))
    raw, logits, features, place = jnp.split(pooled, [POSE_SIZE, POSE_SIZE + 1, size], axis=-1)
    pose_matrix = functools.partial(geometry.pose_matrix, similarity=self.similarity)
    poses = jax.vmap(jax.vmap(pose_matrix))(raw)
    if has_cells:
      reach = REACH * 2 * math.prod(self.strides) / (side - 1)
      shifts = place + reach * poses[..., 2]
      poses = jnp.concatenate([poses[..., :2], shifts[..., None]], axis=-1)
    noise = {"scale": self.presence_noise, "in_evaluation": self.noise_in_evaluation}
    presence = noisy_sigmoid(self, logits[..., 0], **noise, train=train, use=0)
    return PartCapsules(poses, presence, features)


def coloured(templates: Array, colours: Array) -> Array:
  """Templates [..., c] in [0, 1] in the colours of their parts, [..., c] or [..., 2 c].

  The first c are the colour where a template is 1. The others are that where it is 0; without them
  it is black.
  """
  channels = templates.shape[-1]
  ink, ground = colours[..., :channels], colours[..., channels:]
  return ground + templates * (ink - ground) if ground.shape[-1] else templates * ink


def template_init(key: Array, shape: tuple[int, ...], shift: float = 0.0) -> Array:
  """Templates [m, t, t, c]: rows of a random orthogonal matrix, scaled to [0, 1], plus shift."""
  rows = nn.initializers.orthogonal()(key, (shape[0], shape[1] * shape[2] * shape[3]), jnp.float32)
  rows = (rows - jnp.min(rows)) / (jnp.max(rows) - jnp.min(rows))
  return rows.reshape(shape) + shift


class PartDecoder(nn.Module):
  """Part capsules to a mixture at every pixel."""

  num_parts: int  # m
  channels: int  # c
  # t: side of a template, pixels.
  template_size: Annotated[int, between(MIN_TEMPLATE_SIZE, MAX_SIDE)]
  # Applied to templates at use, `sigmoid` or `relu1`.
  nonlinearity: Annotated[str, one_of(*NONLINEARITIES)]
  # `alpha`: each part has a second template of mixing logits. `coupled`: mixing logits are the mean
  # over channels of the coloured, warped template, over a learned temperature.
  mixing: Annotated[str, one_of(*MIXINGS)]
  colour: bool  # a part's template is multiplied by a colour computed from its special features
  pixel_scale: Annotated[float, between(*STD_RANGE)]  # standard deviation of a pixel
  # n: in training, `log_prob` sums every n-th pixel in both directions, times n^2. The first pixel
  # is random for each example, so the estimate is unbiased; it takes 1 / n^2 of the time.
  likelihood_stride: Annotated[int, between(1, MAX_LIKELIHOOD_STRIDE)]
  # Templates under a sigmoid start above 0.95 instead of 0.5; mixing logits of `alpha` start at 2,
  # above the background's 0.7, instead of at 0. On images without a dark background, parts that
  # start dim and below the background vanish before they draw anything (results/cifar10).
  bright_start: bool = False
  # A part has a second colour, which it draws where its template is 0, inside and around it; there
  # parts are black as published. One template then draws dark strokes on a bright ground and bright
  # ones on a dark ground.
  ground_colour: Annotated[bool, OFF_WITHOUT_COLOUR] = False

  def setup(self):
    zeros = nn.initializers.zeros_init()
    shape = (self.num_parts, self.template_size, self.template_size)
    shift = 3.0 if self.bright_start and self.nonlinearity == "sigmoid" else 0.0
    self.raw_templates = self.param("templates", template_init, (*shape, self.channels), shift)
    if self.mixing == "alpha":
      alphas = nn.initializers.constant(2.0 if self.bright_start else 0.0)
      self.alphas = self.param("alphas", alphas, (*shape, 1), jnp.float32)
    else:
      self.temperature_logit = self.param("temperature", zeros, (), jnp.float32)
    self.background_value = self.param("background_mean", zeros, (), jnp.float32)
    self.background_logit = self.param("background_logit", zeros, (), jnp.float32)
    if self.colour:
      self.colour_mlp = MLP((32, self.channels * (2 if self.ground_colour else 1)))

  def templates(self) -> Array:
    """Templates in [0, 1], [m, t, t, c], without colour."""
    return squash(self.raw_templates, self.nonlinearity)

  def colours(self, features: Array) -> Array:
    """Colours of parts, [b, m, c] in [0, 1], from special features [b, m, d]; see `coloured`.

    They are ones without `colour`, and [b, m, 2 c] with `ground_colour`. ValueError if `colour` is
    set and d is 0.
    """
    if not self.colour:
      return jnp.ones((*features.shape[:2], self.channels))
    if features.shape[-1] == 0:
      raise ValueError(
        "config.model.part_decoder.colour needs special features, but "
        "config.model.part_encoder.num_features is 0; raise it or set colour to False"
      )
    raw = self.colour_mlp(features)
    # A relu1 at 0 would have no gradient at the start.
    ink, ground = jnp.split(raw, [self.channels], axis=-1)
    ink_start, ground_start = (0.0, -2.0) if self.nonlinearity == "sigmoid" else (0.99, 0.01)
    colours = jnp.concatenate([ink + ink_start, ground + ground_start], axis=-1)
    return squash(colours, self.nonlinearity)

  def __call__(
    self, poses: Array, presence: Array, colours: Array, canvas: int
  ) -> mixtures.PixelMixture:
    """The mixture at each of canvas x canvas pixels, with a leading batch axis.

    Poses are [b, m, 2, 3], presences [b, m] and colours those of `colours`.
    """
    temperature = self._temperature()
    # Templates are coloured after warping. The bank without colours is shared by all examples.
    warped = warping.warp_templates(self._bank(), poses, canvas, canvas)
    background = self._background()

    def mixture(warped: Array, presence: Array, colours: Array) -> mixtures.PixelMixture:
      mean = coloured(warped[..., : self.channels], colours[:, None, None, :])
      logits = warped[..., -1] if temperature is None else jnp.mean(mean, axis=-1) / temperature
      scale = jnp.asarray(float(self.pixel_scale))
      return mixtures.pixel_mixture(mean, logits, presence, *background, scale)

    return jax.vmap(mixture)(warped, presence, colours)

  def log_prob(
    self,
    poses: Array,
    presence: Array,
    colours: Array,
    target: Array,
    *,
    train: bool,
  ) -> Array:
    """log p(target) under the mixture, [], summed over pixels, mean over the batch, nats.

    Arguments are those of `__call__`; the target [b, h, w, c] gets no gradient. In training it is
    an estimate if `likelihood_stride` is above 1, with phases from the module's `noise` stream.
    ValueError if the stride does not divide the side, or leaves a single pixel.
    A CPU computes one example at a time, with the same result up to rounding.
    """
    stride = self.likelihood_stride if train else 1
    if stride > 1:
      if target.shape[1] % stride or target.shape[1] < 2 * stride:
        raise ValueError(
          "config.model.part_decoder.likelihood_stride must divide config.data.canvas,"
          f" {target.shape[1]}, at least twice; it is {stride}"
        )
      randint = functools.partial(jax.random.randint, minval=0, maxval=stride)
      phases = shards.draw(randint, self.make_rng("noise"), (len(target), 2))
      every_nth_pixel = functools.partial(warping.every_nth_pixel, stride=stride)
      poses, target = jax.vmap(every_nth_pixel)(poses, target, phases)
    if jax.default_backend() == "cpu":
      shared = (cells_of(self._bank()), *self._background(), self._temperature())
      scale = float(self.pixel_scale)
      term = functools.partial(image_log_prob, side=self.template_size, scale=scale)
      total: Any = sum_by_example(term, shared, (poses, presence, colours), target)
    else:
      mixture = self(poses, presence, colours, target.shape[1])
      total = jnp.sum(jax.vmap(mixtures.log_prob)(mixture, target))
    return stride**2 * total / target.shape[0]

  def _temperature(self) -> Array | None:
    """Temperature of `coupled` mixing, above 0; None for `alpha`."""
    return None if self.mixing == "alpha" else jax.nn.softplus(self.temperature_logit + 0.5) + 1e-4

  def _bank(self) -> Array:
    """Templates without colour, [m, t, t, c]; for `alpha` with mixing logits, [m, t, t, c + 1]."""
    bank = self.templates()
    return jnp.concatenate([bank, self.alphas], axis=-1) if self.mixing == "alpha" else bank

  def _background(self) -> tuple[Array, Array]:
    """Mean and mixing logit of the background."""
    return jax.nn.sigmoid(self.background_value), jax.nn.softplus(self.background_logit)
