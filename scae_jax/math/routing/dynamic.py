"""Routing by agreement: a parent is a sum of predictions, weighted by their agreement with it.

Functions take one example with n child and k parent capsules; each child predicts the vector of
each parent.
Sabour, Frosst and Hinton 2017, "Dynamic Routing Between Capsules", arXiv 1710.09829, procedure 1.
"""

import jax
import jax.numpy as jnp
from flax import struct

from scae_jax.typing import Array, Float, typed


@struct.dataclass
class DynamicRouting:
  """Parents, and the couplings and agreements of each iteration."""

  # Squashed vectors of the last iteration; a vector's length is in [0, 1).
  parents: Float[Array, "k d"]
  # Coupling coefficients of each iteration; those of a child sum to one over parents.
  coupling: Float[Array, "i n k"]
  # Scalar product of each prediction with its parent in each iteration; it is added to the logit of
  # the next coupling.
  agreement: Float[Array, "i n k"]


@typed
def length(vectors: Float[Array, "*shape d"]) -> Float[Array, "*shape"]:
  """Euclidean length; at zero its gradient is zero."""
  squared = jnp.sum(jnp.square(vectors), axis=-1)
  is_zero = squared == 0
  return jnp.where(is_zero, 0.0, jnp.sqrt(jnp.where(is_zero, 1.0, squared)))


@typed
def squash(vectors: Float[Array, "*shape d"]) -> Float[Array, "*shape d"]:
  """|s|^2 / (1 + |s|^2) s / |s|: the direction stays, the length comes to lie in [0, 1).

  Equation 1. Zero stays zero, with a gradient of zero. Lengths must be below 1e19.
  """
  squared = jnp.sum(jnp.square(vectors), axis=-1, keepdims=True)
  return vectors * (length(vectors)[..., None] / (1.0 + squared))


@typed
def route_by_agreement(
  predictions: Float[Array, "n k d"], *, iterations: int, through_all: bool
) -> DynamicRouting:
  """Routes children to parents (procedure 1).

  Logits start at zero. In each iteration the coupling is the softmax of a child's logits over
  parents, a parent is the squashed sum of predictions weighted by coupling, and the agreement of
  prediction and parent is added to the logits. No bias is added, as in the paper; the authors'
  release has one. Unless gradients flow `through_all` iterations, the coupling is a constant.
  ValueError below one iteration.
  """
  if iterations < 1:
    raise ValueError(f"routing takes at least 1 iteration, got {iterations}")
  constant = predictions if through_all else jax.lax.stop_gradient(predictions)
  logits = jnp.zeros(predictions.shape[:2])
  steps = []
  for i in range(iterations):
    coupling = jax.nn.softmax(logits, axis=1)
    summands = predictions if i == iterations - 1 else constant
    parents = squash(jnp.einsum("nk,nkd->kd", coupling, summands))
    agreement = jnp.einsum("nkd,kd->nk", constant, parents)
    logits = logits + agreement
    steps.append((parents, coupling, agreement))
  parents, couplings, agreements = zip(*steps, strict=True)
  return DynamicRouting(parents[-1], jnp.stack(couplings), jnp.stack(agreements))
