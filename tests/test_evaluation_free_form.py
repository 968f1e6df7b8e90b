"""Free-form inference where the best posterior is known, and what it refuses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from experiments.free_form import infer_split
from scae_jax.evaluation.free_form import STARTS, make_inference
from scae_jax.models.system import Encoding
from tests.tiny import initial
from tests.toy_free_form import NOISE, START_SCALE, make_system
from tests.toy_system import toy_config, toy_data

SIDE, COUNT, STEPS = 3, 5, 400
# Clipping looks at all gradients that it is given: of one example, if examples do not couple.
RATE = optax.cosine_decay_schedule(0.1, STEPS)
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(RATE))
SIZES = {"canvas": SIDE, "batch_size": COUNT}


def split_of(count=COUNT):
  images = np.random.RandomState(0).randint(0, 256, (COUNT, SIDE, SIDE, 1)).astype(np.uint8)
  return {"image": images[:count], "label": np.arange(count, dtype=np.int32)}


@pytest.fixture(scope="module")
def toy():
  model = {"num_features": 2, "noise_scale": 0.0, "nan_below": 0.0}
  system = make_system(model, dict(toy_config().loss), toy_data(side=SIDE))
  return system, initial(system, toy_data(side=SIDE))


@pytest.fixture(scope="module")
def infer(toy):
  """Compiled for each start."""
  options = {"num_steps": STEPS, "num_samples": 50}
  return {
    start: make_inference(toy[0].free_form, OPTIMIZER, start=start, **options) for start in STARTS
  }


@pytest.mark.parametrize("start", STARTS)
def test_the_best_posterior_is_found_from_either_start(toy, infer, start):
  split = split_of()
  result = infer_split(infer[start], toy[1], split, **SIZES)
  pixels = split["image"].reshape(COUNT, -1) / 255
  variance = NOISE**2
  # The noise of gradients, which steps that grow small average out, leaves a few hundredths.
  after = result.after.posterior
  np.testing.assert_allclose(after["mean"], pixels / (1 + variance), atol=0.05)
  best = NOISE / np.sqrt(1 + variance)
  np.testing.assert_allclose(after["scale"], np.full_like(pixels, best), atol=0.05)
  evidence = stats.norm.logpdf(pixels, 0, np.sqrt(1 + variance)).sum(axis=1)
  # At the best posterior an estimate has no noise, and errors of a hundredth cost their square.
  np.testing.assert_allclose(result.after.bound, evidence, atol=0.02)
  assert np.all(result.after.bound > result.before.bound + 0.1)
  scale = START_SCALE if start == "encoder" else 1.0
  np.testing.assert_allclose(result.before.posterior["scale"], scale, rtol=1e-6)  # exp of a log
  for belief in (result.before, result.after):
    np.testing.assert_array_equal(belief.probe_features["reconstruction"], belief.posterior["mean"])


def test_an_optimiser_that_searches_along_lines_gets_there_sooner(toy):
  """L-BFGS asks for more than gradients: the value, and the function itself."""
  search = optax.scale_by_backtracking_linesearch(10)  # compiles sooner than what L-BFGS has
  optimizer = optax.lbfgs(memory_size=3, linesearch=search)
  infer = make_inference(toy[0].free_form, optimizer, num_steps=15, start="prior", num_samples=5)
  result = infer_split(infer, toy[1], split_of(), **SIZES)
  pixels = split_of()["image"].reshape(COUNT, -1) / 255
  evidence = stats.norm.logpdf(pixels, 0, np.sqrt(1 + NOISE**2)).sum(axis=1)
  # No step is small, so that each one's noise stays: a few hundredths of nine nats or more.
  np.testing.assert_allclose(result.after.bound, evidence, atol=0.2)
  assert np.all(result.after.bound <= evidence + 1e-3)  # float32; a bound it is
  assert np.all(result.after.bound > result.before.bound + 2)


def test_examples_do_not_couple(toy, infer):
  """Others in its place, another place and other batch sizes give the same."""
  split = split_of()
  together = infer_split(infer["encoder"], toy[1], split, **SIZES)
  by_two = infer_split(infer["encoder"], toy[1], split, canvas=SIDE, batch_size=2)
  image = jnp.asarray(split["image"][[3, 3]] / 255, jnp.float32)
  batch = {"image": image, "label": jnp.zeros(2, int)}
  twice = infer["encoder"](toy[1], batch, jnp.array([4, 3]))
  for actual, expected in (
    (by_two, together),
    (jax.tree.map(lambda leaf: leaf[1:], twice), jax.tree.map(lambda leaf: leaf[3:4], together)),
  ):
    # float32, rounded in another order for 400 steps
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), actual, expected
    )
  first_bound, second_bound = twice.after.bound
  assert first_bound != second_bound  # its own random numbers


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"num_steps": -1}, "num_steps.*-1"),
    ({"num_samples": 0}, r"num_samples.* 0\b"),
  ],
)
def test_what_cannot_be_inferred_is_refused(toy, changes, message):
  options = {"start": "prior", "num_steps": 1, "num_samples": 2} | changes
  with pytest.raises(ValueError, match=message):
    make_inference(toy[0].free_form, OPTIMIZER, **options)


def broken(toy, **changes):
  """The toy's free form with some functions changed, from the prior, one step of Adam."""
  free_form = dataclasses.replace(toy[0].free_form, **changes)
  return make_inference(free_form, optax.adam(0.1), num_steps=1, start="prior", num_samples=1)


def test_what_is_not_finite_is_named_with_its_examples(toy):
  variables, terms = toy[1], toy[0].free_form.terms

  def of_dark(variables, posterior, batch, key):
    """A term that the toy does not have, and its own."""
    dark = jnp.max(batch["image"], axis=(1, 2, 3)) == 0
    result = terms(variables, posterior, batch, key)
    broken = jnp.where(dark, jnp.nan, result["latents"])
    return {"pixels": result["pixels"], "latents": broken, "children": broken}

  split = split_of()
  split["image"][[1, 4]] = 0
  message = r"latents, children.*\b2 of 5\b.*\b1, 4\b"
  with pytest.raises(ValueError, match=message):
    infer_split(broken(toy, terms=of_dark), variables, split, canvas=SIDE, batch_size=2)

  def encoding(variables, posterior):
    moved = jnp.max(jnp.abs(posterior["mean"]), axis=1, keepdims=True) > 0
    return Encoding(probe_features={"moved": jnp.where(moved, jnp.inf, 0.0)})

  with pytest.raises(ValueError, match="'moved'"):
    infer_split(broken(toy, encoding=encoding), variables, split, **SIZES)
