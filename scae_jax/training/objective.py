"""The objective of training: the weighted sum of a system's loss terms."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from scae_jax.models.system import System
from scae_jax.schedules import line_through
from scae_jax.typing import Array, Batch

PROBE_SUFFIX = "_probe"


def weighted_total(terms: Mapping[str, Array], weights: Mapping[str, Any]) -> Array:
  """Sum of weight times term; raises `ValueError` for a weight without a term."""
  if unknown := sorted(set(weights) - set(terms)):
    raise ValueError(
      f"config.loss.weights has {unknown}, which are no loss terms; the terms are {sorted(terms)}."
    )
  return sum((weights[name] * terms[name] for name in sorted(terms)), start=jnp.zeros(()))


def selection_loss(terms: Mapping[str, Array], weights: Mapping[str, float]) -> Array:
  """The held-out total that ranks checkpoints: without the terms `..._probe`, which see labels."""
  names = [name for name in terms if not name.endswith(PROBE_SUFFIX)]
  return weighted_total({n: terms[n] for n in names}, {n: weights[n] for n in names})


def heldout_weights(system: System, terms: Mapping[str, Array]) -> dict[str, float]:
  """Weights of the terms of held-out examples, which need not have all that training has."""
  return {name: weight for name, weight in system.loss_weights.items() if name in terms}


def scheduled_weights(system: System, step: Array | int) -> dict[str, Array]:
  """Weights of the loss terms at a step, counted from 0, times the factors of `loss_schedule`.

  Points for no term raise `ValueError`.
  """
  unknown = sorted(set(system.loss_schedule) - set(system.loss_weights))
  if unknown:
    raise ValueError(
      f"config.loss.schedule has {unknown}, which are no loss terms; the terms are"
      f" {sorted(system.loss_weights)}."
    )
  weights = {}
  for name, weight in system.loss_weights.items():
    factor = line_through(system.loss_schedule.get(name, ()))
    weights[name] = jnp.float32(weight) if factor is None else weight * factor(step)
  return weights


def losses(
  system: System,
  params: Any,
  batch: Batch,
  *,
  step: Array | int | None,
  noise_key: Array | None,
) -> tuple[Array, tuple[dict[str, Array], Any]]:
  """The weighted total, and beside it the unweighted terms and the model's output.

  Held-out examples have no step and no key. They are evaluated without noise, with the final values
  of scheduled arguments and with constant weights, so that losses of all steps compare. A term
  without a weight is left out, as in runs from before the term was added.
  """
  rngs = None if noise_key is None else {"noise": noise_key}
  more = {} if step is None or system.arguments is None else system.arguments(step)
  output = system.module.apply({"params": params}, batch, train=step is not None, rngs=rngs, **more)
  terms = system.loss_terms(output, batch, step)
  terms = {name: term for name, term in terms.items() if name in system.loss_weights}
  weights = heldout_weights(system, terms) if step is None else scheduled_weights(system, step)
  return weighted_total(terms, weights), (terms, output)
