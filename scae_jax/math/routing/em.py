"""Routing by expectation maximisation: parents are Gaussian clusters of their children's votes.

Functions take one example. Parents are on a grid of p positions with k types at each. A parent has
a receptive field of n children. All parents that see a child, at several positions, compete for it.
Children are the last axis of votes, which halves the time of a step on a CPU. Hinton, Sabour and
Frosst 2018, "Matrix Capsules with EM Routing", procedure 1.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from scae_jax.typing import Array, Float, typed

# Least variance: the density of votes that all agree would be unbounded.
MIN_VARIANCE = 5e-4
# Least sum of a parent's assignments, so that a parent without children has means of zero.
MIN_MASS = 1e-8
LOG_2PI = math.log(2 * math.pi)


@struct.dataclass
class EMRouting:
  """Parents, and the couplings and agreements of each iteration."""

  poses: Float[Array, "p k d"]  # means of the clusters
  variance: Float[Array, "p k d"]  # of the clusters
  activation: Float[Array, "p k"]  # probability that a parent is present
  # Coupling coefficients of each iteration, before they are multiplied by the child's activation;
  # those of a child sum to one over the parents that compete for it.
  coupling: Float[Array, "i p n k"]
  # Log density of each vote under the parent's cluster in each iteration, nats.
  agreement: Float[Array, "i p n k"]


def inverse_temperature(iteration: int, limit: float) -> float:
  """lambda_i = limit (1 - 0.95^(i + 1)) for iteration i, counted from 0; published with 0.01.

  With 0.01 the costs matter only where each parent has dozens of children to itself, as classes
  have on smallNORB. Elsewhere activations stay near a half until the costs have grown.
  """
  return limit * (1 - 0.95 ** (iteration + 1))


@typed
def clusters(
  votes: Float[Array, "p k d n"], assigned: Float[Array, "p k n"]
) -> tuple[Float[Array, "p k d"], Float[Array, "p k d"], Float[Array, "p k"]]:
  """Means and variances of votes weighted by `assigned`, and the sums of these weights.

  Variances are at least `MIN_VARIANCE`.
  """
  mass = jnp.sum(assigned, axis=-1)
  total = jnp.maximum(mass, MIN_MASS)[..., None]
  mean = jnp.einsum("pkn,pkdn->pkd", assigned, votes) / total
  variance = jnp.einsum("pkn,pkdn->pkd", assigned, jnp.square(votes - mean[..., None])) / total
  return mean, jnp.maximum(variance, MIN_VARIANCE), mass


@typed
def log_density(
  votes: Float[Array, "p k d n"], mean: Float[Array, "p k d"], variance: Float[Array, "p k d"]
) -> Float[Array, "p k n"]:
  """log Normal(vote | mean, variance), summed over the independent entries of a pose, nats."""
  distance = jnp.sum(jnp.square(votes - mean[..., None]) / variance[..., None], axis=2)
  return -0.5 * (distance + jnp.sum(jnp.log(variance) + LOG_2PI, axis=2)[..., None])


@typed
def route_by_em(
  votes: Float[Array, "p k d n"],
  activation: Float[Array, " m"],
  child: np.ndarray,
  *,
  beta_u: Float[Array, " k"],
  beta_a: Float[Array, " k"],
  iterations: int,
  inverse_temperature_limit: float,
) -> EMRouting:
  """Clusters votes; the clusters are the parents (procedure 1).

  M step: a parent's mean and variance are those of its votes, weighted by coupling times the
  child's activation. Its activation is sigmoid(lambda (beta_a - mass sum_d (beta_u + log
  sigma_d))), where mass is the sum of the weights. E step: the coupling is proportional to
  activation times density. With one iteration the coupling is uniform.

  Args:
    votes: poses that children vote for.
    activation: of all m children, in [0, 1].
    child: int [p, n], static: which of the m children each entry of a receptive field is.
    beta_u: minus the cost of describing a child without a cluster, of each type.
    beta_a: minus the cost of activating a parent, of each type.
    iterations: at least 1.
    inverse_temperature_limit: limit of lambda, see `inverse_temperature`.

  Raises:
    ValueError: below one iteration, or if `child` has another shape or an index out of range.
  """
  if iterations < 1:
    raise ValueError(f"routing takes at least 1 iteration, got {iterations}")
  shape, num_children = (votes.shape[0], votes.shape[3]), len(activation)
  if child.shape != shape or child.min() < 0 or child.max() >= num_children:
    raise ValueError(
      f"child must have shape {shape} and numbers from 0 to {num_children - 1}, got shape "
      f"{child.shape} and numbers from {child.min()} to {child.max()}"
    )
  weight = activation[child][:, None]
  log_share = jnp.zeros((*votes.shape[:2], votes.shape[3]))
  steps = []
  for i in range(iterations):
    coupling = jnp.exp(_normalise(log_share, child, num_children))
    mean, variance, mass = clusters(votes, coupling * weight)
    cost = mass * jnp.sum(beta_u[None, :, None] + 0.5 * jnp.log(variance), axis=-1)
    logits = inverse_temperature(i, inverse_temperature_limit) * (beta_a[None] - cost)
    agreement = log_density(votes, mean, variance)
    log_share = jax.nn.log_sigmoid(logits)[..., None] + agreement
    steps.append((mean, variance, jax.nn.sigmoid(logits), coupling, agreement))
  poses, variance, activated, _, _ = steps[-1]
  *_, couplings, agreements = zip(*steps, strict=True)
  couplings, agreements = jnp.stack(couplings), jnp.stack(agreements)
  return EMRouting(
    poses, variance, activated, jnp.swapaxes(couplings, 2, 3), jnp.swapaxes(agreements, 2, 3)
  )


def _normalise(log_share: Array, child: np.ndarray, num_children: int) -> Array:
  """Log shares [p, k, n] whose exponentials sum to one over all parents of each child."""
  flat = child.reshape(-1)
  over_types = jax.nn.logsumexp(log_share, axis=1)
  # A constant that cancels, so that the largest share of each child is exp(0).
  largest = jax.ops.segment_max(over_types.reshape(-1), flat, num_children)[child]
  largest = jax.lax.stop_gradient(largest)
  summed = jax.ops.segment_sum(jnp.exp(over_types - largest).reshape(-1), flat, num_children)
  return log_share - (largest + jnp.log(summed[child]))[:, None]
