"""Products that place templates ask for full precision: the tests run where it costs nothing."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.lax import Precision

from scae_jax import geometry, warping
from tests.references import product_precisions

POSE = jnp.eye(2, 3)


@pytest.mark.parametrize(
  ("function", "inputs"),
  [
    (geometry.compose, (POSE, POSE)),
    (geometry.invert, (POSE,)),
    (functools.partial(warping.template_position, side=5, height=4, width=4), (POSE,)),
  ],
  ids=["compose", "invert", "template_position"],
)
@pytest.mark.parametrize("differentiated", [False, True])
def test_geometry_is_as_precise_on_every_device(function, inputs, differentiated):
  """By default a TPU multiplies in bfloat16 and a GPU in TensorFloat-32: 8 and 10 bits."""

  def run(*inputs):
    return sum(jnp.sum(jnp.square(array)) for array in jax.tree.leaves(function(*inputs)))

  program = jax.grad(run, argnums=tuple(range(len(inputs)))) if differentiated else function
  precisions = product_precisions(jax.make_jaxpr(program)(*inputs).jaxpr)
  assert precisions, "without a product this test sees nothing"
  assert set(precisions) == {(Precision.HIGHEST, Precision.HIGHEST)}
