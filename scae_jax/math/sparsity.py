"""Sparsity of capsule activations: few capsules in each example, each capsule in some examples.

Functions of a batch give two scalars to minimise. If a batch is split over devices (`shards`),
"between" is of all its examples, and "within" is the mean over the examples of the device. Kosiorek
et al. 2019, section 2.4.

"Between" is a function of the batch's mean activations. Its mean over batches exceeds its value at
the mean over all examples, by a multiple of the variance of activations. Minimising this excess
makes activations constant: with batches of 64, a capsule that is always slightly present costs less
than one that is present in one class. `unbiased`, which is not in the paper, subtracts an estimate.
It takes the mean of `views` adjacent examples, which are views of one image and not independent.
"""

from typing import NamedTuple

import jax.numpy as jnp

from scae_jax import shards
from scae_jax.math.mixtures import safe_log
from scae_jax.typing import Array, Float, typed

# Added to a sum before dividing by it, so that an example without activation gives zeros.
EPSILON = 1e-8
MIN_SHARE = 1e-6  # added to an object's share of an image's mass, so that logarithms are finite


class Sparsity(NamedTuple):
  """Sparsity within examples and between examples, [] each."""

  within: Array
  between: Array


@typed
def l2(
  presence: Float[Array, "b k"],
  num_classes: int,
  within_constant: float | None = None,
  *,
  unbiased: bool = False,
  views: int = 1,
) -> Sparsity:
  """Squared distance of summed presences from an even share of capsules among classes.

  within = mean_b (sum_k a_bk - K / C)^2, between = mean_k (sum_b a_bk - B / C)^2, with presences a.
  `within_constant` replaces K / C, the number of capsules that should be present in an example.
  `unbiased` subtracts B var_k from each square, with var_k the sample variance of a_bk over b; of
  several views, it is their number times the variance of their mean.
  """
  num_capsules = presence.shape[1]
  batch = len(presence) * shards.count()
  if within_constant is None:
    within_constant = num_capsules / num_classes
  within = jnp.mean(jnp.square(jnp.sum(presence, axis=1) - within_constant))
  squares = jnp.square(shards.sum_over_batch(presence) - batch / num_classes)
  if unbiased:
    squares -= batch * _variance(presence, views)
  return Sparsity(within, jnp.mean(squares))


@typed
def entropy(mass: Float[Array, "b k"], *, unbiased: bool = False, views: int = 1) -> Sparsity:
  """Entropies, nats: within = mean_b H(mass_b / sum), between = -H(sum_b mass_b / sum).

  The second entropy is to be maximised, so it is negated: activity spreads over all capsules.
  `unbiased` adds to it its expected deficit to second order, sum_k var_k / (2 p_k), with p the
  shares of the batch's mass and var_k the sampling variance of p_k.
  """
  within = jnp.mean(_entropy(mass))
  total = shards.sum_over_batch(mass)
  between = -_entropy(total)
  if unbiased:
    whole = jnp.sum(total) + EPSILON
    # How far an example's mass is from its share: p_k is a ratio of sums, t_k / T, whose variance
    # is that of this residual times B / T^2 (delta method).
    residual = mass - jnp.sum(mass, axis=1, keepdims=True) * (total / whole)[None]
    batch = len(mass) * shards.count()
    between -= jnp.sum(batch * _variance(residual, views) / (2 * whole * (total + EPSILON)))
  return Sparsity(within, between)


@typed
def kl(mass: Float[Array, "b k"], *, unbiased: bool = False, views: int = 1) -> Sparsity:
  """Divergences from the uniform distribution over capsules, nats.

  within = -mean_b KL(mass_b / sum, uniform), between = KL(sum_b mass_b / sum, uniform). Gradients
  are those of `entropy`.
  """
  log_capsules = jnp.log(mass.shape[1])
  sparsity = entropy(mass, unbiased=unbiased, views=views)
  return Sparsity(sparsity.within - log_capsules, sparsity.between + log_capsules)


@typed
def view_divergence(mass: Float[Array, "b k"]) -> Float[Array, ""]:
  """Symmetric divergence of the masses of two views of an image, nats; not in the paper.

  Examples 2 i and 2 i + 1 are views of one image, so b is even. It is the mean over images of
  KL(p, q) + KL(q, p), with p and q the masses divided by their sums, plus 1e-6 so that logarithms
  are finite. It penalises mass that moves from one object to another between the views; such
  objects come to share the mass. Its minimum alone is trivial: one object explains every image.

  Let v be its weight and w that of the entropy within an example. To second order, uniform mass is
  unstable only if its correlation between views exceeds 1 - w / (4 v). Otherwise the two terms make
  the masses of all images the same.
  """
  share = mass / (jnp.sum(mass, axis=1, keepdims=True) + EPSILON) + MIN_SHARE
  share = share.reshape(-1, 2, mass.shape[1])
  difference = share[:, 0] - share[:, 1]
  log_ratio = jnp.log(share[:, 0]) - jnp.log(share[:, 1])
  return jnp.mean(jnp.sum(difference * log_ratio, axis=1))


def _variance(activation: Array, views: int) -> Array:
  """Sample variance of activations [b, k] over the batch, [k]; 0 for one image.

  Each `views` adjacent examples are of one image; it is their number times the variance of their
  mean, by which the variance of the batch's sum is b times it.
  """
  activation = jnp.mean(activation.reshape(-1, views, activation.shape[1]), axis=1)
  batch = len(activation) * shards.count()
  centred = activation - shards.sum_over_batch(activation)[None] / batch
  return views * shards.sum_over_batch(jnp.square(centred)) / max(batch - 1, 1)


def _entropy(mass: Array) -> Array:
  """Entropy of non-negative activations normalised over the last axis."""
  prob = mass / (jnp.sum(mass, axis=-1, keepdims=True) + EPSILON)
  return -jnp.sum(prob * safe_log(prob), axis=-1)
