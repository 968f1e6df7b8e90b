"""Sparsity terms that capsule models share: which kind is of what."""

import jax.numpy as jnp
import numpy as np
import pytest

from scae_jax.models.capsule_loss import CapsuleLoss, sparsity_of

BATCH, CAPSULES, CLASSES = 3, 4, 2
LOSS = {
  "prior": "l2",
  "prior_within_constant": 0.0,
  "posterior": "entropy",
  "unbiased_between": False,
  "weights": {},
  "schedule": {},
}


def reference(kind, activation, constant):
  """Within and between, see `sparsity`: in NumPy, of activations [b, k]."""
  if kind == "l2":
    within = np.mean((activation.sum(axis=1) - constant) ** 2)
    return within, np.mean((activation.sum(axis=0) - BATCH / CLASSES) ** 2)

  def entropy(mass):
    share = mass / mass.sum(axis=-1, keepdims=True)
    return -np.sum(share * np.log(share), axis=-1)

  shift = np.log(CAPSULES) if kind == "kl" else 0.0
  return entropy(activation).mean() - shift, shift - entropy(activation.sum(axis=0))


@pytest.mark.parametrize("constant", [0.0, 1.0])
@pytest.mark.parametrize("posterior", ["l2", "entropy", "kl"])
@pytest.mark.parametrize("prior", ["l2", "entropy", "kl"])
def test_terms_against_numpy(prior, posterior, constant):
  """The constant is of the presences' l2 alone; without it, it is an even share of capsules."""
  rng = np.random.RandomState(0)
  presence, mass = rng.uniform(0.1, 1, (2, BATCH, CAPSULES)).astype(np.float32)
  loss = {"prior": prior, "prior_within_constant": constant, "posterior": posterior}
  terms = sparsity_of(CapsuleLoss(**LOSS | loss), CLASSES)(jnp.asarray(presence), jnp.asarray(mass))
  even = CAPSULES / CLASSES
  of_presence = reference(prior, presence, constant or even)
  of_mass = reference(posterior, mass, even)
  expected = dict(
    zip(
      ("prior_within", "prior_between", "posterior_within", "posterior_between"),
      (*of_presence, *of_mass),
      strict=True,
    )
  )
  # Differences of entropies of float32, each about 1.
  assert terms == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_both_between_terms_can_be_unbiased():
  presence, mass = np.random.RandomState(0).uniform(0.1, 1, (2, BATCH, CAPSULES))
  activations = jnp.float32(presence), jnp.float32(mass)
  plain, unbiased = (
    sparsity_of(CapsuleLoss(**LOSS | {"unbiased_between": value}), CLASSES)(*activations)
    for value in (False, True)
  )
  for name, term in plain.items():
    assert unbiased[name] < term if name.endswith("between") else unbiased[name] == term, name
