"""The training state."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh

from scae_jax.config import Settings
from scae_jax.models.system import Spec, System
from scae_jax.training.hosts import replicated
from scae_jax.training.optimizer import make_optimizer
from scae_jax.typing import Array


@struct.dataclass
class TrainState:
  """Everything that changes in training; arrays only, no functions or settings.

  With several seeds at once, every array has one more axis in front, over the seeds.
  """

  step: Array  # number of updates so far, int32 []
  params: Any
  opt_state: Any
  rng: Array  # the run's key; it never changes, the keys of a step are folded in by its number


def state_of(params: Any, optimizer: optax.GradientTransformation, rng: Array) -> TrainState:
  """The state before the first step, with these parameters and this key."""
  return TrainState(
    step=jnp.zeros((), jnp.int32), params=params, opt_state=optimizer.init(params), rng=rng
  )


@functools.partial(jax.jit, static_argnums=(0, 1))  # jit, so that a system is traced only once
def init_params(system: System, data: Spec, params_key: Array, noise_key: Array) -> Any:
  """Newly drawn parameters of a system's module."""
  keys = {"params": params_key, "noise": noise_key}
  return system.module.init(keys, data.blank_batch(2), train=True)["params"]


def initial_states(settings: Settings, system: System, data: Spec, start: Any = None) -> TrainState:
  """The state before the first step, for one seed or for several.

  Parameters in `start` replace those drawn; with several seeds it has one more axis in front.
  """
  optimizer, seeds = make_optimizer(settings.optimizer), settings.train.all_seeds

  def make(seed: Array | int, start: Any) -> TrainState:
    run_key, params_key, noise_key = jax.random.split(jax.random.key(seed), 3)
    params = init_params(system, data, params_key, noise_key)
    if start is not None:
      params = unflatten_dict({**flatten_dict(params), **flatten_dict(start)})
    return _at_step(state_of(params, optimizer, run_key), settings.train.start_step)

  if len(seeds) == 1:
    return make(seeds[0], start)
  # Not vmap: on several CPU devices, a batched QR decomposition never ends.
  return jax.lax.map(lambda seed_and_start: make(*seed_and_start), (jnp.array(seeds), start))


def _at_step(state: TrainState, step: int) -> TrainState:
  """The state with another step, also in its learning-rate schedule."""

  def is_schedule(node: Any) -> bool:
    return isinstance(node, optax.ScaleByScheduleState)

  def set_count(node: Any) -> Any:
    return node._replace(count=jnp.full_like(node.count, step)) if is_schedule(node) else node

  opt_state = jax.tree.map(set_count, state.opt_state, is_leaf=is_schedule)
  return dataclasses.replace(state, step=jnp.full_like(state.step, step), opt_state=opt_state)


def make_state(
  settings: Settings, system: System, data: Spec, mesh: Mesh, start: Any = None
) -> TrainState:
  """`initial_states`, computed inside jit; result and `start` have a copy on every device."""
  make = functools.partial(initial_states, settings, system, data)
  # It runs once. On a CPU, optimising the program takes ten seconds more than it saves.
  on_cpu = mesh.devices.flat[0].platform == "cpu"
  options: dict[str, str | bool] = {"xla_backend_optimization_level": "0"} if on_cpu else {}
  return jax.jit(make, out_shardings=replicated(mesh)).lower(start).compile(options)(start)


def abstract_state(settings: Settings, system: System, data: Spec, mesh: Mesh) -> TrainState:
  """Shapes, types and placement of a run's state; computes nothing."""
  return placed(jax.eval_shape(lambda: initial_states(settings, system, data)), mesh)


def state_shapes(
  params: Any, optimizer: optax.GradientTransformation, *, num_seeds: int = 1
) -> TrainState:
  """Shapes and types of a state from those of its parameters."""

  def make(params: Any) -> TrainState:
    return state_of(params, optimizer, jax.random.key(0))

  return jax.eval_shape(make if num_seeds == 1 else jax.vmap(make), params)


def placed(shapes: Any, mesh: Mesh) -> Any:
  """Shapes and types with the placement of a state: a copy on every device of the mesh."""
  sharding = replicated(mesh)
  return jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes
  )


def variables_by_seed(state: TrainState, seeds: Sequence[int]) -> dict[int, dict[str, Any]]:
  """Variables of the module for each seed of a state, on one device of this process."""
  params = jax.tree.map(jnp.asarray, jax.device_get(state.params))
  if len(seeds) == 1:
    return {seeds[0]: {"params": params}}
  return {
    seed: {"params": jax.tree.map(lambda leaf, i=i: leaf[i], params)}
    for i, seed in enumerate(seeds)
  }
