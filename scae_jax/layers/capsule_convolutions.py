"""Layers of capsules that are a 4x4 pose and an activation, routed by expectation maximisation.

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
MIN_MEAN_SQUARE = 1e-4  # added to a pose's own, so that a pose of zeros stays one
# Where a pose has the place of its capsule: the right-hand column, rows of x and y.
X, Y = (0, SIDE - 1), (1, SIDE - 1)


@struct.dataclass
class CapsuleMap:
  """Capsules on a grid."""

  poses: Float[Array, "b h w m 4 4"]
  activation: Float[Array, "b h w m"]  # in [0, 1]


class PrimaryCapsules(nn.Module):
  """Poses and activations straight from features, by 1x1 convolutions without biases."""

  types: int  # capsules at each position
  # Whether each pose is divided by the root of the mean square of its entries. Costs and densities
  # of EM routing depend on how large votes are, and features of bright places are larger.
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
  """Capsules that each see a square of capsules below, with transforms shared by all positions."""

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
  """One capsule a class, which all capsules below see, with transforms shared by positions.

  Coordinate addition tells where a capsule stands: the middle of its cell of the grid, as shares of
  width and height, is added to two entries of its votes.
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
    everywhere = jnp.tile(transforms, (height * width, 1, 1, 1))
    votes = cast_votes(below.poses.reshape(batch, 1, num_children, SIDE, SIDE), everywhere)
    if self.add_coordinates:
      # Of positions row by row, and types within those.
      row, column = np.divmod(np.arange(num_children) // types_below, width)
      votes = votes.at[:, :, :, *X].add(((column + 0.5) / width)[None, None, None])
      votes = votes.at[:, :, :, *Y].add(((row + 0.5) / height)[None, None, None])
    child = np.arange(num_children)[None]
    return Routing(
      self.num_classes, self.iterations, self.inverse_temperature_limit, name="routing"
    )(votes, below.activation.reshape(batch, num_children), child)


class Routing(nn.Module):
  """EM routing with the two costs of each type of parent, which are learned."""

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
  """The product of every child's pose with its transform for every parent.

  Written as four sums, children last: XLA's CPU backend takes several times as long for a batch of
  products of 4x4 matrices, and again for each reader of their transposed result.
  """
  poses, transforms = jnp.moveaxis(poses, 2, -1), jnp.moveaxis(transforms, 0, -1)
  return sum(
    (poses[:, :, None, :, j, None] * transforms[None, None, :, None, j] for j in range(SIDE)),
    start=jnp.zeros(()),
  )


def transform_init(key: Array, shape: tuple[int, ...]) -> Array:
  """Transforms near the identity, so that children of one pose vote alike at first."""
  noise = 0.1 * jax.random.normal(key, shape, jnp.float32)
  return jnp.broadcast_to(jnp.eye(SIDE, dtype=jnp.float32), shape) + noise


def receptive_fields(height: int, width: int, types: int, kernel: int, stride: int) -> np.ndarray:
  """Which capsules of a map [height, width, types], flattened, each square of positions holds.

  Squares of int [p, n] are row by row; in each its positions row by row, and types within those.
  """
  number = np.arange(height * width * types).reshape(height, width, types)
  squares = np.lib.stride_tricks.sliding_window_view(number, (kernel, kernel), axis=(0, 1))
  squares = np.moveaxis(squares[::stride, ::stride], 2, -1)
  return squares.reshape(-1, kernel * kernel * types)
