"""Matrix capsules: layers against loops, coordinates, losses by step."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scae_jax.layers.capsule_convolutions import (
  CapsuleMap,
  ClassCapsules,
  ConvCapsules,
  PrimaryCapsules,
)
from scae_jax.math.routing.em import route_by_em
from scae_jax.models import matrix_capsules
from tests.tiny import compiled, random_variables, tiny

HEIGHT, WIDTH, TYPES, PARENTS, BATCH, CLASSES = 5, 4, 2, 3, 2, 3
ROUTING = {"iterations": 2, "inverse_temperature_limit": 0.1}
RNG = np.random.RandomState(0)
BELOW = CapsuleMap(
  jnp.asarray(RNG.normal(size=(BATCH, HEIGHT, WIDTH, TYPES, 4, 4)), jnp.float32),
  jnp.asarray(RNG.uniform(size=(BATCH, HEIGHT, WIDTH, TYPES)), jnp.float32),
)


def assert_routed(parents, votes, routing, child):
  """Parents equal routing of the votes [b, p, n, k, 16] that loops have computed."""
  route = jax.jit(functools.partial(route_by_em, child=child, **ROUTING))
  for b in range(BATCH):
    activation = BELOW.activation[b].reshape(-1)
    expected = route(jnp.asarray(np.moveaxis(votes[b], 1, -1), jnp.float32), activation, **routing)
    poses = parents.poses[b].reshape(expected.poses.shape)
    # Two rounds of float32 sums over 18 children.
    np.testing.assert_allclose(poses, expected.poses, rtol=1e-3, atol=1e-4)
    activation = parents.activation[b].reshape(expected.activation.shape)
    np.testing.assert_allclose(activation, expected.activation, rtol=1e-4)


def fields_by_loop(kernel, stride):
  """Numbers of the children in every square of positions."""
  fields = []
  for top in range(0, HEIGHT - kernel + 1, stride):
    for left in range(0, WIDTH - kernel + 1, stride):
      square = itertools.product(range(top, top + kernel), range(left, left + kernel), range(TYPES))
      fields.append([(row * WIDTH + column) * TYPES + m for row, column, m in square])
  return np.array(fields)


@pytest.mark.parametrize("normalize", [False, True])
def test_primary_capsules_against_numpy(normalize):
  layer = PrimaryCapsules(TYPES, normalize)
  features = jnp.asarray(np.random.RandomState(0).normal(size=(BATCH, 2, 3, 5)), jnp.float32)
  variables = random_variables(layer, features)
  capsules = layer.apply(variables, features)
  kernels = {name: part["kernel"][0, 0] for name, part in variables["params"].items()}
  poses = np.asarray(features) @ kernels["poses"]
  if normalize:
    of_capsules = poses.reshape(*poses.shape[:3], TYPES, 16)
    scale = np.sqrt(np.mean(of_capsules**2, axis=-1, keepdims=True) + 1e-4)
    poses = (of_capsules / scale).reshape(poses.shape)
  np.testing.assert_allclose(capsules.poses.reshape(poses.shape), poses, rtol=1e-4, atol=1e-5)
  logits = np.asarray(features) @ kernels["activation"]
  np.testing.assert_allclose(capsules.activation, 1 / (1 + np.exp(-logits)), rtol=1e-4)
  assert set(variables["params"]["poses"]) == {"kernel"}


def test_votes_of_convolutional_capsules_against_a_loop():
  """Squares of 3x3 at stride 2 in a map of 5x4: two of them, one above the other."""
  layer = ConvCapsules(PARENTS, kernel=3, stride=2, **ROUTING)
  variables = random_variables(layer, BELOW)
  parents = compiled(layer.apply)(variables, BELOW)
  assert parents.activation.shape == (BATCH, 2, 1, PARENTS)
  params = jax.device_get(variables["params"])
  child = fields_by_loop(3, 2)
  poses = np.asarray(BELOW.poses).reshape(BATCH, -1, 4, 4)
  votes = np.zeros((BATCH, *child.shape, PARENTS, 16))
  for b, p, n, k in np.ndindex(votes.shape[:4]):
    votes[b, p, n, k] = (poses[b, child[p, n]] @ params["transforms"][n, k]).reshape(-1)
  assert_routed(parents, votes, params["routing"], child)


@pytest.mark.parametrize("add_coordinates", [True, False])
def test_votes_for_classes_against_a_loop(add_coordinates):
  """One transform for all positions; places are added to the last entries of two rows."""
  layer = ClassCapsules(CLASSES, add_coordinates, **ROUTING)
  variables = random_variables(layer, BELOW)
  parents = compiled(layer.apply)(variables, BELOW)
  params = jax.device_get(variables["params"])
  votes = np.zeros((BATCH, HEIGHT, WIDTH, TYPES, CLASSES, 4, 4))
  for b, row, column, m, k in np.ndindex(votes.shape[:5]):
    vote = np.asarray(BELOW.poses[b, row, column, m]) @ params["transforms"][m, k]
    if add_coordinates:
      vote[0, 3] += (column + 0.5) / WIDTH
      vote[1, 3] += (row + 0.5) / HEIGHT
    votes[b, row, column, m, k] = vote
  votes = votes.reshape(BATCH, 1, -1, CLASSES, 16)
  assert_routed(parents, votes, params["routing"], np.arange(HEIGHT * WIDTH * TYPES)[None])


@pytest.fixture(scope="module")
def images():
  return jnp.asarray(np.random.RandomState(0).uniform(size=(4, 19, 19, 1)), jnp.float32)


def test_loss_metrics_and_figure_against_numpy(images):
  """19 -> 8 -> 3 -> 1 positions; the margin is that of the step, or the last."""
  system = tiny(matrix_capsules)
  batch = {"image": images, "label": jnp.array([0, 2, 1, 1])}
  variables = random_variables(system.module, batch, train=False, scale=1.0)

  @compiled
  def run(step):
    output = system.module.apply(variables, batch, train=True)
    terms = [system.loss_terms(output, batch, at_step)["spread"] for at_step in (step, None)]
    return output, terms, system.metrics(output, batch), system.pictures(variables, batch)

  output, terms, metrics, drawn = jax.device_get(run(jnp.int32(200)))
  assert np.ptp(output.activation) > 0
  for term, margin in zip(terms, (0.595, 0.9899641), strict=True):
    expected = 0.0
    for activation, label in zip(output.activation, np.asarray(batch["label"]), strict=True):
      lead = activation[label] - np.delete(activation, label)
      expected += np.sum(np.maximum(0, margin - lead) ** 2)
    assert term == pytest.approx(expected / 4, rel=1e-4)
  np.testing.assert_array_equal(
    metrics["accuracy"], output.activation.argmax(1) == np.asarray(batch["label"])
  )
  # Of the first example, whose classes have one position; no other has the same.
  fed = drawn["coupling"]
  assert fed["coupling"].shape == fed["agreement"].shape == (2, 2, CLASSES)
  np.testing.assert_allclose(fed["coupling"].sum(2), 1, rtol=1e-5)
  np.testing.assert_array_equal(fed["image"], images[0])
  for name in ("coupling", "agreement"):
    of_all = getattr(output.routing, name)[:, :, 0]
    np.testing.assert_allclose(fed[name], of_all[0], rtol=1e-3, atol=1e-4, err_msg=name)
    assert (np.abs(of_all[1:] - of_all[:1]).max(axis=(1, 2, 3)) > 1e-2).all()

  # An image is shown as it was before it was normalised; the network sees the normalised one.
  mean, deviation = jnp.array([0.4, 0.7, 0.4, 0.7]), jnp.array([0.1, 0.3, 0.1, 0.3])
  normalized = (images - mean[:, None, None, None]) / deviation[:, None, None, None]
  batch |= {"image": normalized, "mean": mean, "std": deviation}
  of_normalized = compiled(system.pictures)(variables, batch)["coupling"]
  np.testing.assert_allclose(of_normalized["image"], images[0], atol=1e-6)
  assert np.abs(of_normalized["agreement"] - fed["agreement"]).max() > 1e-2


@pytest.mark.parametrize("scaled", [False, True])
def test_poses_are_scaled_on_request(scaled, images):
  """In the whole model as in the layer."""
  module, batch = tiny(matrix_capsules, normalize_poses=scaled).module, {"image": images}
  variables = random_variables(module, batch, train=False, scale=1.0)

  @compiled
  def primary():
    primary_alone = {"capture_intermediates": lambda layer, _: layer.name == "primary"}
    _, state = module.apply(variables, batch, train=False, **primary_alone)
    return state["intermediates"]["primary"]["__call__"][0].poses

  mean_square = np.square(primary()).mean(axis=(-2, -1))
  # The smallest are not scaled quite.
  assert (abs(mean_square.max() - 1) < 1e-3) == scaled
