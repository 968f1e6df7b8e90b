"""Routing by mixture: every part is explained by one object's vote for it, or by none.

Functions take one example: k object capsules, each of which votes for the pose of each of m parts.
Part m sees a mixture over its k votes and one dummy component, which catches parts that no object
explains. Kosiorek et al. 2019, section 2.3 and equation 5.
"""

import math

import jax
import jax.numpy as jnp
from flax import struct

from scae_jax.math.mixtures import normal_log_prob, safe_log
from scae_jax.typing import Array, Float, Int, typed

# Log mixing weight and log density of the dummy component.
DUMMY_LOG = math.log(0.01)


@struct.dataclass
class Routing:
  """Which object explains which part."""

  log_prob: Float[Array, " m"]  # log-likelihood of every part's pose, nats
  posterior: Float[Array, "n m"]  # probability that a part belongs to an object; the dummy is last
  winner: Int[Array, " m"]  # the object with the largest posterior, the dummy left out


@typed
def route(
  part_poses: Float[Array, "m 6"],
  votes: Float[Array, "k m 6"],
  vote_scale: Float[Array, "k m"],
  vote_presence: Float[Array, "k m"],
  *,
  normalize_mixing: bool,
) -> Routing:
  """Assigns parts to votes.

  Component density: the six numbers of a pose are independent, Normal(pose | vote, scale). Log
  mixing weight: log presence of the vote. Dummy: log 0.01 for both. Presences are in [0, 1]. With
  `normalize_mixing`, mixing weights are divided by their sum, as those of a mixture should be; the
  authors' release does not, and so rewards presence as such.
  """
  num_objects, num_parts = vote_scale.shape
  shape = (num_objects, num_parts, 6)
  density = normal_log_prob(
    jnp.broadcast_to(part_poses[None], shape),
    votes,
    jnp.broadcast_to(vote_scale[:, :, None], shape),
  ).sum(axis=-1)
  dummy = jnp.full((1, num_parts), DUMMY_LOG)
  log_density = jnp.concatenate([density, dummy])
  log_mixing = jnp.concatenate([safe_log(vote_presence), dummy])
  if normalize_mixing:
    log_mixing = jax.nn.log_softmax(log_mixing, axis=0)
  joint = log_mixing + log_density
  return Routing(
    log_prob=jax.nn.logsumexp(joint, axis=0),
    posterior=jax.nn.softmax(joint, axis=0),
    winner=jnp.argmax(joint[:-1], axis=0),
  )


@typed
def word_of_winner(
  routing: Routing, values: Float[Array, "k m d"], dummy: Float[Array, "m d"], *, by: str
) -> Float[Array, "m d"]:
  """What objects say of every part: the winner alone, by `hard`; by `soft` the mean under the
  posterior, the dummy included."""
  if by == "hard":
    return jnp.take_along_axis(values, routing.winner[None, :, None], axis=0)[0]
  everyone = jnp.concatenate([values, dummy[None]])
  return jnp.sum(routing.posterior[..., None] * everyone, axis=0)


@typed
def posterior_mass(routing: Routing) -> Float[Array, " k"]:
  """Share of the parts that every object explains: its posterior summed over parts, over m."""
  return jnp.mean(routing.posterior[:-1], axis=1)
