"""Layers of matrix capsules: a 4x4 pose and an activation each, with EM routing.

Hinton, Sabour and Frosst 2018, "Matrix Capsules with EM Routing".
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import struct

from scae_jax.layers.convnet import Convolution
from scae_jax.layers.receptive_field import Window, map_side
from scae_jax.math.routing import em
from scae_jax.typing import Array, Float, typed

SIDE = 4
MIN_MEAN_SQUARE = 1e-4  # added to a pose's mean square, so that a pose of zeros stays zero
# Entries of a vote to which coordinates are added: the right-hand column, rows of x and y.
X, Y = (0, SIDE - 1), (1, SIDE - 1)


@struct.dataclass
class CapsuleMap:
  """Capsules on a grid."""

  poses: Float[Array, "b h w m 4 4"]
  activation: Float[Array, "b h w m"]  # in [0, 1]


class PrimaryCapsules(nn.Module):
  """Poses and activations from features, by 1x1 convolutions without biases."""

  types: int  # capsules at each position
  # Whether each pose is divided by the root mean square of its entries. Costs and densities of EM
  # routing depend on the size of votes, and features of bright regions are larger.
  normalize_poses: bool

  @nn.compact
  @typed
  def __call__(self, features: Float[Array, "b h w d"]) -> CapsuleMap:
    poses = Convolution(self.types * SIDE * SIDE, kernel=1, bias=False, name="poses")(features)
    logits = Convolution(self.types, kernel=1, bias=False, name="activation")(features)
    poses = poses.reshape(*poses.shape[:3], self.types, SIDE, SIDE)
    if self.normalize_poses:
      mean_square = jnp.mean(jnp.square(poses), axis=(-2, -1), keepdims=True)
      poses = poses / jnp.sqrt(mean_square + MIN_MEAN_SQUARE)
    return CapsuleMap(poses, jax.nn.sigmoid(logits))


class ConvCapsules(nn.Module):
  """Convolutional capsules: the receptive field is a square; positions share the transforms."""

  types: int  # capsules at each position
  kernel: int  # side of the square, positions
  stride: int  # between squares
  iterations: int  # of routing
  inverse_temperature_limit: float  # of routing, see `em.inverse_temperature`

  @nn.compact
  @typed
  def __call__(self, below: CapsuleMap) -> CapsuleMap:
    _, height, width, types_below = below.activation.shape
    square = [Window(self.kernel, self.stride)]
    rows, columns = (map_side(side, square) for side in (height, width))
    child = receptive_fields(height, width, types_below, self.kernel, self.stride)
    shape = (child.shape[1], self.types, SIDE, SIDE)
    transforms = self.param("transforms", transform_init, shape)
    poses = below.poses.reshape(below.poses.shape[0], -1, SIDE, SIDE)
    votes = cast_votes(poses[:, child], transforms)
    routing = Routing(self.types, self.iterations, self.inverse_temperature_limit, name="routing")(
      votes, below.activation.reshape(poses.shape[:2]), child
    )
    return CapsuleMap(
      routing.poses.reshape(-1, rows, columns, self.types, SIDE, SIDE),
      routing.activation.reshape(-1, rows, columns, self.types),
    )


class ClassCapsules(nn.Module):
  """One capsule for each class; it sees all capsules below, whose positions share transforms.

  Coordinate addition: the centre of a child's grid cell, in shares of width and height, is added to
  two entries of its votes.
  """

  num_classes: int  # k
  add_coordinates: bool  # whether coordinates are added
  iterations: int  # of routing
  inverse_temperature_limit: float  # of routing, see `em.inverse_temperature`

  @nn.compact
  @typed
  def __call__(self, below: CapsuleMap) -> em.EMRouting:
    batch, height, width, types_below = below.activation.shape
    shape = (types_below, self.num_classes, SIDE, SIDE)
    transforms = self.param("transforms", transform_init, shape)
    num_children = height * width * types_below
    tiled_transforms = jnp.tile(transforms, (height * width, 1, 1, 1))
    votes = cast_votes(below.poses.reshape(batch, 1, num_children, SIDE, SIDE), tiled_transforms)
    if self.add_coordinates:
      # Children are ordered by row, column and type.
      row, column = np.divmod(np.arange(num_children) // types_below, width)
      votes = votes.at[:, :, :, *X].add(((column + 0.5) / width)[None, None, None])
      votes = votes.at[:, :, :, *Y].add(((row + 0.5) / height)[None, None, None])
    child = np.arange(num_children)[None]
    return Routing(
      self.num_classes, self.iterations, self.inverse_temperature_limit, name="routing"
    )(votes, below.activation.reshape(batch, num_children), child)


class Routing(nn.Module):
  """EM routing with two learned costs for each type of parent."""

  types: int  # of parents
  iterations: int  # of routing
  inverse_temperature_limit: float  # see `em.inverse_temperature`

  @nn.compact
  @typed
  def __call__(
    self,
    votes: Float[Array, "b p k 4 4 n"],
    activation: Float[Array, "b m"],
    child: np.ndarray,
  ) -> em.EMRouting:
    beta_u = self.param("beta_u", nn.initializers.zeros_init(), (self.types,), jnp.float32)
    beta_a = self.param("beta_a", nn.initializers.zeros_init(), (self.types,), jnp.float32)
    route = functools.partial(
      em.route_by_em,
      child=child,
      beta_u=beta_u,
      beta_a=beta_a,
      iterations=self.iterations,
      inverse_temperature_limit=self.inverse_temperature_limit,
    )
    votes = votes.reshape(*votes.shape[:3], SIDE * SIDE, votes.shape[-1])
    return jax.vmap(route)(votes, activation)


@typed
def cast_votes(
  poses: Float[Array, "b p n 4 4"], transforms: Float[Array, "n k 4 4"]
) -> Float[Array, "b p k 4 4 n"]:
  """Votes: the product of each child's pose with its transform for each parent.

  The product is written as a sum over the inner index, with children on the last axis. XLA's CPU
  backend takes several times as long for a batch of 4x4 matrix products, and for each use of their
  transposed result.
  """
  poses, transforms = jnp.moveaxis(poses, 2, -1), jnp.moveaxis(transforms, 0, -1)
  return sum(
    (poses[:, :, None, :, j, None] * transforms[None, None, :, None, j] for j in range(SIDE)),
    start=jnp.zeros(()),
  )


def transform_init(key: Array, shape: tuple[int, ...]) -> Array:
  """Transforms near the identity: at first, children with equal poses cast similar votes."""
  noise = 0.1 * jax.random.normal(key, shape, jnp.float32)
  return jnp.broadcast_to(jnp.eye(SIDE, dtype=jnp.float32), shape) + noise


def receptive_fields(height: int, width: int, types: int, kernel: int, stride: int) -> np.ndarray:
  """Indices, int [p, n], of the capsules in each square of a flattened map [height, width, types].

  Squares are ordered by row and column; within a square, capsules by row, column and type.
  """
  number = np.arange(height * width * types).reshape(height, width, types)
  squares = np.lib.stride_tricks.sliding_window_view(number, (kernel, kernel), axis=(0, 1))
  squares = np.moveaxis(squares[::stride, ::stride], 2, -1)
  return squares.reshape(-1, kernel * kernel * types)
