"""Set transformer against NumPy, permutations, and parts that are not there."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

from scae_jax.layers.set_transformer import MASKS, SetTransformer
from tests.tiny import compiled

ELEMENTS, WIDTH, OUTPUTS = 5, 4, 3
# The mask is made once, and inducing points do not ask which it is.
SETTINGS = [("log_presence", 0), ("hard", 2), ("none", 0)]
EPSILONS = {"log_presence": 1e-6, "hard": 1e-5, "none": 1e-6}  # the release's with its mask
over_settings = pytest.mark.parametrize(("mask", "num_inducing"), SETTINGS)


@functools.cache
def transformer(mask, num_inducing):
  """Parameters with normal values, and the function of elements and presences."""
  sizes = {"num_layers": 2, "num_heads": 2, "features": 8, "num_inducing": num_inducing}
  sizes |= {"mask": mask, "norm_epsilon": EPSILONS[mask]}
  net = SetTransformer(num_outputs=OUTPUTS, output_features=6, **sizes)
  inputs = jnp.zeros((1, ELEMENTS, WIDTH)), jnp.zeros((1, ELEMENTS))
  shapes, rng = jax.eval_shape(net.init, jax.random.key(0), *inputs), np.random.RandomState(0)
  params = jax.tree.map(lambda s: rng.normal(0, 0.5, s.shape).astype(np.float32), shapes)
  apply = compiled(net.apply)
  return params["params"], lambda *inputs: np.asarray(apply(params, *inputs))


@pytest.fixture(scope="module")
def elements():
  return np.random.RandomState(1).normal(0, 1, (3, ELEMENTS, WIDTH)).astype(np.float32)


@pytest.fixture(scope="module")
def presence():
  """Soft in the first example; ones and a zero; so small that a layer norm's epsilon shows."""
  soft, small = [0.9, 0.2, 0.6, 0.5, 0.7], [0.001, 0.002, 0.0005, 0.0015, 0.001]
  return np.array([soft, [1, 1, 0, 1, 1], small], np.float32)


def reference(params, elements, presence, mask, num_inducing):
  """The set transformer of Lee et al. 2019, one example in float64; the module's `params`."""

  def dense(p, x):
    kernel = np.asarray(p["kernel"], np.float64)
    return x @ kernel.reshape(x.shape[-1], -1) + p["bias"].reshape(-1)

  def norm(p, x):
    x = x - x.mean(axis=-1, keepdims=True)
    variance = np.square(x).mean(axis=-1, keepdims=True)
    return x / np.sqrt(variance + EPSILONS[mask]) * p["scale"] + p["bias"]

  def attend(p, queries, values, logits):
    q, k, v = dense(p["query"], queries), dense(p["key"], values), dense(p["value"], values)
    heads = np.split(np.arange(q.shape[-1]), 2)
    seen = [
      softmax(q[:, h] @ k[:, h].T / np.sqrt(len(h)) + logits, axis=-1) @ v[:, h] for h in heads
    ]
    kernel = np.asarray(p["output"]["kernel"]).reshape(q.shape[-1], -1)
    return np.concatenate(seen, axis=-1) @ kernel + p["output"]["bias"]

  def block(p, queries, values, logits, there):
    x = (queries + attend(p["attention"], queries, values, logits)) * there[:, None]
    x = norm(p["norm_attention"], x)
    hidden = np.maximum(dense(p["mlp_hidden"], x), 0)
    return norm(p["norm_mlp"], x + dense(p["mlp_output"], hidden))

  logits = {
    "log_presence": np.log(np.maximum(presence, 1e-16)),
    "hard": -1e32 * (1 - presence),
    "none": 0 * presence,
  }[mask]
  there = np.ones_like(presence) if mask == "none" else presence
  x = dense(params["input"], elements.astype(np.float64))
  for i in range(2):
    p = params[f"self_attention_{i}"]
    values, seen = x, logits
    if num_inducing:
      points = np.asarray(p["inducing_points"], np.float64)
      values, seen = block(p["induce"], points, x, logits, np.ones(num_inducing)), 0.0
    x = block(p["block"], x, values, seen, there)
  return attend(params["pool"], params["seeds"], dense(params["widen"], x), logits)


@over_settings
def test_against_numpy(mask, num_inducing, elements, presence):
  params, apply = transformer(mask, num_inducing)
  actual = apply(elements, presence)
  for b in range(3):
    expected = reference(params, elements[b], presence[b].astype(float), mask, num_inducing)
    # Two blocks of sums of 16 in float32; outputs are of size 1 to 10.
    np.testing.assert_allclose(actual[b], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", MASKS)
def test_attention_has_gradients_that_an_optimiser_can_square(kind):
  """Also where parts are equally present, as on an empty image: 1e32 is no slope to follow."""
  values = jnp.arange(3.0)

  @jax.jit
  @jax.grad
  def slope(presence):
    return jax.nn.softmax(MASKS[kind](presence))[0] @ values

  for presence in (np.full((1, 3), 0.5, np.float32), np.array([[0, 0, 1]], np.float32)):
    gradient = np.asarray(slope(presence))
    assert np.abs(gradient).max() < 1e18, gradient  # 3e38 is the end of float32


@over_settings
def test_all_absent_and_all_present_are_finite(mask, num_inducing, elements):
  _, apply = transformer(mask, num_inducing)
  for value in (0.0, 1.0):
    assert np.isfinite(apply(elements, np.full((3, ELEMENTS), value, np.float32))).all()
