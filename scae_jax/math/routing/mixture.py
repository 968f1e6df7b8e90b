"""Routing by mixture: each part is explained by one object's vote for it, or by none.

Functions take one example: k object capsules, each of which votes for the pose of each of m parts.
The density of a part's pose is a mixture over the k votes for it and one dummy component, which
explains the parts that no object does. Kosiorek et al. 2019, section 2.3 and equation 5.
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

  log_prob: Float[Array, " m"]  # log-likelihood of each part's pose, nats
  posterior: Float[Array, "n m"]  # probability that a part belongs to an object; the dummy is last
  winner: Int[Array, " m"]  # the object with the largest posterior; never the dummy


@typed
def route(
  part_poses: Float[Array, "m 6"],
  votes: Float[Array, "k m 6"],
  vote_scale: Float[Array, "k m"],
  vote_presence: Float[Array, "k m"],
  *,
  normalize_mixing: bool,
) -> Routing:
  """Computes the posterior of each part over the votes for it.

  Component density: the six numbers of a pose are independent, Normal(pose | vote, scale). Log
  mixing weight: log presence of the vote. Dummy: log 0.01 for both. Presences are in [0, 1]. With
  `normalize_mixing`, mixing weights are divided by their sum. The authors' release does not
  normalise them, so its likelihood rises with presence itself.
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
def winner_vote(
  routing: Routing, values: Float[Array, "k m d"], dummy: Float[Array, "m d"], *, by: str
) -> Float[Array, "m d"]:
  """Each part's vote: the winner's (`hard`), or the posterior mean, dummy included (`soft`)."""
  if by == "hard":
    return jnp.take_along_axis(values, routing.winner[None, :, None], axis=0)[0]
  components = jnp.concatenate([values, dummy[None]])
  return jnp.sum(routing.posterior[..., None] * components, axis=0)


@typed
def posterior_mass(routing: Routing) -> Float[Array, " k"]:
  """Share of the parts that each object explains: the mean over parts of its posterior."""
  return jnp.mean(routing.posterior[:-1], axis=1)
