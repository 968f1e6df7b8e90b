"""Targets, answers and accuracy of systems that are trained with labels.

An image has one label, or two where two images of different classes lie on top of each other.
"""

import jax
import jax.numpy as jnp

from scae_jax.typing import Array, Float, Int, typed


@typed
def present(labels: Int[Array, "b labels"], num_classes: int) -> Float[Array, "b {num_classes}"]:
  """1 for every class that is in an image, 0 for the others."""
  return jnp.sum(jax.nn.one_hot(labels, num_classes), axis=1)


@typed
def answers(scores: Float[Array, "b k"], num_labels: int) -> Int[Array, "b {num_labels}"]:
  """The classes with the largest scores, the largest first."""
  return jax.lax.top_k(scores, num_labels)[1]


@typed
def accuracy(scores: Float[Array, "b k"], labels: Int[Array, "b labels"]) -> Float[Array, " b"]:
  """Share of an image's labels that are among its classes of the largest scores, one a label."""
  said = answers(scores, labels.shape[1])
  found = jnp.any(said[:, :, None] == labels[:, None, :], axis=1)
  return jnp.mean(found.astype(jnp.float32), axis=1)
