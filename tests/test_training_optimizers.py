"""Update rules against NumPy transcriptions, schedules against their equations."""

import dataclasses
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from scae_jax.config import read_settings
from scae_jax.errors import RunError
from scae_jax.sections import resolve
from scae_jax.training.optimizer import learning_rate_schedule, make_optimizer
from tests.toy_system import toy_config

TOY = read_settings(toy_config())
RATE = {"learning_rate": 0.01, "schedule": "constant", "warmup_steps": 0, "decay_steps": 10}
OPTIONS = dataclasses.replace(TOY.optimizer, **RATE, end_factor=0.0, b1=0.8, b2=0.95, epsilon=1e-3)


def gradients(num_steps: int) -> list[dict[str, np.ndarray]]:
  rng = np.random.RandomState(0)
  scale = {"a": 1.0, "b": 1e-3}  # the second is of the order of sqrt(epsilon) and below
  return [{name: scale[name] * rng.randn(3, 2) for name in scale} for _ in range(num_steps)]


PARAMS = {"a": jnp.ones((3, 2)), "b": jnp.zeros((3, 2))}


def apply_optimizer(optimizer, grads: list, params=PARAMS, of_kernel=0.0) -> list:
  """Parameters after each step; a multiple of the kernel is added to its gradients."""
  state, history = optimizer.init(params), []
  for grad in grads:
    grad = jax.tree.map(jnp.float32, grad)
    if of_kernel:
      grad["kernel"] += of_kernel * params["kernel"]
    updates, state = optimizer.update(grad, state, params)
    params = jax.tree.map(jnp.add, params, updates)
    history.append(jax.tree.map(np.asarray, params))
  return history


def tensorflow_rmsprop(grads: list, learning_rates: list[float], options) -> list:
  """tensorflow/core/kernels/training_ops.cc, ApplyRMSProp, line by line, in float64.

  ms += (1 - rho) * (grad^2 - ms); mom = mom * momentum + lr * grad / sqrt(ms + epsilon);
  var -= mom. The slots start as ones (rms) and zeros (momentum).
  """
  var = {"a": np.ones((3, 2)), "b": np.zeros((3, 2))}
  ms = {name: np.ones((3, 2)) for name in var}
  mom = {name: np.zeros((3, 2)) for name in var}
  history = []
  for grad, learning_rate in zip(grads, learning_rates, strict=True):
    for name in var:
      ms[name] += (1 - options.decay) * (grad[name] ** 2 - ms[name])
      step = learning_rate * grad[name] / np.sqrt(ms[name] + options.epsilon)
      mom[name] = mom[name] * options.momentum + step
      var[name] = var[name] - mom[name]
    history.append({name: value.copy() for name, value in var.items()})
  return history


def assert_same_history(actual: list, expected: list) -> None:
  for step, (values, reference) in enumerate(zip(actual, expected, strict=True)):
    for name in reference:
      # float32 against float64 over 30 steps.
      np.testing.assert_allclose(
        values[name], reference[name], rtol=2e-5, atol=1e-6, err_msg=f"step {step}, {name}"
      )


@pytest.mark.parametrize("clip_norm", [0.0, 2.5])
def test_rmsprop_is_tensorflows_rule(clip_norm):
  """Momentum keeps old learning rates. Gradients are clipped by their global norm."""
  changes = {"schedule": "exponential", "decay_steps": 3, "decay_rate": 0.2}
  options = dataclasses.replace(OPTIONS, **changes, clip_norm=clip_norm)
  learning_rates = [0.01 * 0.2 ** (step / 3) for step in range(30)]
  grads, clipped = gradients(30), []
  for grad in grads:
    norm = math.sqrt(sum(float(np.sum(value**2)) for value in grad.values()))  # of some 1 to 4
    share = min(1.0, (clip_norm or math.inf) / norm)
    clipped.append({name: value * share for name, value in grad.items()})
  expected = tensorflow_rmsprop(clipped, learning_rates, options)
  assert_same_history(apply_optimizer(make_optimizer(options), grads), expected)


def test_rmsprop_without_epsilon_has_that_of_its_batch_size():
  """As in the release of Kosiorek et al. 2019: (10 batch_size)^-2."""
  settings = read_settings(toy_config(train__batch_size=16, optimizer__epsilon=0.0))
  assert settings.optimizer.epsilon == 160**-2.0


def test_adam_has_the_numbers_of_the_options():
  optimizer = make_optimizer(dataclasses.replace(OPTIONS, name="adam"))
  expected = optax.adam(0.01, b1=0.8, b2=0.95, eps=1e-3)
  grads = gradients(20)
  assert_same_history(apply_optimizer(optimizer, grads), apply_optimizer(expected, grads))


@pytest.mark.parametrize(("name", "clip_norm"), [("adam", 0.0), ("rmsprop", 0.5)])
def test_weight_decay_is_a_term_of_the_loss(name, clip_norm):
  """The gradients of kernels, and of nothing else, have the decay added to them."""
  options = dataclasses.replace(OPTIONS, name=name, clip_norm=clip_norm)
  rule = make_optimizer(options)
  params = {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2), "cost": jnp.ones(())}
  rng = np.random.RandomState(0)
  grads = [jax.tree.map(lambda leaf: rng.randn(*leaf.shape), params) for _ in range(5)]
  decaying = make_optimizer(dataclasses.replace(options, weight_decay=0.3))
  decayed, expected, plain = (
    apply_optimizer(optimizer, grads, params, of_kernel)[-1]
    for optimizer, of_kernel in ((decaying, 0.0), (rule, 0.3), (rule, 0.0))
  )
  chex.assert_trees_all_close(decayed, expected, rtol=1e-5, atol=1e-6)
  assert np.abs(decayed["kernel"] - plain["kernel"]).max() > 1e-3


def test_a_run_without_weight_decay_has_the_state_that_it_had_before_there_was_any():
  params = {"kernel": jnp.ones((3, 2))}
  rule = optax.adam(optax.constant_schedule(0.01))
  for clip_norm, expected in ((0.0, rule), (1.0, optax.chain(optax.identity(), rule))):
    options = dataclasses.replace(OPTIONS, name="adam", clip_norm=clip_norm)
    state = make_optimizer(options).init(params)
    assert jax.tree.structure(state) == jax.tree.structure(expected.init(params))


@pytest.mark.parametrize(
  ("changes", "expected"),
  [
    ({"schedule": "constant"}, {0: 1.0, 1000: 1.0}),
    ({"schedule": "exponential"}, {0: 1.0, 5: 0.5**0.5, 30: 0.125}),
    ({"schedule": "exponential", "end_factor": 0.2}, {10: 0.5, 30: 0.2}),
    ({"schedule": "exponential", "decay_rate": 1.0, "end_factor": 0.2}, {0: 1.0, 30: 1.0}),
    ({"schedule": "cosine"}, {0: 1.0, 5: 0.5, 10: 0.0, 11: 0.0}),
    ({"schedule": "cosine", "end_factor": 0.2}, {0: 1.0, 5: 0.6, 10: 0.2, 50: 0.2}),
    # Warm-up is linear and reaches the whole rate at its last step; decay counts from its end.
    ({"schedule": "constant", "warmup_steps": 4}, {0: 0.25, 1: 0.5, 3: 1.0, 4: 1.0}),
    ({"schedule": "cosine", "warmup_steps": 4}, {0: 0.25, 4: 1.0, 9: 0.5, 14: 0.0}),
  ],
)
def test_schedule_takes_the_values_of_its_equation(changes, expected):
  schedule = learning_rate_schedule(dataclasses.replace(OPTIONS, **changes))
  for step, factor in expected.items():
    assert float(schedule(step)) == pytest.approx(0.01 * factor, rel=1e-5, abs=1e-9), step
    inside = float(jax.jit(schedule)(jnp.int32(step)))
    assert inside == pytest.approx(0.01 * factor, rel=1e-5, abs=1e-8)


def test_a_cosine_must_last_as_long_as_the_run():
  options = dataclasses.replace(OPTIONS, schedule="cosine", decay_steps=0, warmup_steps=24)
  with pytest.raises(RunError, match=r"optimizer\.warmup_steps.* 24\b"):
    resolve(options, TOY.train)
  options = dataclasses.replace(options, warmup_steps=4)
  assert resolve(options, TOY.train).decay_steps == 20
  train = dataclasses.replace(TOY.train, num_steps=15)
  options = dataclasses.replace(OPTIONS, schedule="cosine", warmup_steps=4, decay_steps=10)
  with pytest.raises(RunError, match=r" 14\b.*optimizer\.decay_steps.* 15\b"):
    resolve(options, train)
  assert resolve(options, dataclasses.replace(train, num_steps=14)) == options
  resolve(dataclasses.replace(options, end_factor=0.1), train)
  resolve(dataclasses.replace(options, schedule="exponential"), train)
  train = dataclasses.replace(TOY.train, num_steps=10)
  for changes in ({"schedule": "cosine"}, {"schedule": "exponential"}, {"name": "adam"}):
    options = dataclasses.replace(OPTIONS, **changes)
    assert resolve(options, train) == options
  constant = dataclasses.replace(OPTIONS, decay_steps=0)
  assert resolve(constant, TOY.train) == constant
