"""Sparsity terms that capsule models share, and the loss section of the config that sets them."""

import dataclasses
from collections.abc import Callable
from typing import Annotated

from scae_jax import sparsity
from scae_jax.bounds import MAX_WIDTH, between, one_of
from scae_jax.models.system import LossOptions
from scae_jax.typing import Array

SPARSITIES = {"l2": sparsity.l2, "entropy": sparsity.entropy, "kl": sparsity.kl}

SparsityTerms = Callable[[Array, Array], dict[str, Array]]


@dataclasses.dataclass(frozen=True)
class CapsuleLoss(LossOptions):
  """The config's loss section of systems with object capsules."""

  # Kind of sparsity of the presences, a key of `SPARSITIES`.
  prior: Annotated[str, one_of(*SPARSITIES)]
  # How many capsules an example should switch on, for l2; 0 for K / C.
  prior_within_constant: Annotated[float, between(0, MAX_WIDTH)]
  posterior: Annotated[str, one_of(*SPARSITIES)]  # kind of sparsity of the mass
  unbiased_between: bool  # between examples, as of all examples rather than of a batch


def sparsity_of(loss: CapsuleLoss, num_classes: int) -> SparsityTerms:
  """The sparsity that a loss section asks for, as a function `(presence, mass) -> terms`.

  Presences [b, k] are those of the object capsules, and the mass [b, k] is the share of the parts
  that each explains. The terms are unweighted: `prior_within`, `prior_between`, `posterior_within`
  and `posterior_between`. `num_classes` is C of the l2 sparsity.
  """

  def sparse(kind: str, activation: Array, within_constant: float) -> sparsity.Sparsity:
    if kind == "l2":
      constant = within_constant or None
      return sparsity.l2(activation, num_classes, constant, unbiased=loss.unbiased_between)
    return SPARSITIES[kind](activation, unbiased=loss.unbiased_between)

  def terms(presence: Array, mass: Array) -> dict[str, Array]:
    prior = sparse(loss.prior, presence, loss.prior_within_constant)
    posterior = sparse(loss.posterior, mass, 0.0)
    both = {"prior": prior, "posterior": posterior}
    return {f"{of}_{name}": x for of, one in both.items() for name, x in one._asdict().items()}

  return terms
