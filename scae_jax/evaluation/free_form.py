"""Free-form inference: optimises the posterior of every example by gradients of its bound.

An encoder infers an example's approximate posterior in one pass, and poorly where the example is
unlike those it was trained on. Here the parameters of the posterior are optimised, and the model is
fixed. Smith et al. 2020, arXiv 2004.03553, section 2.4.

Each example has its own key, made of its number among those that are inferred, and its own
optimiser state, so that its result does not depend on the others in the batch.
"""

import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from scae_jax.data.batches import evaluation_batch
from scae_jax.evaluation.checks import DIVERGED, check_finite
from scae_jax.evaluation.collect import in_batches
from scae_jax.models.system import FreeForm
from scae_jax.typing import Array, Batch, Float, Int

STARTS = ("encoder", "prior")
SEED = 0  # of all samples; not the run's, so that all runs are judged by the same

Terms = OrderedDict[str, Array]  # JAX sorts the names of other dicts


@struct.dataclass
class Inferred:
  """A posterior, a tree of arrays [b, ...], its bound and its probe features.

  `terms` of the negative bound, nats, are means of many estimates, in the order of
  `FreeForm.terms`.
  """

  posterior: Any
  terms: OrderedDict[str, Float[Array, " b"]]
  probe_features: dict[str, Float[Array, "b d"]]

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

  `numbers` are those of the examples, which seed their random numbers. With no steps the start, one
  of `STARTS`, is only scored. A line search, as of `optax.lbfgs`, is by the random numbers of its
  step. Each bound is the mean of `num_samples` estimates. Negative steps and no samples raise
  ValueError.
  """
  if num_steps < 0 or num_samples < 1:
    raise ValueError(
      f"expected num_steps of 0 or more and num_samples of 1 or more, got {num_steps} and "
      f"{num_samples}"
    )
  begin = {"encoder": free_form.encode, "prior": free_form.prior}[start]
  optimizer = optax.with_extra_args_support(optimizer)

  def terms(variables: Any, posterior: Any, example: Batch, key: Array) -> Terms:
    """Terms of one example, [] each; its posterior has a leading axis of 1."""
    found = free_form.terms(variables, posterior, _alone(dict(example)), key)
    return OrderedDict((name, value[0]) for name, value in found.items())

  def climb(variables: Any, free: Any, example: Batch, number: Array) -> Any:
    """The numbers of one example after all steps."""

    def loss(free: Any, count: Array) -> Array:
      # Made here, from integers: a line search calls this again, by the same random numbers.
      own = jax.random.fold_in(jax.random.fold_in(_key(number), 0), count)
      found = terms(variables, free_form.constrain(_alone(free)), example, own)
      return _total(found)

    def step(carry: tuple[Any, Any], count: Array) -> tuple[tuple[Any, Any], None]:
      free, state = carry
      own = functools.partial(loss, count=count)
      value, gradient = jax.value_and_grad(own)(free)
      updates, state = optimizer.update(
        gradient, state, free, value=value, grad=gradient, value_fn=own
      )
      return (optax.apply_updates(free, updates), state), None

    (free, _), _ = jax.lax.scan(step, (free, optimizer.init(free)), jnp.arange(num_steps))
    return free

  def judge(variables: Any, posteriors: Any, example: Batch, key: Array) -> Terms:
    """Terms [2] of two posteriors of one example, by the same random numbers."""

    def once(count: Array) -> Terms:
      own = jax.random.fold_in(key, count)
      return jax.vmap(lambda one: terms(variables, _alone(one), example, own))(posteriors)

    found = jax.lax.map(once, jnp.arange(num_samples))
    return jax.tree.map(lambda values: jnp.mean(values, axis=0), found)

  def one(variables: Any, before: Any, free: Any, example: Batch, number: Array):
    """Posterior after all steps, and terms [2] before and after, of one example."""
    free = climb(variables, free, example, number)
    after = jax.tree.map(lambda leaf: leaf[0], free_form.constrain(_alone(free)))
    both = jax.tree.map(lambda *pair: jnp.stack(pair), before, after)
    return after, judge(variables, both, example, jax.random.fold_in(_key(number), 1))

  def infer(variables: Any, batch: Batch, numbers: Int[Array, " b"]) -> FreeInference:
    before = begin(variables, batch)
    free = free_form.unconstrain(before)
    each = jax.vmap(one, in_axes=(None, 0, 0, 0, 0))
    after, both = each(variables, before, free, dict(batch), numbers)

    def inferred(posterior: Any, which: int) -> Inferred:
      terms = jax.tree.map(lambda values: values[:, which], both)
      return Inferred(posterior, terms, free_form.probe_features(posterior))

    return FreeInference(inferred(before, 0), inferred(after, 1))

  return jax.jit(infer)


def infer_split(
  infer: Infer, variables: Any, split: Mapping[str, np.ndarray], *, canvas: int, batch_size: int
) -> FreeInference:
  """Free-form inference of every example of a split, in arrays of NumPy.

  A batch size below one, and a bound or probe feature that is not finite raise ValueError.
  """
  count, arrays = len(split["label"]), {name: jnp.asarray(each) for name, each in split.items()}
  place = jax.jit(functools.partial(evaluation_batch, canvas=canvas))

  def infer_rows(rows: np.ndarray) -> FreeInference:
    numbers = jnp.asarray(rows)
    return infer(variables, place(arrays, numbers), numbers)

  whole = in_batches(infer_rows, count, batch_size)
  for when, inferred, remedy in (
    ("before", whole.before, DIVERGED),
    ("after", whole.after, "Lower the learning rate."),
  ):
    # In the order in which they are computed: the first one is the cause.
    terms = [name for name, each in inferred.terms.items() if not np.isfinite(each).all()]
    values = {f"the bound ({', '.join(terms)})": np.stack(list(inferred.terms.values()), axis=1)}
    values |= {
      f"the probe feature '{name}'": np.asarray(x) for name, x in inferred.probe_features.items()
    }
    for name, each in values.items():
      check_finite(f"Free-form inference: {name} {when} the steps", each, remedy)
  return whole


def _total(terms: Terms) -> Array:
  return sum(terms.values(), start=jnp.zeros(()))


def _key(number: Array) -> Array:
  """The key of all random numbers of one example."""
  return jax.random.fold_in(jax.random.key(SEED), number)


def _alone(tree: Any) -> Any:
  """An example as a batch of one."""
  return jax.tree.map(lambda leaf: leaf[None], tree)
