"""The number that training minimises: the weighted sum of a system's loss terms."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from scae_jax.models.system import System
from scae_jax.typing import Array, Batch

PROBE_SUFFIX = "_probe"


def weighted_total(terms: Mapping[str, Array], weights: Mapping[str, float]) -> Array:
  """Sum of weight times term.

  Raises:
    ValueError: the names of the terms and of the weights differ.
  """
  without_weight, without_term = (
    sorted(set(terms) - set(weights)),
    sorted(set(weights) - set(terms)),
  )
  if without_weight or without_term:
    raise ValueError(
      f"every loss term needs exactly one weight: terms without a weight {without_weight},"
      f" weights without a term {without_term}; the terms are {sorted(terms)}."
      " Correct the config's loss section."
    )
  return sum((weights[name] * terms[name] for name in sorted(terms)), start=jnp.zeros(()))


def selection_loss(terms: Mapping[str, Array], weights: Mapping[str, float]) -> Array:
  """The held-out total that chooses the best checkpoint: without the probes, which see labels.

  A term is a probe's by its name, which ends in `_probe`.
  """
  names = [name for name in terms if not name.endswith(PROBE_SUFFIX)]
  return weighted_total(
    {name: terms[name] for name in names}, {name: weights[name] for name in names}
  )


def losses(
  system: System, params: Any, batch: Batch, *, train: bool, noise_key: Array | None
) -> tuple[Array, tuple[dict[str, Array], Any]]:
  """The weighted total, and beside it the unweighted terms and the model's output.

  Args:
    system: the model and its terms.
    params: the `params` collection.
    batch: of the model.
    train: whether the model runs as in training.
    noise_key: feeds the model's noise; None when `train` is false.
  """
  rngs = None if noise_key is None else {"noise": noise_key}
  output = system.module.apply({"params": params}, batch, train=train, rngs=rngs)
  terms = system.loss_terms(output, batch)
  return weighted_total(terms, system.loss_weights), (terms, output)
