"""Sparsity terms that capsule models share, and the loss section of the config that sets them."""

from collections.abc import Callable, Mapping
from typing import Any

from scae_jax import sparsity
from scae_jax.models.system import check_keys, not_negative, one_of
from scae_jax.typing import Array

SPARSITIES = {"l2": sparsity.l2, "entropy": sparsity.entropy, "kl": sparsity.kl}
LOSS_KEYS = ("prior", "prior_within_constant", "posterior", "weights", "schedule")

SparsityTerms = Callable[[Array, Array], dict[str, Array]]


def sparsity_of(loss: Mapping[str, Any], num_classes: int) -> SparsityTerms:
  """The sparsity that a loss section asks for, as a function.

  Args:
    loss: `prior` and `posterior`, kinds of sparsity of the presences and of the mass, keys of
      `SPARSITIES`; `prior_within_constant`, how many capsules an example should switch on, for l2,
      0 for K / C; and `weights` and `schedule`, which are not read here.
    num_classes: C of the l2 sparsity.

  Returns:
    `(presence, mass) -> terms`: of presences [b, k] of the object capsules and their mass [b, k],
    the share of the parts that each explains, the terms to minimise, each unweighted:
    `prior_within`, `prior_between`, `posterior_within` and `posterior_between`, within an example
    and between examples.

  Raises:
    ValueError: the section has other keys than these, or a kind that does not exist.
  """
  check_keys("loss", loss, LOSS_KEYS)
  for key in ("prior", "posterior"):
    one_of(f"config.loss.{key}", loss[key], tuple(SPARSITIES))
  not_negative("config.loss.prior_within_constant", loss["prior_within_constant"])

  def sparse(kind: str, activation: Array, within_constant: float) -> sparsity.Sparsity:
    if kind == "l2":
      return sparsity.l2(activation, num_classes, within_constant or None)
    return SPARSITIES[kind](activation)

  def terms(presence: Array, mass: Array) -> dict[str, Array]:
    of_presence = sparse(loss["prior"], presence, loss["prior_within_constant"])
    of_mass = sparse(loss["posterior"], mass, 0.0)
    return {
      "prior_within": of_presence.within,
      "prior_between": of_presence.between,
      "posterior_within": of_mass.within,
      "posterior_between": of_mass.between,
    }

  return terms
