"""Labels, answers and accuracy of systems that are trained with labels; LeNet-5."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scae_jax.models import cnn, supervised
from scae_jax.models.system import labels_of
from tests.references import correlate
from tests.tiny import compiled, random_variables, tiny

CLASSES = 4
SCORES = jnp.array([[0.1, 0.7, 0.2, 0.6], [0.9, 0.0, 0.3, 0.5], [0.2, 0.1, 0.4, 0.3]])


def test_accuracy_is_the_share_of_labels_among_as_many_largest_scores():
  labels = jnp.array([[1], [3], [2]])
  np.testing.assert_array_equal(supervised.accuracy(SCORES, labels), [1, 0, 1])
  labels = jnp.array([[3, 1], [0, 2], [0, 1]])
  np.testing.assert_array_equal(supervised.answers(SCORES, 2), [[1, 3], [0, 3], [2, 3]])
  np.testing.assert_array_equal(supervised.accuracy(SCORES, labels), [1, 0.5, 0])


def test_labels_of_batches():
  one = {"label": jnp.array([2, 0])}
  two = one | {"other_label": jnp.array([1, 3])}
  np.testing.assert_array_equal(labels_of(one), [[2], [0]])
  np.testing.assert_array_equal(labels_of(two), [[2, 1], [0, 3]])
  present = supervised.present(labels_of(two), CLASSES)
  np.testing.assert_array_equal(present, [[0, 1, 1, 0], [1, 0, 0, 1]])


def cnn_batch():
  rng = np.random.RandomState(0)
  image = jnp.asarray(rng.uniform(size=(3, 14, 14, 1)), jnp.float32)
  return {"image": image, "label": jnp.array([0, 3, 1])}


def test_lenet_against_numpy():
  """14 -> 12 -> 6 -> 4 -> 2 pixels, then dense layers of 12, 7, 5 and 4 numbers."""
  system, batch = tiny(cnn), cnn_batch()
  variables = random_variables(system.module, batch, train=False)
  output = jax.jit(lambda v: system.module.apply(v, batch, train=False))(variables)
  params = jax.device_get(variables["params"])
  x = np.asarray(batch["image"], np.float64)
  for i in range(2):
    mapped = np.maximum(correlate(x, **params[f"convolution_{i}"]), 0)
    half = mapped.shape[1] // 2
    x = mapped.reshape(3, half, 2, half, 2, -1).mean(axis=(2, 4))
  x = x.reshape(3, -1)
  for name in ("dense_0", "dense_1"):
    x = np.maximum(x @ params[name]["kernel"] + params[name]["bias"], 0)
  logits = x @ params["classes"]["kernel"] + params["classes"]["bias"]
  np.testing.assert_allclose(output.logits, logits, rtol=1e-4, atol=1e-4)
  shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
  np.testing.assert_allclose(system.classify(output), shares, rtol=1e-4, atol=1e-5)
  expected = -np.log(shares[np.arange(3), batch["label"]]).mean()
  terms = system.loss_terms(output, batch, 0)
  assert float(terms["cross_entropy"]) == pytest.approx(expected, rel=1e-4)
  # Of two labels each has half the weight.
  both = batch | {"other_label": jnp.array([1, 2, 0])}
  expected = (expected - np.log(shares[np.arange(3), both["other_label"]]).mean()) / 2
  assert float(system.loss_terms(output, both, 0)["cross_entropy"]) == pytest.approx(
    expected, rel=1e-4
  )


def test_only_training_drops_hidden_units_and_that_changes_no_mean():
  """Only an affine layer follows: over many draws its results have the mean of none dropped."""
  system, batch, draws = tiny(cnn), cnn_batch(), 2000
  variables = random_variables(system.module, batch, train=False)
  same = jax.tree.map(lambda array: jnp.repeat(array[:1], draws, axis=0), batch)

  @compiled
  def run(key):
    drawn = system.module.apply(variables, same, train=True, rngs={"noise": key})
    return drawn.logits, system.module.apply(variables, batch, train=False).logits[0]

  (drawn, still), (others, _) = (jax.device_get(run(jax.random.key(i))) for i in (0, 1))
  assert len(np.unique(drawn, axis=0)) > 2
  assert np.any(drawn != others)
  error = np.abs(drawn.mean(axis=0) - still)
  assert (error < 5 * drawn.std(axis=0) / np.sqrt(draws)).all()
