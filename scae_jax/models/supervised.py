"""Targets, predictions and accuracy of systems that are trained with labels.

An image has one label, or two where two images of different classes lie on top of each other.
"""

import jax
import jax.numpy as jnp

from scae_jax.typing import Array, Float, Int, typed


@typed
def present(labels: Int[Array, "b labels"], num_classes: int) -> Float[Array, "b {num_classes}"]:
  """1 for each class that is in the image, 0 for the others."""
  return jnp.sum(jax.nn.one_hot(labels, num_classes), axis=1)


@typed
def answers(scores: Float[Array, "b k"], num_labels: int) -> Int[Array, "b {num_labels}"]:
  """The predicted classes: those of the largest scores, in descending order."""
  return jax.lax.top_k(scores, num_labels)[1]


@typed
def accuracy(scores: Float[Array, "b k"], labels: Int[Array, "b labels"]) -> Float[Array, " b"]:
  """Share of an image's labels that are predicted; an image has as many predictions as labels."""
  predicted = answers(scores, labels.shape[1])
  is_predicted = jnp.any(predicted[:, :, None] == labels[:, None, :], axis=1)
  return jnp.mean(is_predicted.astype(jnp.float32), axis=1)
