"""What capsules say of points of the plane: votes without names, of object capsules or of an MLP.

Kosiorek et al. 2019, sections 2.1 and 3.1.
"""

import itertools
from typing import Annotated

import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from scae_jax.bounds import MAX_WIDTH, between, each
from scae_jax.layers.mlp import MLP
from scae_jax.models.object_capsules import ObjectCapsules, vote_scale_of
from scae_jax.models.part_capsules import MAX_NOISE, noisy_sigmoid
from scae_jax.typing import Array, Float, typed


@struct.dataclass
class PointVotes:
  """Votes of every capsule for points; gradients flow through every field."""

  votes: Float[Array, "b k v 2"]  # where points should be
  vote_scale: Float[Array, "b k v"]  # their standard deviations
  vote_presence: Float[Array, "b k v"]  # probability that the vote has a point
  presence: Float[Array, "b k"]  # the largest vote presence of each capsule
  # Logits of the capsules' own presences, before noise; vote presences do not enter.
  presence_logits: Float[Array, "b k"]
  # Raw deformations of the object-part transforms; zero for an MLP.
  dynamic: Float[Array, "b k v 6"]


def point_votes(objects: ObjectCapsules) -> PointVotes:
  """The votes of object capsules for points, which have no pose: the translation of each vote."""
  names = ("vote_scale", "vote_presence", "presence", "presence_logits", "dynamic")
  same = {name: getattr(objects, name) for name in names}
  return PointVotes(votes=objects.votes[..., jnp.array([2, 5])], **same)


class MLPDecoder(nn.Module):
  """The baseline: votes straight from one plain MLP, with no pose that they would share."""

  num_objects: int  # k
  num_votes: int  # v
  widths: Annotated[tuple[int, ...], each(between(1, MAX_WIDTH))]  # of the hidden layers
  # Width of the uniform noise on capsule and vote presence logits in training.
  presence_noise: Annotated[float, between(0, MAX_NOISE)]
  learn_vote_scale: bool  # standard deviations are predicted; otherwise they are 1

  @nn.compact
  @typed
  def __call__(self, x: Float[Array, "b k e"], *, train: bool) -> PointVotes:
    batch, k, v = x.shape[0], self.num_objects, self.num_votes
    sizes = {"positions": 2 * k * v, "vote_presence": k * v, "presence": k}
    if self.learn_vote_scale:
      sizes["vote_scale"] = k * v
    x = MLP((*self.widths, sum(sizes.values())), name="mlp")(x.reshape(batch, -1))
    ends = list(itertools.accumulate(sizes.values()))
    raw = dict(zip(sizes, jnp.split(x, ends[:-1], axis=-1), strict=True))

    def presence_of(logits: Array, use: int) -> Array:
      return noisy_sigmoid(
        self, logits, self.presence_noise, train=train, in_evaluation=False, use=use
      )

    capsule = presence_of(raw["presence"], 1)[..., None]
    vote_presence = capsule * presence_of(raw["vote_presence"].reshape(batch, k, v), 2)
    vote_scale = jnp.ones((batch, k, v))
    if self.learn_vote_scale:
      vote_scale = vote_scale_of(raw["vote_scale"].reshape(batch, k, v))
    return PointVotes(
      votes=raw["positions"].reshape(batch, k, v, 2),
      vote_scale=vote_scale,
      vote_presence=vote_presence,
      presence=jnp.max(vote_presence, axis=-1),
      presence_logits=raw["presence"],
      dynamic=jnp.zeros((batch, k, v, 6)),
    )
