"""Free-form inference: optimises the posterior of every example by gradients of its bound.

An encoder infers an example's approximate posterior in one pass, and poorly if the example is
unlike those it was trained on. Here the parameters of the posterior are optimised while the model
is fixed. Smith et al. 2020, arXiv 2004.03553, section 2.4.

Each example has its own key, made from its number, and its own optimiser state, so that its result
does not depend on the others in the batch.
"""

import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from scae_jax.models.system import FreeForm, Numbers
from scae_jax.typing import Array, Batch, Float, Int

STARTS = ("encoder", "prior")
SEED = 0  # of all samples; not the run's, so that all runs are scored with the same noise

Terms = OrderedDict[str, Array]  # JAX sorts the names of other dicts


@struct.dataclass
class Inferred:
  """A posterior, a tree of arrays [b, ...], its bound and its probe features.

  `terms` are those of the negative bound, nats, in the order of `FreeForm.terms`; each is the mean
  of many estimates.
  """

  posterior: Any
  terms: OrderedDict[str, Float[Array, " b"]]
  probe_features: Mapping[str, Numbers]  # [b, d] each

  @property
  def bound(self) -> Float[Array, " b"]:
    """The lower bound, nats."""
    return -_total(self.terms)


@struct.dataclass
class FreeInference:
  """The posteriors `before` the first and `after` the last step.

  Terms of both are estimated with the same random numbers, so that their difference is less noisy
  than either.
  """

  before: Inferred
  after: Inferred


Infer = Callable[[Any, Batch, Int[Array, " b"]], FreeInference]


def make_inference(
  free_form: FreeForm,
  optimizer: optax.GradientTransformation,
  *,
  num_steps: int,
  start: str,
  num_samples: int,
) -> Infer:
  """Compiles the inference of a batch: `(variables, batch, numbers) -> FreeInference`.

  `numbers` are the examples' numbers, from which their keys are made. `start` is one of `STARTS`;
  with no steps it is only scored. A line search, as in `optax.lbfgs`, uses the random numbers of
  its step. Each bound is the mean of `num_samples` estimates. Negative steps and less than one
  sample raise ValueError.
  """
  if num_steps < 0 or num_samples < 1:
    raise ValueError(
      f"expected num_steps of 0 or more and num_samples of 1 or more, got {num_steps} and "
      f"{num_samples}"
    )
  begin = {"encoder": free_form.encode, "prior": free_form.prior}[start]
  optimizer = optax.with_extra_args_support(optimizer)

  def terms(variables: Any, posterior: Any, example: Batch, key: Array) -> Terms:
    """Scalar terms of one example, whose posterior has a leading axis of 1."""
    batch_terms = free_form.terms(variables, posterior, _as_batch(dict(example)), key)
    return OrderedDict((name, value[0]) for name, value in batch_terms.items())

  def optimise(variables: Any, unconstrained: Any, example: Batch, number: Array) -> Any:
    """The unconstrained posterior of one example after all steps."""

    def loss(unconstrained: Any, count: Array) -> Array:
      # The key is made here: a line search calls this again and needs the same random numbers.
      step_key = jax.random.fold_in(jax.random.fold_in(_key(number), 0), count)
      posterior = free_form.constrain(_as_batch(unconstrained))
      return _total(terms(variables, posterior, example, step_key))

    def step(carry: tuple[Any, Any], count: Array) -> tuple[tuple[Any, Any], None]:
      unconstrained, state = carry
      step_loss = functools.partial(loss, count=count)
      value, gradient = jax.value_and_grad(step_loss)(unconstrained)
      updates, state = optimizer.update(
        gradient, state, unconstrained, value=value, grad=gradient, value_fn=step_loss
      )
      return (optax.apply_updates(unconstrained, updates), state), None

    (unconstrained, _), _ = jax.lax.scan(
      step, (unconstrained, optimizer.init(unconstrained)), jnp.arange(num_steps)
    )
    return unconstrained

  def score_both(variables: Any, posteriors: Any, example: Batch, key: Array) -> Terms:
    """Terms [2] of two posteriors of one example, estimated with the same random numbers."""

    def estimate(count: Array) -> Terms:
      sample_key = jax.random.fold_in(key, count)
      estimate_terms = functools.partial(terms, example=example, key=sample_key)
      return jax.vmap(lambda posterior: estimate_terms(variables, _as_batch(posterior)))(posteriors)

    estimates = jax.lax.map(estimate, jnp.arange(num_samples))
    return jax.tree.map(lambda values: jnp.mean(values, axis=0), estimates)

  def infer_example(variables: Any, before: Any, unconstrained: Any, example: Batch, number: Array):
    """Posterior after all steps, and terms [2] before and after, of one example."""
    unconstrained = optimise(variables, unconstrained, example, number)
    after = jax.tree.map(lambda leaf: leaf[0], free_form.constrain(_as_batch(unconstrained)))
    posteriors = jax.tree.map(lambda *pair: jnp.stack(pair), before, after)
    return after, score_both(variables, posteriors, example, jax.random.fold_in(_key(number), 1))

  def infer(variables: Any, batch: Batch, numbers: Int[Array, " b"]) -> FreeInference:
    before = begin(variables, batch)
    unconstrained = free_form.unconstrain(before)
    infer_examples = jax.vmap(infer_example, in_axes=(None, 0, 0, 0, 0))
    after, terms_of_both = infer_examples(variables, before, unconstrained, dict(batch), numbers)

    def inferred(posterior: Any, index: int) -> Inferred:
      terms = jax.tree.map(lambda values: values[:, index], terms_of_both)
      return Inferred(posterior, terms, free_form.encoding(variables, posterior).probe_features)

    return FreeInference(inferred(before, 0), inferred(after, 1))

  return jax.jit(infer)


def _total(terms: Terms) -> Array:
  return sum(terms.values(), start=jnp.zeros(()))


def _key(number: Array) -> Array:
  """The key of one example, from which all its random numbers are drawn."""
  return jax.random.fold_in(jax.random.key(SEED), number)


def _as_batch(tree: Any) -> Any:
  """An example as a batch of one."""
  return jax.tree.map(lambda leaf: leaf[None], tree)
