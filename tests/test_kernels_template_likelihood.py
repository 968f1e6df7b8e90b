"""The fused image likelihood against the composed one, against differences, and lowered for CUDA.

Kernels run as JAX operations here (`interpret`); what only a GPU can tell is their speed, and that
Triton compiles what they are lowered to.
"""

import dataclasses
import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, use_abstract_mesh

from benchmarks.likelihood import composed, random_inputs
from scae_jax.kernels import template_likelihood
from scae_jax.kernels.template_likelihood import template_log_prob
from scae_jax.kernels.template_pixels import Sizes, by_tile, pixel_grid
from scae_jax.training.config import read_settings
from scae_jax.training.mesh import make_mesh, split_examples
from scae_jax.training.optimizers import make_optimizer
from scae_jax.training.state import TrainState
from scae_jax.training.step import update
from tests.references import product_precisions
from tests.tiny import compiled, tiny_batch, tiny_system
from tests.toy_system import toy_config

SCALE = 0.7
NAMES = ("bank", "poses", "colours", "presence", "background_mean", "background_logit", "image")
DIFFERENTIABLE = len(NAMES) - 1

# Batch, parts, template, canvas, channels; block. No side of a canvas is a multiple of a block's,
# which are 4 x 8 and 8 x 8. A template of 5 is filled up to 16, one of 17 to 32.
CASES = {
  "plain": ((2, 3, 5, (9, 12), 1), 32),
  "colour, one block, large template": ((2, 2, 17, (7, 7), 3), 64),
}
WEIGHTS = jnp.array([0.5, 1.5])


@functools.cache
def both(likelihood):
  """Function of the inputs: log-likelihoods [b], and the gradients of their weighted sum."""

  @compiled
  def run(*inputs):
    values, pullback = jax.vjp(lambda *inputs: likelihood(*inputs, SCALE), *inputs)
    return values, pullback(jnp.resize(WEIGHTS, values.shape).astype(values.dtype))

  return lambda *inputs: jax.device_get(run(*inputs))


@functools.cache
def fused_of(block):
  return both(functools.partial(template_log_prob, block=block, interpret=True))


def assert_agree(actual, expected, of_gradients=1e-5):
  """Values to 1e-6, gradients to 1e-5 of the largest number of each, unless told otherwise."""
  np.testing.assert_allclose(actual[0], expected[0], rtol=1e-6)
  for name, value, wanted in zip(NAMES[:-1], actual[1], expected[1], strict=False):
    tolerance = of_gradients * np.abs(wanted).max()
    np.testing.assert_allclose(value, wanted, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_equal_to_the_composed_likelihood(case):
  sizes, block = CASES[case]
  inputs = random_inputs(*sizes)
  actual, expected = fused_of(block)(*inputs), both(composed)(*inputs)
  assert_agree(actual, expected)
  for name, wanted in zip(NAMES[:-1], expected[1], strict=False):
    assert np.abs(wanted).max() > 0.05, f"{name}: without a gradient this test sees nothing"
  # The image is a constant.
  assert not actual[1][-1].any()
  assert expected[1][-1].any()


def plain_with(**changes):
  """Inputs of the plain case, some of them made by functions of what they were."""
  inputs = dict(zip(NAMES, random_inputs(*CASES["plain"][0]), strict=True))
  return tuple((inputs | {name: change(inputs[name]) for name, change in changes.items()}).values())


def scaled(factor, shift=0.0):
  """Poses with another size, moved to the right."""
  return lambda poses: poses.at[..., :2].multiply(factor).at[..., 0, 2].add(shift)


EDGES = {
  "sure parts": {"presence": lambda presence: jnp.round(presence)},
  "no parts": {"presence": jnp.zeros_like},
  "far outside": {"poses": scaled(1.0, shift=30.0)},
  "partly outside": {"poses": scaled(1.0, shift=0.8)},
  # One part covers less than a pixel: positions are known to 1e-5 of a template's pixel.
  "tiny": {"poses": scaled(0.02)},
  "flat": {"poses": lambda poses: poses.at[:, 0, :, :2].set(0.0)},
  "sure logits": {"bank": lambda bank: bank.at[..., -1].multiply(20.0)},
}


@pytest.mark.parametrize("edge", EDGES)
def test_equal_at_the_edges(edge):
  inputs = plain_with(**EDGES[edge])
  actual, expected = fused_of(CASES["plain"][1])(*inputs), both(composed)(*inputs)
  # Logits that are twenty times as steep magnify what is rounded of a position. Without parts their
  # gradients are of numbers next to nothing.
  assert_agree(actual, expected, {"sure logits": 5e-4, "no parts": 1e-4}.get(edge, 1e-5))
  if edge == "sure parts":
    absent = np.asarray(inputs[3]) == 0
    assert absent.any()
    assert not absent.all()
    assert not actual[1][3][absent].any()


@pytest.mark.parametrize(
  "changes",
  [
    {"poses": lambda poses: 0 * poses},
    {"poses": lambda poses: 1e-20 * poses},
    {"poses": lambda poses: 1e6 * poses},
    {"bank": lambda bank: bank.at[0, ..., -1].set(1e30).at[1, ..., -1].set(-1e30)},
    {"image": lambda image: 1e6 * image},
    {"presence": lambda presence: presence.at[:, 0].set(1e-38)},
  ],
)
def test_extremes_are_finite(changes):
  chex.assert_tree_all_finite(fused_of(CASES["plain"][1])(*plain_with(**changes)))


def test_a_pose_that_is_no_number_is_seen():
  inputs = plain_with(poses=lambda poses: poses.at[0, 1, 0, 0].set(jnp.nan))
  values, _ = fused_of(CASES["plain"][1])(*inputs)
  np.testing.assert_array_equal(np.isnan(values), [True, False])


def test_seeds_at_once_in_a_scan():
  """Two steps up the gradient, as a dispatch makes them; on two devices, an image each."""
  sizes, block = CASES["plain"]
  mesh = make_mesh(jax.devices()[:2])
  rate = 1e-3
  fused = functools.partial(template_log_prob, block=block, interpret=True)

  def step(inputs, _):
    def total(*inputs):
      return jnp.sum(WEIGHTS * fused(*inputs, split_examples(image, mesh), SCALE))

    *inputs, image = inputs
    value, gradients = jax.value_and_grad(total, argnums=tuple(range(DIFFERENTIABLE)))(*inputs)
    moved = [x + rate * g for x, g in zip(inputs, gradients, strict=False)]
    return (*moved, image), value

  seeds = [random_inputs(*sizes, seed) for seed in (0, 1)]
  inputs = tuple(jnp.stack(arrays) for arrays in zip(*seeds, strict=True))
  moved, values = compiled(jax.vmap(lambda *x: jax.lax.scan(step, x, length=2)))(*inputs)
  for seed, inputs in enumerate(seeds):
    for number in range(2):
      wanted, gradients = both(composed)(*inputs)
      np.testing.assert_allclose(values[seed, number], np.sum(WEIGHTS * wanted), rtol=1e-6)
      inputs = (*(x + rate * g for x, g in zip(inputs[:-1], gradients, strict=False)), inputs[-1])
    for name, actual, wanted in zip(NAMES, moved, inputs, strict=True):
      np.testing.assert_allclose(actual[seed], wanted, rtol=1e-5, atol=1e-5, err_msg=name)
  assert np.abs(values[:, 1] - values[:, 0]).min() > 1e-2
  assert np.abs(values[0] - values[1]).min() > 1e-2


def test_devices_of_a_training_step_see_their_own_examples():
  """Inside a `shard_map` a gradient is of a device's own image; their sum is that of both."""
  sizes, block = CASES["plain"]
  mesh, each, split = make_mesh(jax.devices()[:2]), jax.P(), jax.P("data")
  specs = (each, split, split, split, each, each, split)

  def total(*inputs):
    return jnp.sum(template_log_prob(*inputs, SCALE, block=block, interpret=True))

  def summed(*inputs):
    return jax.lax.psum(gradient(*inputs), "data")

  gradient = jax.value_and_grad(total, argnums=(0, 4, 5))  # by what all examples share
  shared = jax.shard_map(summed, mesh=mesh, in_specs=specs, out_specs=each, check_vma=False)
  found, wanted = (compiled(run)(*random_inputs(*sizes)) for run in (shared, gradient))
  chex.assert_trees_all_close(found, wanted, rtol=1e-5, atol=1e-5)


def lowered(function, *arrays, num_devices=1):
  """The program for CUDA, as text, of what has shapes and types; no GPU is needed to write it."""
  fields = {"device_kind": "NVIDIA H100 80GB HBM3", "num_cores": None, "platform": "gpu"}
  known = {field.name for field in dataclasses.fields(AbstractDevice)}
  device = AbstractDevice(**{name: fields[name] for name in fields if name in known})
  mesh = AbstractMesh(
    (num_devices,), ("data",), axis_types=(AxisType.Auto,), abstract_device=device
  )
  with use_abstract_mesh(mesh):
    fresh = jax.jit(lambda *inputs: function(*inputs))  # JAX remembers no trace of it
    return fresh.trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()


def lowered_gradient(batch, parts, template, canvas, channels, **options):
  """Of the sum of likelihoods, by all but the image."""
  inputs = random_inputs(batch, parts, template, canvas, channels)

  def total(*inputs):
    return jnp.sum(template_log_prob(*inputs, SCALE))

  return lowered(jax.grad(total, argnums=tuple(range(DIFFERENTIABLE))), *inputs, **options)


def examples_of_kernels(program, seeds=1):
  """How many examples each kernel is given, by the shape of its first result."""
  seeds = f"{seeds}x" if seeds > 1 else ""
  return [int(n) for n in re.findall(rf"xla.gpu.triton.* -> \(tensor<{seeds}(\d+)x", program)]


def test_lowers_for_cuda_and_keeps_no_image_of_a_part():
  """One kernel forward, one backward."""
  b, m, side = 128, 40, 40
  program = lowered_gradient(b, m, 11, (side, side), 3)
  assert examples_of_kernels(program) == [b] * 2
  sides = re.findall(r"tensor<([0-9x]*f32)>", program)
  sizes = [np.prod([int(side) for side in one.split("x")[:-1]], dtype=int) for one in sides]
  assert b * m * 6 <= max(sizes) < b * m * side**2


def test_what_does_not_divide_by_the_devices_is_computed_whole_on_each():
  program = lowered_gradient(6, *CASES["plain"][0][1:], num_devices=4)
  assert examples_of_kernels(program) == [6] * 2


def test_a_step_of_training_lowers_for_cuda(monkeypatch, caplog):
  """The update of the tiny SCAE with the kernel, five seeds at once on four devices."""
  system = tiny_system()
  batch = {**tiny_batch(batch=8), "key": jax.random.key(0)}
  optimizer = make_optimizer(read_settings(toy_config()).optimizer)

  def init(key):
    params = system.module.init({"params": key, "noise": key}, batch, train=True)["params"]
    return TrainState(step=jnp.int32(0), params=params, opt_state=optimizer.init(params), rng=key)

  def step(state, batch):
    batch = dict(batch)
    return update(system, optimizer, state, batch, batch.pop("key"))

  init, step = jax.vmap(init), jax.vmap(step, in_axes=(0, None))
  state = jax.eval_shape(init, jax.random.split(jax.random.key(0), 5))
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  lower = functools.partial(lowered, step, state, jax.eval_shape(lambda: batch), num_devices=4)
  # A backend that does not take the kernels goes without, with a warning.
  template_likelihood.compiles.cache_clear()
  assert not examples_of_kernels(lower(), seeds=5)
  assert "fails here: Only interpret mode is supported on CPU" in caplog.text
  assert not template_likelihood.compiles(2, 65, 80, 80, 1)  # not tried
  assert [record.args for record in caplog.records][1:] == [(65,)]
  monkeypatch.setattr(template_likelihood, "compiles", lambda *sizes: True)
  assert examples_of_kernels(lower(), seeds=5) == [8 // 4] * 2


def test_a_kernel_is_tried_outside_of_the_trace_around_it(monkeypatch):
  """Inside a `shard_map` it would fail."""
  anywhere = functools.partial(template_log_prob, interpret=True)
  monkeypatch.setattr(template_likelihood, "template_log_prob", anywhere)
  options = {"mesh": make_mesh(jax.devices()[:2]), "in_specs": jax.P(), "out_specs": jax.P()}
  tried = jax.shard_map(lambda x: x * template_likelihood.compiles(2, 5, 9, 12, 1), **options)
  assert jax.jit(tried)(jnp.float32(1)) == 1


def test_blocks_are_squares_of_pixels():
  sizes = Sizes(6, 5, 1, 5, SCALE, 16, interpret=True)
  image = np.arange(30.0).reshape(6, 5)
  blocks = np.asarray(by_tile(sizes, jnp.asarray(image), mode="constant")).reshape(4, 4, 4)
  np.testing.assert_array_equal(blocks[0], image[:4, :4])
  np.testing.assert_array_equal(blocks[3], np.pad(image[4:, 4:], ((0, 2), (0, 3))))
  x, y, inside = np.asarray(pixel_grid(sizes, jnp.float32)).reshape(3, 4, 4, 4)
  assert (x[3] == 1).all()
  np.testing.assert_allclose(y[3, :, 0], [0.6, 1, 1, 1], rtol=1e-6)
  np.testing.assert_array_equal(inside[2], np.array([[1.0], [1], [0], [0]]) * np.ones((1, 4)))


def test_products_are_in_float32():
  """On a GPU a shorter float would blur the templates' gradient."""

  def total(*inputs):
    return jnp.sum(template_log_prob(*inputs, SCALE, block=CASES["plain"][1], interpret=True))

  program = jax.make_jaxpr(jax.grad(total))(*plain_with())
  found = set(product_precisions(program.jaxpr))
  assert found == {(jax.lax.Precision.HIGHEST,) * 2}
