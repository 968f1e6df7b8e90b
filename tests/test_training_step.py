"""The step, the dispatch of many steps, the held-out loss, and the mesh."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scae_jax.config import read_settings
from scae_jax.data.batches import evaluation_batch, example_order, training_batch
from scae_jax.errors import RunError
from scae_jax.training.hosts import check_batch_size, make_mesh, replicated
from scae_jax.training.optimizer import make_optimizer
from scae_jax.training.state import make_state
from scae_jax.training.step import ORDER_STREAM, STEP_STREAM, Program, losses, update
from tests.runs import run_steps
from tests.toy_data import dataset_of, random_images
from tests.toy_system import TERMS, data_options, feed_of, make_system, toy_config, toy_data

NUM_TRAIN, NUM_TEST = 50, 22
IMAGES = random_images(NUM_TRAIN + NUM_TEST, 6, 6, 1)
DATASET = dataset_of(
  IMAGES[:NUM_TRAIN],
  IMAGES[NUM_TRAIN:],
  labels=np.random.RandomState(0).permutation(NUM_TRAIN) % 10,
)


@functools.cache
def compiled_program():
  """Compiled once for all tests; the state is on the host, because running donates it."""
  changes = {"data__canvas": 8, "train__batch_size": 8, "train__num_steps": 420}
  changes |= {"train__log_every": 420, "train__eval_every": 0, "train__checkpoint_every": 0}
  changes |= {"model__num_features": 5}  # another number than that of a batch
  settings = read_settings(toy_config(train__steps_per_dispatch=7, **changes))
  data = toy_data(side=8)
  system = make_system(settings.model, settings.loss, data)
  mesh = make_mesh(jax.devices()[:4])
  state = make_state(settings, system, data, mesh)
  program = Program(settings, system, feed_of(DATASET, 8, max_shift=1), mesh)
  program.compile(state)
  key_data = jax.device_get(jax.random.key_data(state.rng))
  return settings, system, mesh, program, jax.device_get(dataclasses.replace(state, rng=key_data))


def make_program():
  """Settings, system, the program on four devices, in dispatches of seven steps, and its state."""
  settings, system, mesh, program, host = compiled_program()
  state = dataclasses.replace(host, rng=jax.random.wrap_key_data(host.rng))
  return settings, system, program, jax.device_put(state, replicated(mesh))


def numbers(state):
  return jax.device_get((state.step, state.params, state.opt_state))


def by_hand(settings, system, state, num_steps: int):
  """Steps one at a time, each batch and key from the step's number alone."""
  optimizer = make_optimizer(settings.optimizer)
  split = {"image": jnp.asarray(DATASET.splits["train"].images)}
  split["label"] = jnp.asarray(DATASET.splits["train"].labels)
  state = jax.tree.map(lambda leaf: jax.device_put(leaf, jax.devices()[0]), state)
  order_key = jax.random.fold_in(state.rng, ORDER_STREAM)

  @jax.jit
  def step_of(state, indices):
    step_key = jax.random.fold_in(jax.random.fold_in(state.rng, STEP_STREAM), state.step)
    shift_key, noise_key = jax.random.split(step_key)
    batch = training_batch(shift_key, split, indices, data_options(8, max_shift=1))
    return update(system, optimizer, state, batch, noise_key)

  totals, seen = [], []
  for step in range(num_steps):
    epoch, offset = divmod(8 * step, NUM_TRAIN)
    indices = example_order(
      order_key, epoch, offset, num_steps=1, batch_size=8, num_examples=NUM_TRAIN
    )[0]
    seen.append(np.asarray(indices))
    state, metrics = step_of(state, indices)
    totals.append(float(metrics["total"]))
  return state, np.array(totals), np.concatenate(seen)


def test_update_is_one_step_of_the_rule_down_the_weighted_total():
  settings, system, _, state = make_program()
  toy_terms = system.loss_terms

  def loss_terms(output, batch, step):
    """The toy's fragile term shows the step, which a growing margin would need."""
    return toy_terms(output, batch, step) | {"fragile": jnp.float32(-1.0 if step is None else step)}

  # Half way between the points, so that the weight of 0.5 is doubled.
  schedule = {"between": ((0, 1.0), (8, 3.0))}
  system = dataclasses.replace(system, loss_terms=loss_terms, loss_schedule=schedule)
  state = jax.device_get(dataclasses.replace(state, rng=jnp.zeros(2), step=jnp.int32(4)))
  key = jax.random.key(3)
  images = jax.random.uniform(jax.random.key(4), (8, 8, 8, 1))
  batch = {"image": images, "label": jnp.arange(8, dtype=jnp.int32)}

  def total(params):
    noise = {"noise": jax.random.clone(key)}
    output = system.module.apply({"params": params}, batch, train=True, rngs=noise)
    terms = system.loss_terms(output, batch, None)
    return terms["image"] + terms["between"] + terms["code_probe"]

  value, grads = jax.jit(jax.value_and_grad(total))(state.params)
  step = functools.partial(update, system, make_optimizer(settings.optimizer))
  new, metrics = jax.jit(step)(state, batch, key)
  # First step of rmsprop from a mean square of one, at half the rate for the warm-up over 2 steps.
  expected = jax.tree.map(
    lambda w, g: w - 0.5e-3 * g / np.sqrt(0.9 + 0.1 * g**2 + 1e-4), state.params, grads
  )
  chex.assert_trees_all_close(new.params, expected, rtol=1e-5, atol=1e-7)
  norm = np.sqrt(sum(float(np.sum(np.square(grad))) for grad in jax.tree.leaves(grads)))
  assert float(metrics["grad_norm"]) == pytest.approx(norm, rel=1e-5)
  assert float(metrics["terms"]["fragile"]) == 4.0
  assert float(metrics["total"]) == pytest.approx(float(value) + 4.0, rel=1e-6)
  assert set(metrics["terms"]) == {"image", "between", "fragile", "code_probe"}
  assert int(new.step) == 5
  # Held-out examples have no step.
  _, (terms, _) = losses(system, state.params, batch, step=None, noise_key=None)
  assert float(terms["fragile"]) == -1.0


def test_dispatches_on_four_devices_are_steps_one_after_the_other_on_one():
  settings, system, program, state = make_program()
  expected, totals, seen = by_hand(settings, system, state, 14)
  state, rows = run_steps(program, state, 14)
  # In the order of the system, in which what is not finite is named; not of the alphabet.
  assert [name for name in rows if "/" in name] == [f"terms/{name}" for name in TERMS]
  np.testing.assert_allclose(rows["total"], totals, rtol=1e-5)  # four devices sum in another order
  chex.assert_trees_all_close(numbers(state), numbers(expected), rtol=1e-4, atol=1e-6)
  assert sorted(seen[:NUM_TRAIN]) == list(range(NUM_TRAIN))  # an epoch sees each example once
  assert len(np.unique(rows["total"])) == 14


def test_padding_steps_leave_the_state():
  _, _, program, state = make_program()
  before = numbers(state)
  state, _ = program._compiled(state, *program._inputs(0, 0))
  chex.assert_trees_all_equal(numbers(state), before)  # chosen as they are
  # 2 steps, then 5 more to the next multiple of 7: the same as 7 at once, to the bit, because one
  # compiled program runs all of them, and each step is one round of its loop.
  state, first = program._compiled(state, *program._inputs(0, 2))
  state, second = program.run(state, 2)
  _, _, other_program, other = make_program()
  donated = other
  other, rows = run_steps(other_program, donated, 7)
  # The state is donated; the data set, which was read before, is not.
  assert all(leaf.is_deleted() for leaf in jax.tree.leaves((donated.params, donated.opt_state)))
  assert int(state.step) == 7
  chex.assert_trees_all_equal(numbers(state), numbers(other))
  assert len(second["total"]) == 5
  joined = np.concatenate([np.asarray(first["total"])[:2], second["total"]])
  np.testing.assert_array_equal(joined, rows["total"])


def test_position_in_the_order_of_a_long_run_survives_int32():
  _, _, program, _ = make_program()
  _, epoch, offset, _ = program._inputs(10**9, 7)
  assert int(epoch) * NUM_TRAIN + int(offset) == 8 * 10**9


def test_batch_is_shared_out_among_the_devices():
  _, _, program, state = make_program()
  assert len(state.params["encoder"]["kernel"].sharding.device_set) == 4
  compiled = program._compiled.as_text()
  assert "all-reduce" in compiled
  # The code of 8 examples has 5 numbers each: of 2 examples on each device.
  assert "f32[2,5]" in compiled
  assert "f32[8,5]" not in compiled
  check_batch_size(8, make_mesh())
  with pytest.raises(RunError, match=r"train\.batch_size.* 4\b.* 10\b"):
    check_batch_size(10, make_mesh())
  check_batch_size(8, make_mesh(), views=2)
  with pytest.raises(RunError, match=r"train\.batch_size.* 4\b.*data\.two_views.* 12\b"):
    check_batch_size(12, make_mesh(), views=2)


def test_heldout_terms_are_over_full_batches_and_metrics_over_all_examples():
  _, system, program, state = make_program()
  results = program.evaluate(state.params)
  params = jax.tree.map(np.asarray, state.params)
  split = {"image": jnp.asarray(DATASET.splits["test"].images)}
  split["label"] = jnp.asarray(DATASET.splits["test"].labels)

  def forward(indices):
    batch = evaluation_batch(split, jnp.asarray(indices), canvas=8)
    _, (terms, output) = losses(system, params, batch, step=None, noise_key=None)
    return terms, system.metrics(output, batch)

  first, second = forward(np.arange(8))[0], forward(np.arange(8, 16))[0]  # 16 to 21: no full batch
  for name, value in results["terms"].items():
    assert value == pytest.approx(float(first[name] + second[name]) / 2, rel=1e-5), name
  metrics = forward(np.arange(NUM_TEST))[1]
  for name, value in results["metrics"].items():
    assert value == pytest.approx(float(jnp.mean(metrics[name])), rel=1e-5), name
  terms = results["terms"]
  total = terms["image"] + 0.5 * terms["between"] + terms["fragile"] + terms["code_probe"]
  assert results["total"] == pytest.approx(total, rel=1e-5)
  assert results["selection_loss"] == pytest.approx(total - terms["code_probe"], rel=1e-5)
