"""Sparsity terms that capsule models share, and the loss section of the config that sets them."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from scae_jax import sparsity
from scae_jax.models.system import not_negative, one_of
from scae_jax.typing import Array

SPARSITIES = {"l2": sparsity.l2, "entropy": sparsity.entropy, "kl": sparsity.kl}
LOSS_KEYS = ("prior", "prior_within_constant", "posterior", "weights", "schedule")


SparsityTerms = Callable[[Array, Array], dict[str, Array]]


def sparsity_of(loss: Mapping[str, Any], num_classes: int) -> SparsityTerms:
  """`sparsity_terms` of presences and mass alone: the rest is what a loss section says.

  Args:
    loss: `prior` and `posterior`, kinds of sparsity, `prior_within_constant`, and `weights` and
      `schedule`, which are not of interest here.
    num_classes: C of the l2 sparsity.

  Raises:
    ValueError: the section has other keys than these, or a kind that does not exist.
  """
  unknown, missing = sorted(set(loss) - set(LOSS_KEYS)), sorted(set(LOSS_KEYS) - set(loss))
  if unknown or missing:
    raise ValueError(
      f"config section loss: unknown keys {unknown}, missing keys {missing}; "
      f"valid keys are {sorted(LOSS_KEYS)}"
    )
  for key in ("prior", "posterior"):
    one_of(f"config.loss.{key}", loss[key], tuple(SPARSITIES))
  not_negative("config.loss.prior_within_constant", loss["prior_within_constant"])
  return functools.partial(
    sparsity_terms,
    num_classes=num_classes,
    prior=loss["prior"],
    prior_within_constant=loss["prior_within_constant"],
    posterior=loss["posterior"],
  )


def sparsity_terms(
  presence: Array,
  mass: Array,
  *,
  num_classes: int,
  prior: str,
  prior_within_constant: float,
  posterior: str,
) -> dict[str, Array]:
  """Terms to minimise, each unweighted: within an example and between examples.

  Args:
    presence: [b, k] of the object capsules.
    mass: [b, k], share of the parts that each explains.
    num_classes: C of the l2 sparsity.
    prior: kind of sparsity of the presences, a key of `SPARSITIES`.
    prior_within_constant: capsules that an example should switch on, for l2; 0 means K / C.
    posterior: kind of sparsity of the mass.

  Returns:
    `prior_within`, `prior_between`, `posterior_within` and `posterior_between`.
  """

  def sparse(kind: str, activation: Array, within_constant: float) -> sparsity.Sparsity:
    if kind == "l2":
      return sparsity.l2(activation, num_classes, within_constant or None)
    return SPARSITIES[kind](activation)

  of_presence = sparse(prior, presence, prior_within_constant)
  of_mass = sparse(posterior, mass, 0.0)
  return {
    "prior_within": of_presence.within,
    "prior_between": of_presence.between,
    "posterior_within": of_mass.within,
    "posterior_between": of_mass.between,
  }
