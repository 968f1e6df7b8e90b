"""Matrix capsules: layers against loops, coordinates, losses by step, and bad configs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scae_jax.layers.matrix_capsules import (
  CapsuleMap,
  ClassCapsules,
  ConvCapsules,
  PrimaryCapsules,
  receptive_fields,
  transform_init,
)
from scae_jax.models import matrix_capsules
from scae_jax.routing.em import route_by_em
from tests.tiny import compiled, random_variables, tiny

HEIGHT, WIDTH, TYPES, PARENTS, BATCH, CLASSES = 5, 4, 2, 3, 2, 3
LIMIT = 0.1


def capsule_map(seed=0, height=HEIGHT, width=WIDTH):
  rng = np.random.RandomState(seed)
  shape = (BATCH, height, width, TYPES)
  poses = rng.normal(0, 1, (*shape, 4, 4)).astype(np.float32)
  return CapsuleMap(jnp.asarray(poses), jnp.asarray(rng.uniform(0, 1, shape), jnp.float32))


def routed(votes, activation, child, routing, iterations):
  """Routing of one example, from its votes as loops made them."""
  return route_by_em(
    jnp.asarray(np.moveaxis(votes, 1, -1), jnp.float32),
    activation.reshape(-1),
    child,
    beta_u=jnp.asarray(routing["beta_u"]),
    beta_a=jnp.asarray(routing["beta_a"]),
    iterations=iterations,
    inverse_temperature_limit=LIMIT,
  )


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (2, 2), (1, 1)])
def test_receptive_fields_against_a_loop(kernel, stride):
  found = receptive_fields(HEIGHT, WIDTH, TYPES, kernel, stride)
  expected = []
  for top in range(0, HEIGHT - kernel + 1, stride):
    for left in range(0, WIDTH - kernel + 1, stride):
      square = []
      for row in range(top, top + kernel):
        for column in range(left, left + kernel):
          square += [(row * WIDTH + column) * TYPES + m for m in range(TYPES)]
      expected.append(square)
  np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("normalize", [False, True])
def test_primary_capsules_against_numpy(normalize):
  layer = PrimaryCapsules(TYPES, normalize)
  features = jnp.asarray(np.random.RandomState(0).normal(size=(BATCH, 2, 3, 5)), jnp.float32)
  variables = random_variables(layer, features)
  found = layer.apply(variables, features)
  kernels = {name: part["kernel"][0, 0] for name, part in variables["params"].items()}
  poses = np.asarray(features) @ kernels["poses"]
  if normalize:
    of_capsules = poses.reshape(*poses.shape[:3], TYPES, 16)
    scale = np.sqrt(np.mean(of_capsules**2, axis=-1, keepdims=True) + 1e-4)
    poses = (of_capsules / scale).reshape(poses.shape)
  np.testing.assert_allclose(found.poses.reshape(poses.shape), poses, rtol=1e-4, atol=1e-5)
  logits = np.asarray(features) @ kernels["activation"]
  np.testing.assert_allclose(found.activation, 1 / (1 + np.exp(-logits)), rtol=1e-4)
  assert set(variables["params"]["poses"]) == {"kernel"}


def test_votes_of_convolutional_capsules_against_a_loop():
  """Squares of 3x3 at stride 2 in a map of 5x4: two of them, one above the other."""
  layer, below = (
    ConvCapsules(PARENTS, kernel=3, stride=2, iterations=2, inverse_temperature_limit=LIMIT),
    capsule_map(),
  )
  variables = random_variables(layer, below)
  found = compiled(layer.apply)(variables, below)
  assert found.activation.shape == (BATCH, 2, 1, PARENTS)
  params = jax.device_get(variables["params"])
  child = receptive_fields(HEIGHT, WIDTH, TYPES, 3, 2)
  for b in range(BATCH):
    poses = np.asarray(below.poses[b]).reshape(-1, 4, 4)
    votes = np.zeros((*child.shape, PARENTS, 16))
    for p, n, k in np.ndindex(*child.shape, PARENTS):
      votes[p, n, k] = (poses[child[p, n]] @ params["transforms"][n, k]).reshape(-1)
    expected = routed(votes, below.activation[b], child, params["routing"], 2)
    # Two rounds of float32 sums over 18 children.
    np.testing.assert_allclose(
      found.poses[b].reshape(2, PARENTS, 16), expected.poses, rtol=1e-3, atol=1e-4
    )
    np.testing.assert_allclose(
      found.activation[b].reshape(2, PARENTS), expected.activation, rtol=1e-4
    )


@pytest.mark.parametrize("add_coordinates", [True, False])
def test_votes_for_classes_against_a_loop(add_coordinates):
  """One transform for all positions; places are added to the last entries of two rows."""
  layer, below = (
    ClassCapsules(CLASSES, add_coordinates, iterations=2, inverse_temperature_limit=LIMIT),
    capsule_map(),
  )
  variables = random_variables(layer, below)
  found = compiled(layer.apply)(variables, below)
  params = jax.device_get(variables["params"])
  votes = np.zeros((BATCH, HEIGHT, WIDTH, TYPES, CLASSES, 4, 4))
  for b, row, column, m, k in np.ndindex(votes.shape[:5]):
    vote = np.asarray(below.poses[b, row, column, m]) @ params["transforms"][m, k]
    if add_coordinates:
      vote[0, 3] += (column + 0.5) / WIDTH
      vote[1, 3] += (row + 0.5) / HEIGHT
    votes[b, row, column, m, k] = vote
  child = np.arange(HEIGHT * WIDTH * TYPES)[None]
  for b in range(BATCH):
    flat = votes[b].reshape(1, -1, CLASSES, 16)
    expected = routed(flat, below.activation[b], child, params["routing"], 2)
    np.testing.assert_allclose(found.poses[b], expected.poses, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found.activation[b], expected.activation, rtol=1e-4)


def test_loss_and_measures_against_numpy():
  """19 -> 8 -> 3 -> 1 positions; the margin is that of the step, or the last."""
  system = tiny(matrix_capsules)
  rng = np.random.RandomState(0)
  image = jnp.asarray(rng.uniform(size=(4, 19, 19, 1)), jnp.float32)
  batch = {"image": image, "label": jnp.array([0, 2, 1, 1])}
  variables = random_variables(system.module, batch, train=False, scale=1.0)

  @compiled
  def run(step):
    output = system.module.apply(variables, batch, train=True)
    terms = [system.loss_terms(output, batch, each)["spread"] for each in (step, None)]
    return output, terms, system.metrics(output, batch)

  output, terms, measures = jax.device_get(run(jnp.int32(200)))
  assert np.ptp(output.activation) > 0
  for found, margin in zip(terms, (0.595, 0.9899641), strict=True):
    expected = 0.0
    for activation, label in zip(output.activation, np.asarray(batch["label"]), strict=True):
      lead = activation[label] - np.delete(activation, label)
      expected += np.sum(np.maximum(0, margin - lead) ** 2)
    assert found == pytest.approx(expected / 4, rel=1e-4)
  np.testing.assert_array_equal(
    measures["accuracy"], output.activation.argmax(1) == np.asarray(batch["label"])
  )
  drawn = jax.device_get(jax.jit(system.pictures)(variables, batch))["coupling"]
  # Of the first example, whose classes have one position; no other has the same.
  assert drawn["coupling"].shape == drawn["agreement"].shape == (2, 2, CLASSES)
  np.testing.assert_allclose(drawn["coupling"].sum(2), 1, rtol=1e-5)
  np.testing.assert_array_equal(drawn["image"], image[0])
  for name in ("coupling", "agreement"):
    of_all = getattr(output.routing, name)[:, :, 0]
    np.testing.assert_allclose(drawn[name], of_all[0], rtol=1e-3, atol=1e-4, err_msg=name)
    assert (np.abs(of_all[1:] - of_all[:1]).max(axis=(1, 2, 3)) > 1e-2).all()


def test_transforms_start_near_the_identity():
  """Off by a normal distribution with a deviation of 0.1; of 16,000: four standard errors."""
  off = np.asarray(transform_init(jax.random.key(0), (50, 20, 4, 4))) - np.eye(4)
  assert np.std(off) == pytest.approx(0.1, rel=0.0225)
  np.testing.assert_allclose(np.mean(off, axis=(0, 1)), 0, atol=0.013)


def test_the_figure_shows_an_image_as_it_was_before_it_was_normalised():
  system, rng = tiny(matrix_capsules), np.random.RandomState(0)
  pixels = jnp.asarray(rng.uniform(size=(2, 19, 19, 1)), jnp.float32)
  mean, deviation = jnp.array([0.4, 0.7]), jnp.array([0.1, 0.3])
  of_images = (mean[:, None, None, None], deviation[:, None, None, None])
  batch = {"image": (pixels - of_images[0]) / of_images[1], "label": jnp.zeros(2, jnp.int32)}
  batch |= {"mean": mean, "std": deviation}
  variables = random_variables(system.module, batch, train=False, scale=1.0)
  drawn = compiled(system.pictures)(variables, batch)["coupling"]
  np.testing.assert_allclose(drawn["image"], pixels[0], atol=1e-6)
  plain = compiled(system.pictures)(variables, {"image": pixels, "label": batch["label"]})
  np.testing.assert_array_equal(plain["coupling"]["image"], pixels[0])
  # The network sees the normalised one.
  assert np.abs(plain["coupling"]["agreement"] - drawn["agreement"]).max() > 1e-2


def test_how_large_poses_are_tells_something_unless_they_are_scaled():
  batch = {"image": jnp.asarray(np.random.RandomState(0).uniform(size=(2, 19, 19, 1)), jnp.float32)}
  modules = [tiny(matrix_capsules, normalize_poses=scaled).module for scaled in (False, True)]
  variables = random_variables(modules[0], batch, train=False, scale=1.0)
  kernel = variables["params"]["primary"]["poses"]["kernel"]

  @compiled
  def activations(kernel):
    primary = variables["params"]["primary"] | {"poses": {"kernel": kernel}}
    changed = {"params": variables["params"] | {"primary": primary}}
    return [module.apply(changed, batch, train=False).activation for module in modules]

  (as_it_is, scaled), (of_larger, scaled_larger) = activations(kernel), activations(3 * kernel)
  assert np.max(np.abs(of_larger - as_it_is)) > 5e-2
  np.testing.assert_allclose(scaled_larger, scaled, atol=3e-3)  # the smallest are not scaled quite
  assert np.ptp(scaled) > 0.1
