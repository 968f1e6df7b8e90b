"""All that changes while training runs."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.sharding import Mesh

from scae_jax.models.system import Spec, System
from scae_jax.training.mesh import replicated
from scae_jax.typing import Array


@struct.dataclass
class TrainState:
  """A struct of arrays: nothing in it is a function or a setting.

  Where several seeds train at once, every array has one more axis in front, over the seeds.

  Attributes:
    step: updates done so far, int32 [].
    params: the model's parameters.
    opt_state: of the optimiser.
    rng: the run's key, never changed: what a step draws is a function of it and the step.
  """

  step: Array
  params: Any
  opt_state: Any
  rng: Array


def initial_state(
  system: System, data: Spec, optimizer: optax.GradientTransformation, *, seed: Array | int
) -> TrainState:
  """The state before the first step; a pure function of the seed."""
  run_key, params_key, noise_key = jax.random.split(jax.random.key(seed), 3)
  variables = system.module.init(
    {"params": params_key, "noise": noise_key}, data.blank_batch(2), train=True
  )
  return TrainState(
    step=jnp.zeros((), jnp.int32),
    params=variables["params"],
    opt_state=optimizer.init(variables["params"]),
    rng=run_key,
  )


def initial_states(
  system: System,
  data: Spec,
  optimizer: optax.GradientTransformation,
  *,
  seeds: Sequence[int],
) -> TrainState:
  """`initial_state` of one seed, or of several side by side."""
  if len(seeds) == 1:
    return initial_state(system, data, optimizer, seed=seeds[0])
  return jax.vmap(lambda seed: initial_state(system, data, optimizer, seed=seed))(jnp.array(seeds))


def make_state(
  system: System,
  data: Spec,
  optimizer: optax.GradientTransformation,
  mesh: Mesh,
  *,
  seeds: Sequence[int],
) -> TrainState:
  """`initial_states`, computed inside jit and born on every device of the mesh."""

  def make() -> TrainState:
    return initial_states(system, data, optimizer, seeds=seeds)

  # It runs once, and optimising it takes a CPU ten seconds longer than running it as it is.
  on_cpu = mesh.devices.flat[0].platform == "cpu"
  options: dict[str, str | bool] = {"xla_backend_optimization_level": "0"} if on_cpu else {}
  return jax.jit(make, out_shardings=replicated(mesh)).lower().compile(options)()


def abstract_state(
  system: System,
  data: Spec,
  optimizer: optax.GradientTransformation,
  mesh: Mesh,
  *,
  seeds: Sequence[int],
) -> TrainState:
  """Shapes, types and placement of a state, without computing one."""
  shapes = jax.eval_shape(lambda: initial_states(system, data, optimizer, seeds=seeds))

  def place(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=replicated(mesh))

  return jax.tree.map(place, shapes)


def by_seed(params: Any, seeds: Sequence[int]) -> dict[int, Any]:
  """The parameters of a state, one tree a seed."""
  if len(seeds) == 1:
    return {seeds[0]: params}
  return {seed: jax.tree.map(lambda leaf, i=i: leaf[i], params) for i, seed in enumerate(seeds)}
