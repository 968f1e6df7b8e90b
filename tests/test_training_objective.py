"""The weighted total, the order of evaluation, the check for finite numbers, dispatch lengths."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scae_jax.models.system import ImageSpec
from scae_jax.training.config import read_settings
from scae_jax.training.errors import NonFiniteError
from scae_jax.training.objective import scheduled_weights, selection_loss, weighted_total
from scae_jax.training.program import check_finite, evaluation_order
from scae_jax.training.systems import check_system, make_system
from tests.toy_system import toy_config, toy_data


def test_evaluation_order_has_every_example_and_fills_up_with_the_last():
  np.testing.assert_array_equal(evaluation_order(7, 3), [[0, 1, 2], [3, 4, 5], [6, 6, 6]])


def test_total_is_the_weighted_sum_and_needs_the_same_names():
  terms = {"a": jnp.float32(2.0), "b_probe": jnp.float32(3.0)}
  assert float(weighted_total(terms, {"a": 10.0, "b_probe": 0.5})) == 21.5
  assert float(selection_loss(terms, {"a": 10.0, "b_probe": 0.5})) == 20.0
  with pytest.raises(ValueError, match=r"without a weight \['b_probe'\].*without a term \[\]"):
    weighted_total(terms, {"a": 1.0})
  with pytest.raises(ValueError, match=r"without a weight \[\].*without a term \['c'\]"):
    weighted_total(terms, {"a": 1.0, "b_probe": 1.0, "c": 1.0})


def toy_system(**schedule):
  settings = read_settings(toy_config())
  system = make_system(settings, ImageSpec(canvas=4, channels=1, num_classes=2))
  return dataclasses.replace(system, loss_schedule=schedule)


@pytest.mark.parametrize(
  ("step", "factor"), [(0, 0.5), (10, 0.5), (15, 1.25), (20, 2.0), (30, 1.0), (99, 0.0)]
)
def test_scheduled_weight_is_a_line_between_points(step, factor):
  system = toy_system(image=((10, 0.5), (20, 2.0), (40, 0.0)), between=())
  weights = jax.jit(functools.partial(scheduled_weights, system))(jnp.int32(step))
  assert float(weights["image"]) == pytest.approx(factor)
  assert float(weights["between"]) == 0.5


@pytest.mark.parametrize(
  ("schedule", "message"),
  [
    ({"images": ((0, 1.0),)}, r"has \['images'\], which are no loss terms; the terms are \['betw"),
    ({"image": (0, 1.0)}, r"config.loss.schedule.image must be points .*it is \(0, 1.0\)"),
    ({"image": ((0, -1.0),)}, r"schedule.image must be .* from 0 to .*; it is \(\(0.0, -1.0\),\)"),
    ({"image": ((5, 1.0), (5, 2.0))}, r"schedule.image must be points .* with rising steps"),
  ],
)
def test_schedule_that_is_none_is_refused(schedule, message):
  with pytest.raises(ValueError, match=message):
    check_system(toy_system(**schedule), toy_data(side=4), 2)


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf, (1.0, 2.0), "1"])
def test_weight_that_is_none_is_refused(weight):
  """Also of systems that do not check their own: a negative one would be maximised."""
  system = dataclasses.replace(toy_system(), loss_weights={"image": weight})
  with pytest.raises(ValueError, match=r"config.loss.weights.image must be"):
    check_system(system, toy_data(side=4), 2)


def test_first_step_that_is_not_finite_is_named():
  rows = {"terms/image": np.ones(4), "terms/code": np.ones(4), "grad_norm": np.ones(4)}
  check_finite(rows, 100, [0], saved=96)
  rows["grad_norm"] = np.array([1.0, 1.0, np.inf, np.nan])
  rows["terms/code"] = np.array([1.0, 1.0, 1.0, np.nan])
  message = r"step 103: grad_norm = inf\. The checkpoint of step 96 stands\. "
  with pytest.raises(NonFiniteError, match=message) as info:
    check_finite(rows, 100, [0], saved=96)
  assert info.value.exit_code == 1
  rows["terms/code"][1] = np.nan
  with pytest.raises(NonFiniteError, match=r"step 102: code = nan\. "):
    check_finite(rows, 100, [0], saved=96)


@pytest.mark.parametrize(
  ("changes", "length"),
  [
    ({}, 100),
    ({"log_every": 30}, 10),
    ({"num_steps": 20}, 20),
    ({"num_steps": 30}, 25),
    ({"eval_every": 7}, 1),
    ({"eval_every": 0, "checkpoint_every": 0}, 100),
    ({"steps_per_dispatch": 1000}, 100),
  ],
)
def test_dispatch_length_divides_every_cadence(changes, length):
  options = {"num_steps": 5000, "steps_per_dispatch": 100, "log_every": 100, "eval_every": 500}
  options |= {"checkpoint_every": 1000, **changes}
  train = toy_config().train.to_dict() | options
  settings = read_settings(toy_config(**{f"train__{key}": train[key] for key in train}))
  assert settings.train.dispatch_length == length
  assert dataclasses.replace(settings.train, log_every=length).dispatch_length == length
