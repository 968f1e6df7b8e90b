"""Pictures of probabilistic capsules: expectations, samples, reconstructions by winners."""

import functools
import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

from scae_jax.figures import FIGURES
from scae_jax.math.routing import selection
from scae_jax.math.routing.selection import CERTAIN, Capsules
from scae_jax.models import probabilistic
from scae_jax.models.probabilistic import drawn_images
from scae_jax.models.system import ImageSpec
from tests.references import reference_choices, reference_vote
from tests.tiny import compiled, random_variables, tiny

PARTS, OBJECTS, CANVAS, TEMPLATE, COUNT = 3, 2, 24, 9, 3
MODEL = {  # another generative model than the tiny one's, by the same networks
  "capsules": (PARTS, OBJECTS),
  "poses": "delta",
  "generative.template_size": TEMPLATE,
  "generative.nonlinearity": "relu1",
  "generative.temperature": 0.5,
  "generative.top_presence": 0.5,
  "generative.top_scale": 0.1,
  "generative.dummy_affinity": 0.5,
  "generative.broad_scale": 0.5,
  "generative.min_scale": 0.01,
  "generative.initial_scale": 0.05,
}
SYSTEM = tiny(probabilistic, ImageSpec(CANVAS, 1, 10), **MODEL)
IMAGE = np.random.RandomState(0).uniform(size=(COUNT, CANVAS, CANVAS, 1)).astype(np.float32)
BATCH = {"image": jnp.asarray(IMAGE), "label": jnp.zeros(COUNT, jnp.int32)}
mean_children = jax.jit(selection.mean_children)


@pytest.fixture(scope="module")
def variables():
  """Random, except for smooth blobs as templates, which lie well inside the picture."""
  params = random_variables(SYSTEM.module, BATCH, train=False)["params"]
  line = np.linspace(-1, 1, TEMPLATE)
  y, x = np.meshgrid(line, line, indexing="ij")
  centres = np.array([[0.2, 0], [-0.2, 0.3], [0, -0.3]])[:, :, None, None]
  blob = np.exp(-4 * ((x[None] - centres[:, 0]) ** 2 + (y[None] - 2 * centres[:, 1]) ** 2))
  generative_params = params["generative"]
  generative_params["templates"] = jnp.asarray(
    np.array([0.9, 0.6, 0.3])[:, None, None, None] * np.ones((1, 9, 9, 1))
  )
  generative_params["alphas"] = jnp.asarray(8 * blob - 6)[..., None]
  offset = 0.5 * generative_params["offset_1"]
  generative_params["offset_1"] = offset.at[..., :2].add(-0.3 * jnp.eye(2))
  return jax.tree.map(jnp.float32, {"params": params})


@pytest.fixture(scope="module")
def pictures(variables):
  return jax.device_get(compiled(SYSTEM.pictures)(variables, BATCH))


@pytest.fixture(scope="module")
def generative(variables):
  return SYSTEM.module.generative.clone().bind({"params": variables["params"]["generative"]})


@pytest.fixture(scope="module")
def draw(generative):
  """Draws parts [b, m], for b up to NUM_SAMPLES; compiled once."""
  run = compiled(functools.partial(generative.draw, canvas=CANVAS))

  def draw(parts):
    count = len(parts.poses)
    rows = np.arange(drawn_images.NUM_SAMPLES) % count
    return np.asarray(run(jax.tree.map(lambda leaf: jnp.asarray(leaf)[rows], parts)))[:count]

  return draw


@pytest.fixture(scope="module")
def relations(generative):
  return generative.relations()[0]


def test_pictures_have_the_arguments_of_figures(pictures):
  names = ("templates", "prior_samples", "object_samples", "reconstructions")
  assert set(pictures) == {*names, "object_reconstructions", "part_identity"}
  for name, arrays in pictures.items():
    parameters = inspect.signature(FIGURES[name]).parameters.values()
    needed = {
      parameter.name for parameter in parameters if parameter.default is inspect.Parameter.empty
    }
    assert needed <= set(arrays) <= {parameter.name for parameter in parameters}, name


def test_expected_children_are_means_over_choices_and_presences(relations):
  rng = np.random.RandomState(1)
  logits, poses = np.float32([-0.8, 1.4]), rng.normal(size=(OBJECTS, 2, 3)).astype(np.float32)
  parents = Capsules(jnp.asarray(logits), jnp.asarray(poses))
  children = mean_children(parents, relations)
  chosen, on = np.exp(reference_choices(parents, relations)), expit(relations.presence_logits)
  for child in range(PARTS):
    # float32 throughout: 1e-5 of numbers of size 1.
    expected = sum(chosen[parent, child] * on[parent, child] for parent in range(OBJECTS))
    np.testing.assert_allclose(children.presence[child], expected, atol=1e-5)
    likeliest = np.argmax(chosen[:-1, child] * on[:-1, child])
    predicted = reference_vote(poses[likeliest], relations.offsets[likeliest, child])
    np.testing.assert_allclose(children.poses[child], predicted, atol=1e-5)


def test_children_without_parents_are_absent_and_certain_ones_finite(relations):
  nobody = Capsules(jnp.full(OBJECTS, -CERTAIN), jnp.tile(jnp.eye(2, 3), (OBJECTS, 1, 1)))
  logits = mean_children(nobody, relations).presence_logits
  assert (np.asarray(logits) < -25).all()
  sure = relations.replace(
    affinity_logits=jnp.full_like(relations.affinity_logits, 60.0),
    presence_logits=jnp.full_like(relations.presence_logits, 60.0),
  )
  everybody = nobody.replace(presence_logits=-nobody.presence_logits)
  logits = np.asarray(mean_children(everybody, sure).presence_logits)
  assert np.isfinite(logits).all()
  assert (logits > 25).all()


def test_an_object_alone_draws_the_mean_over_its_choices_and_presences(pictures, draw, relations):
  """Each part is at the object's vote, or off: all 8 pictures with their probabilities."""
  poses = pictures["object_samples"]["poses"]
  for k, move in ((0, 1), (1, 5)):
    parents = Capsules(np.where(np.arange(OBJECTS) == k, CERTAIN, -CERTAIN), poses)
    there = np.exp(reference_choices(parents, relations)[k]) * expit(relations.presence_logits[k])
    predicted = [reference_vote(poses[move], offset) for offset in relations.offsets[k]]
    cases = np.array(list(itertools.product([0, 1], repeat=PARTS)))
    logits = jnp.asarray(np.where(cases, CERTAIN, -CERTAIN), jnp.float32)
    tiled = jnp.asarray(np.tile(predicted, (len(cases), 1, 1, 1)), jnp.float32)
    weights = np.prod(np.where(cases, there, 1 - there), axis=1)
    mean = np.einsum("n,nhwc->hwc", weights, draw(Capsules(logits, tiled)))
    assert mean.max() > 0.1
    # Sums of float32; positions of 24 pixels are off by 1e-6 of that.
    np.testing.assert_allclose(pictures["object_samples"]["samples"][k, move], mean, atol=1e-4)


def test_poses_of_moved_objects_by_hand():
  """A quarter turn counter-clockwise as one sees it, twice as large, to the right and up."""
  pose = drawn_images.move_pose(90, 2.0, 0.3, -0.1)
  np.testing.assert_allclose(pose, [[0, 2, 0.3], [-2, 0, -0.1]], atol=1e-6)


def test_pictures_of_prior_samples_are_drawn_from_their_capsules(pictures, generative, draw):
  samples = pictures["prior_samples"]["samples"]
  keys = jax.random.split(jax.random.key(0), drawn_images.NUM_SAMPLES)
  assert len(samples) == len(keys)

  def sample(key):
    top_key, key = jax.random.split(key)
    layers, _ = generative.sample(key, generative.sample_top(top_key))
    return layers[0]

  parts = compiled(jax.vmap(sample))(keys)
  assert set(np.unique(parts.presence.round(6))) == {0, 1}
  # Another compilation of the same numbers.
  np.testing.assert_allclose(samples, draw(parts), atol=1e-4)
  assert np.std(samples, axis=0).mean() > 0.01  # no two alike
  dark = np.asarray(parts.presence).max(axis=1) < 0.5
  assert 0 < dark.sum() < len(dark)
  assert np.abs(samples[dark]).max() < 1e-6


@pytest.fixture(scope="module")
def inferred(variables):
  infer = compiled(functools.partial(SYSTEM.module.apply, method="infer"))
  return jax.device_get(infer(variables, IMAGE, None)[1])


def test_reconstructions_show_parts_winners_and_their_votes(pictures, inferred, generative, draw):
  parts, objects = inferred
  fed, alone = pictures["reconstructions"], pictures["object_reconstructions"]
  np.testing.assert_array_equal(fed["image"], IMAGE)
  # Another compilation of the same numbers, here and below.
  close = functools.partial(np.testing.assert_allclose, atol=1e-4)
  close(fed["bottom_up"], draw(parts))
  close(fed["part_mixing"].sum(axis=1), fed["bottom_up"].mean(axis=-1))
  for part in range(PARTS):
    only = parts.replace(
      presence_logits=np.where(np.arange(PARTS) == part, parts.presence_logits, -CERTAIN)
    )
    assert (fed["part_mixing"][:, part] <= np.asarray(draw(only))[..., 0] + 1e-5).all()

  posterior = compiled(generative.select)(inferred)[0].posterior
  owner = np.argmax(posterior, axis=1)
  np.testing.assert_array_equal(fed["part_winner"], owner)
  assert (owner == OBJECTS).any()  # the dummy wins some
  assert (owner < OBJECTS).any()
  offsets = jax.device_get(generative.relations()[0].offsets)
  votes = np.zeros((COUNT, PARTS, 2, 3), np.float32)
  for b, part in itertools.product(range(COUNT), range(PARTS)):
    k = min(owner[b, part], OBJECTS - 1)
    votes[b, part] = reference_vote(objects.poses[b, k], offsets[k, part])

  def said_where(there):
    return draw(Capsules(np.where(there, parts.presence_logits, -CERTAIN), votes))

  close(fed["top_down"], said_where(owner < OBJECTS))
  assert np.abs(fed["top_down"] - fed["bottom_up"]).max() > 0.05
  for k in range(OBJECTS):
    close(alone["object_reconstruction"][:, k], said_where(owner == k))
  for name in ("reconstructions", "object_reconstructions"):
    # The centre of a relaxed presence is the posterior's logit over the temperature.
    close(pictures[name]["object_presence"], expit(objects.presence_logits * 0.5))


def test_parts_by_identity_are_those_of_the_turned_images(pictures, variables):
  fed = pictures["part_identity"]
  close = functools.partial(np.testing.assert_allclose, atol=1e-4)  # compiled otherwise
  upright, quarter = (np.flatnonzero(fed["degrees"] == angle)[0] for angle in (0, 90))
  close(fed["image"][:, upright], IMAGE)
  turned = np.rot90(IMAGE, axes=(1, 2))  # counter-clockwise as one sees it
  close(fed["image"][:, quarter], turned)
  close(fed["part_mixing"][:, upright], pictures["reconstructions"]["part_mixing"])
  mixing = compiled(functools.partial(SYSTEM.module.apply, method="part_mixing"))
  close(fed["part_mixing"][:, quarter], mixing(variables, jnp.asarray(turned)))
  assert np.abs(fed["part_mixing"][:, quarter] - fed["part_mixing"][:, upright]).max() > 0.01
