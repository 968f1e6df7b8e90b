"""bfloat16 where the config asks for it, and nowhere else."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scae_jax.models.scae.ocae import ObjectEncoder
from scae_jax.models.scae.pcae import PartEncoder
from tests.references import equations
from tests.tiny import BATCH, MODEL, OBJECTS, PARTS, random_variables, tiny_batch

# Eight bits of mantissa, through some products and layer norms.
PRECISION = 0.03
INPUTS = {
  "part_encoder": (tiny_batch()["image"],),
  "object_encoder": (
    jnp.asarray(np.random.RandomState(0).normal(0, 1, (BATCH, PARTS, 9)), jnp.float32),
    jnp.full((BATCH, PARTS), 0.7),
  ),
}


@functools.cache
def traced(name: str, compute_dtype: str | None, kind: str = "set_transformer"):
  """The program of the gradients and the output of an encoder, and its variables."""
  fields = MODEL[name] | {"compute_dtype": compute_dtype}
  if name == "part_encoder":
    module, options = PartEncoder(num_parts=PARTS, **fields), {"train": False}
  else:
    fields |= {"kind": kind, "num_inducing": 2}
    module, options = ObjectEncoder(num_objects=OBJECTS, **fields), {}
  variables = random_variables(module, *INPUTS[name], **options)

  def total(variables):
    output = module.apply(variables, *INPUTS[name], **options)
    return sum((jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(output)), jnp.zeros(())), output

  return jax.jit(jax.grad(total, has_aux=True)).trace(variables), variables


def encode(name: str, compute_dtype: str | None):
  program, variables = traced(name, compute_dtype)
  return program.lower().compile()(variables)


def equations_of(*encoder):
  return list(equations(traced(*encoder)[0].jaxpr.jaxpr))


def low(equation) -> bool:
  """Whether it reads numbers of bfloat16."""
  return any(getattr(var.aval, "dtype", None) == jnp.bfloat16 for var in equation.invars)


@pytest.mark.parametrize("name", INPUTS)
def test_bfloat16_is_near_float32_and_outputs_are_float32(name):
  grads, output = encode(name, None)
  low_grads, low_output = encode(name, "bfloat16")
  for approximate, exact in zip(
    jax.tree.leaves((low_output, low_grads)), jax.tree.leaves((output, grads)), strict=True
  ):
    assert approximate.dtype == jnp.float32
    scale = np.abs(exact).max()
    assert np.abs(approximate - exact).mean() < PRECISION * scale + 1e-3
  for approximate, exact in zip(jax.tree.leaves(low_output), jax.tree.leaves(output), strict=True):
    assert np.any(approximate != exact)  # it is another computation


@pytest.mark.parametrize("name", INPUTS)
def test_products_are_bfloat16_and_exponentials_float32(name):
  short = {equation.primitive.name for equation in equations_of(name, "bfloat16") if low(equation)}
  assert short & {"dot_general", "conv_general_dilated"}
  assert not short & {"exp", "log", "logistic", "sin", "cos", "tanh", "reduce_max"}
  assert not [equation for equation in equations_of(name, None) if low(equation)]


def test_mlp_encoder_is_always_float32():
  all_equations = equations_of("object_encoder", "bfloat16", "mlp")
  assert all_equations
  assert not [equation for equation in all_equations if low(equation)]
