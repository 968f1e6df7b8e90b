"""Routing of an unordered set of points: each point is explained by any vote, or by none.

Functions take one example: k object capsules, each of which casts v votes for positions of points.
The density of a point is a mixture over all k v votes and one dummy component, which explains the
points that no capsule does. Kosiorek et al. 2019, section 2.1 and equations 2 to 4.
"""

import jax
import jax.numpy as jnp
from flax import struct

from scae_jax.math.mixtures import normal_log_prob, safe_log
from scae_jax.math.routing.mixture import DUMMY_LOG
from scae_jax.typing import Array, Bool, Float, Int, typed


@struct.dataclass
class PointRouting:
  """Which capsule explains which point."""

  log_prob: Float[Array, " n"]  # log-likelihood of each point, nats
  # Probability that a point belongs to a capsule, summed over its votes; the dummy is last.
  posterior: Float[Array, "k_and_dummy n"]
  winner: Int[Array, " n"]  # the capsule with the largest posterior; never the dummy
  winning_vote: Int[Array, " n"]  # the most probable of the winner's votes, in [0, v)


@typed
def route_points(
  points: Float[Array, "n 2"],
  votes: Float[Array, "k v 2"],
  vote_scale: Float[Array, "k v"],
  vote_presence: Float[Array, "k v"],
) -> PointRouting:
  """Computes the posterior of each point over capsules.

  Component density: Normal(point | vote, scale) in both coordinates. Mixing weights: presences of
  the votes, in [0, 1], and 0.01 for the dummy, divided by their sum; the dummy's log density is
  log 0.01.
  """
  num_capsules, num_votes = vote_scale.shape
  num_points = points.shape[0]
  shape = (num_capsules, num_votes, num_points, 2)
  log_density = normal_log_prob(
    jnp.broadcast_to(points[None, None], shape),
    jnp.broadcast_to(votes[:, :, None], shape),
    jnp.broadcast_to(vote_scale[:, :, None, None], shape),
  ).sum(axis=-1)
  dummy = jnp.full((1,), DUMMY_LOG)
  log_mixing = jax.nn.log_softmax(jnp.concatenate([safe_log(vote_presence).reshape(-1), dummy]))
  joint = log_mixing[:-1].reshape(num_capsules, num_votes, 1) + log_density
  capsule_log_prob = jax.nn.logsumexp(joint, axis=1)
  dummy_log_prob = jnp.full((1, num_points), log_mixing[-1] + DUMMY_LOG)
  all_components = jnp.concatenate([capsule_log_prob, dummy_log_prob])
  winner = jnp.argmax(capsule_log_prob, axis=0)
  best_vote = jnp.argmax(joint, axis=1)
  return PointRouting(
    log_prob=jax.nn.logsumexp(all_components, axis=0),
    posterior=jax.nn.softmax(all_components, axis=0),
    winner=winner,
    winning_vote=jnp.take_along_axis(best_vote, winner[None], axis=0)[0],
  )


@typed
def point_mass(routing: PointRouting, presence: Float[Array, " n"]) -> Float[Array, " k"]:
  """Posterior mass of each capsule: its posterior summed over present points, divided by n."""
  return jnp.mean(routing.posterior[:-1] * presence[None], axis=1)


@typed
def points_won(routing: PointRouting, presence: Float[Array, " n"]) -> Float[Array, " k"]:
  """The number of present points that each capsule won; no gradient."""
  num_capsules = routing.posterior.shape[0] - 1
  won = jax.nn.one_hot(routing.winner, num_capsules, axis=0) * presence[None]
  return jax.lax.stop_gradient(jnp.sum(won, axis=1))


@typed
def votes_won(
  routing: PointRouting, presence: Float[Array, " n"], num_votes: int
) -> Bool[Array, "k v"]:
  """Whether each vote won a present point."""
  num_capsules = routing.posterior.shape[0] - 1
  index = routing.winner * num_votes + routing.winning_vote
  won = jax.nn.one_hot(index, num_capsules * num_votes) * presence[:, None]
  return (jnp.sum(won, axis=0) > 0).reshape(num_capsules, num_votes)
