"""Approximate posteriors of probabilistic capsules, and the networks that infer them.

Smith et al. 2020, sections 2.2, 2.3 and 4, appendix B. Standard deviations of poses have a separate
head, so that networks with Gaussian posteriors can start from networks with point posteriors.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Annotated

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from numpyro.distributions.transforms import SoftplusTransform

from scae_jax import shards
from scae_jax.bounds import MAX_KERNEL, MAX_LAYERS, MAX_WIDTH, as_many_as, between, dividing, each
from scae_jax.layers.convnet import ConvNet
from scae_jax.layers.mlp import CapsuleMLP
from scae_jax.layers.pooling import Pooling
from scae_jax.layers.set_transformer import SetTransformer
from scae_jax.math import geometry
from scae_jax.math.routing import selection
from scae_jax.math.routing.selection import Capsules
from scae_jax.models.scae.pcae import POSE_SIZE, STD_RANGE
from scae_jax.typing import Array, Float, typed


@dataclasses.dataclass(frozen=True)
class PosteriorScales:
  """Standard deviations of Gaussian posteriors of poses; the config's section `model.posterior`."""

  # Lower bound, added to the learned or optimised value.
  min_scale: Annotated[float, between(1e-6, 1e3)] = 1e-3
  initial_scale: Annotated[float, between(*STD_RANGE)] = 0.05  # approximate initial learned value

  def from_raw(self, raw: Array) -> Array:
    """Standard deviations from network outputs of any shape, which start near 0."""
    return self.constrain(raw + SoftplusTransform().inv(self.initial_scale))

  def constrain(self, free: Array) -> Array:
    """Standard deviations from unconstrained numbers: `min_scale` plus their softplus."""
    return self.min_scale + jax.nn.softplus(free)

  def unconstrain(self, scales: Array) -> Array:
    """The inverse of `constrain`; values at or below `min_scale` count as slightly above it."""
    excess = jnp.maximum(scales - self.min_scale, 1e-6 * self.min_scale)
    return jnp.asarray(SoftplusTransform().inv(excess))


@struct.dataclass
class Posterior:
  """The approximate posterior of one layer of capsules, which are independent of each other."""

  presence_logits: Float[Array, "b n"]  # of relaxed Bernoulli presences
  poses: Float[Array, "b n 2 3"]  # means
  # Standard deviations of the entries of poses; None for point posteriors.
  pose_scales: Float[Array, "b n 6"] | None

  def centre(self, temperature: float) -> Capsules:
    """Median presences and mean poses."""
    return Capsules(self.presence_logits / temperature, self.poses)

  def sample(self, key: Array, temperature: float) -> Capsules:
    """A reparametrised sample: gradients flow to the posterior's parameters."""
    presence_key, pose_key = jax.random.split(key)
    noise = shards.draw(jax.random.logistic, presence_key, self.presence_logits.shape)
    logits = self.presence_logits / temperature + noise * (1 / temperature)
    poses = self.poses
    if self.pose_scales is not None:
      scales = self.pose_scales.reshape(poses.shape)
      poses = poses + shards.draw(jax.random.normal, pose_key, poses.shape) * scales
    return Capsules(logits, poses)

  def presence_log_prob(self, capsules: Capsules, temperature: float) -> Float[Array, " b"]:
    """log density of the relaxed presences, nats."""
    log_prob = selection.relaxed_bernoulli_log_prob(
      capsules.presence_logits, self.presence_logits, jnp.float32(temperature)
    )
    return jnp.sum(log_prob, axis=-1)

  def pose_log_prob(self, capsules: Capsules) -> Float[Array, " b"]:
    """log density of the poses, nats; 0 for a point posterior."""
    if self.pose_scales is None:
      return jnp.zeros(len(self.poses))
    return jnp.sum(selection.pose_log_prob(capsules.poses, self.poses, self.pose_scales), axis=-1)

  def off_log_prob(self, capsules: Capsules, min_scale: float) -> Float[Array, "b n"]:
    """log density of each pose, nats, for capsules that are off.

    The prior of their poses is the posterior itself: both cancel in the bound, and the pose is
    summed out. A point posterior is treated as a Gaussian of standard deviation `min_scale`, the
    smallest in the prior, so that being on does not raise the density.
    """
    scales = self.pose_scales
    if scales is None:
      scales = jnp.full((*self.presence_logits.shape, POSE_SIZE), min_scale)
    return selection.pose_log_prob(capsules.poses, self.poses, scales)


def change_scales(
  change: Callable[[Array], Array], posteriors: Sequence[Posterior]
) -> list[Posterior]:
  """Posteriors whose standard deviations are changed by a method of `PosteriorScales`."""
  # The None of a point posterior stays None.
  return [
    dataclasses.replace(posterior, pose_scales=jax.tree.map(change, posterior.pose_scales))
    for posterior in posteriors
  ]


class PartInference(nn.Module):
  """Image to the posterior of the parts: ELU convolutions and attention pooling."""

  num_parts: int  # m
  gaussian: bool  # whether poses have standard deviations
  # Channels of the convolutions.
  widths: Annotated[tuple[int, ...], each(between(1, MAX_WIDTH), least=1)]
  strides: Annotated[tuple[int, ...], each(between(1, MAX_KERNEL)), as_many_as("widths")]
  # Smallest scale of a part relative to the image, before shear. If parts could shrink to nothing,
  # absent parts would have size 0 instead of being off, and presences would carry no information.
  min_part_scale: Annotated[float, between(1e-3, 0.999)]
  scales_of: PosteriorScales  # standard deviations

  @nn.compact
  @typed
  def __call__(self, image: Float[Array, "b h w c"]) -> Posterior:
    x = ConvNet(self.widths, self.strides, activation="elu", name="convnet")(image)
    raw = Pooling("attention", self.num_parts, 1 + POSE_SIZE, name="pooling")(x)
    affine = functools.partial(geometry.affine_matrix, min_scale=self.min_part_scale)
    poses = jax.vmap(jax.vmap(affine))(raw[..., 1:])
    scales = None
    if self.gaussian:
      raw_scales = Pooling("attention", self.num_parts, POSE_SIZE, name="scales")(x)
      scales = self.scales_of.from_raw(raw_scales)
    return Posterior(raw[..., 0], poses, scales)


class ObjectInference(nn.Module):
  """One layer of capsules to the posterior of the layer above.

  A set transformer with induced attention reads the pose, presence and number of each capsule. Its
  seeds are the parents; each parent has its own MLP. Poses are the identity plus an offset.
  """

  num_capsules: int  # k, of the layer above
  gaussian: bool  # whether poses have standard deviations
  num_layers: Annotated[int, between(0, MAX_LAYERS)]  # induced attention blocks
  num_heads: Annotated[int, between(1, MAX_WIDTH), dividing("features", "output_features")]
  features: Annotated[int, between(1, MAX_WIDTH)]  # width of the blocks
  num_inducing: Annotated[int, between(0, MAX_WIDTH)]  # inducing points; 0 is full self-attention
  output_features: Annotated[int, between(1, MAX_WIDTH)]  # width of the encoding of a parent
  hidden: Annotated[int, between(1, MAX_WIDTH)]  # width of the MLPs' hidden layer
  scales_of: PosteriorScales  # standard deviations

  @nn.compact
  def __call__(self, children: Capsules) -> Posterior:
    batch, num_children = children.presence_logits.shape
    presence = children.presence
    identity = jnp.broadcast_to(jnp.eye(num_children), (batch, num_children, num_children))
    rows = jnp.concatenate(
      [children.poses.reshape(batch, num_children, -1), presence[..., None], identity], axis=-1
    )
    outputs = (self.num_capsules, self.output_features)
    sizes = (self.num_layers, self.num_heads, self.features, self.num_inducing)
    transformer = SetTransformer(*outputs, *sizes, "log_presence", name="set_transformer")
    x = transformer(rows, presence)
    raw = CapsuleMLP((self.hidden, 1 + POSE_SIZE), name="heads")(x)
    offsets = raw[..., 1:].reshape(batch, self.num_capsules, 2, 3)
    poses = geometry.identity()[None, None] + offsets
    scales = None
    if self.gaussian:
      scales = self.scales_of.from_raw(CapsuleMLP((self.hidden, POSE_SIZE), name="scales")(x))
    return Posterior(raw[..., 0], poses, scales)
