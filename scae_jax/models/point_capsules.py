"""What capsules say of points of the plane: votes without names, of object capsules or of an MLP.

Kosiorek et al. 2019, sections 2.1 and 3.1.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from scae_jax.layers.mlp import MLP
from scae_jax.models.object_capsules import MIN_VOTE_SCALE, ObjectCapsules
from scae_jax.models.part_capsules import noisy_sigmoid
from scae_jax.models.system import each_whole, not_negative
from scae_jax.typing import Array, Float, typed


@struct.dataclass
class PointVotes:
  """What every capsule says of points; gradients flow through every field.

  Attributes:
    votes: [b, k, v, 2], where points should be.
    vote_scale: [b, k, v], their standard deviations.
    vote_presence: [b, k, v], probability that the vote has a point.
    presence: [b, k], the largest vote presence of each capsule.
    presence_logits: [b, k], of the capsules themselves, before noise and whatever their votes say.
    dynamic: [b, k, v, 6], raw deformations of the object-part transforms; zero for an MLP.
  """

  votes: Float[Array, "b k v 2"]
  vote_scale: Float[Array, "b k v"]
  vote_presence: Float[Array, "b k v"]
  presence: Float[Array, "b k"]
  presence_logits: Float[Array, "b k"]
  dynamic: Float[Array, "b k v 6"]


def point_votes(objects: ObjectCapsules, scale: float) -> PointVotes:
  """The votes of object capsules for points, which have no pose: of each vote's, the translation.

  Args:
    objects: what the decoder of object capsules says.
    scale: factor of the votes' standard deviations.
  """
  return PointVotes(
    votes=objects.votes[..., jnp.array([2, 5])],
    vote_scale=scale * objects.vote_scale,
    vote_presence=objects.vote_presence,
    presence=objects.presence,
    presence_logits=objects.presence_logits,
    dynamic=objects.dynamic,
  )


class MLPDecoder(nn.Module):
  """The baseline: votes straight from one plain MLP, with no pose that they would share.

  Attributes:
    num_objects: k.
    num_votes: v.
    widths: of the hidden layers.
    presence_noise: width of the uniform noise on capsule and vote presence logits in training.
  """

  num_objects: int
  num_votes: int
  widths: tuple[int, ...]
  presence_noise: float

  @nn.compact
  @typed
  def __call__(self, x: Float[Array, "b k e"], *, train: bool) -> PointVotes:
    each_whole("config.model.mlp_decoder.widths", self.widths, 1)
    not_negative("config.model.mlp_decoder.presence_noise", self.presence_noise)
    batch, k, v = x.shape[0], self.num_objects, self.num_votes
    sizes = (k * v * 2, k * v, k * v, k)  # positions, scales, vote presences, capsule presences
    x = MLP((*self.widths, sum(sizes)), name="mlp")(x.reshape(batch, -1))
    starts = [sum(sizes[:i]) for i in (1, 2, 3)]
    positions, scale, share, presence_logits = jnp.split(x, starts, axis=-1)

    def presence_of(logits: Array, use: int) -> Array:
      return noisy_sigmoid(
        self, logits, self.presence_noise, train=train, in_evaluation=False, use=use
      )

    vote_presence = presence_of(presence_logits, 1)[..., None] * presence_of(
      share.reshape(batch, k, v), 2
    )
    return PointVotes(
      votes=positions.reshape(batch, k, v, 2),
      vote_scale=jax.nn.softplus(scale.reshape(batch, k, v) + 0.5) + MIN_VOTE_SCALE,
      vote_presence=vote_presence,
      presence=jnp.max(vote_presence, axis=-1),
      presence_logits=presence_logits,
      dynamic=jnp.zeros((batch, k, v, 6)),
    )
