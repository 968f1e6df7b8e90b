"""Labels, answers and accuracy of systems that are trained with labels; LeNet-5."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scae_jax.models import capsnet, cnn, matrix_capsules, supervised
from scae_jax.models.system import ImageSpec, PointSpec, labels_of
from tests.test_models_build import compiled, random_variables

CLASSES = 4
SCORES = jnp.array([[0.1, 0.7, 0.2, 0.6], [0.9, 0.0, 0.3, 0.5], [0.2, 0.1, 0.4, 0.3]])


def test_accuracy_of_one_label_is_whether_the_largest_score_has_it():
  labels = jnp.array([[1], [3], [2]])
  np.testing.assert_array_equal(supervised.accuracy(SCORES, labels), [1, 0, 1])


def test_accuracy_of_two_labels_is_the_share_among_the_two_largest():
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


@pytest.mark.parametrize("module", [cnn, capsnet, matrix_capsules])
def test_points_are_refused(module):
  with pytest.raises(ValueError, match=r"takes images.*'ccae'"):
    module.make_system({}, {}, PointSpec(11, 3, 4))


@pytest.mark.parametrize("module", [cnn, capsnet, matrix_capsules])
def test_keys_of_the_loss_section_are_checked(module):
  with pytest.raises(ValueError, match=r"config\.loss: unknown keys \['margins'\].*valid keys"):
    module.make_system({}, {"margins": 1.0}, ImageSpec(28, 1, CLASSES))


LENET = {
  "widths": (2, 3),
  "kernel": 3,
  "padding": "valid",
  "pool": 2,
  "hidden": (7, 5),
  "dropout": 0.5,
}
LOSS = {"weights": {"cross_entropy": 1.0}, "schedule": {}}


def cnn_batch(side=14):
  rng = np.random.RandomState(0)
  image = jnp.asarray(rng.uniform(size=(3, side, side, 1)), jnp.float32)
  return {"image": image, "label": jnp.array([0, 3, 1])}


def build_cnn(**changes):
  return cnn.make_system(LENET | changes, LOSS, ImageSpec(14, 1, CLASSES))


def test_lenet_against_numpy():
  """14 -> 12 -> 6 -> 4 -> 2 pixels, then dense layers of 12, 7, 5 and 4 numbers."""
  system, batch = build_cnn(), cnn_batch()
  variables = random_variables(system.module, batch, train=False)
  output = jax.jit(lambda v: system.module.apply(v, batch, train=False))(variables)
  params = jax.device_get(variables["params"])
  x = np.asarray(batch["image"], np.float64)
  for i in range(2):
    kernel, bias = params[f"convolution_{i}"]["kernel"], params[f"convolution_{i}"]["bias"]
    side = x.shape[1] - 2
    mapped = np.zeros((3, side, side, kernel.shape[3]))
    for b, row, column in np.ndindex(3, side, side):
      window = x[b, row : row + 3, column : column + 3]
      mapped[b, row, column] = np.einsum("rsc,rscd->d", window, kernel) + bias
    mapped = np.maximum(mapped, 0)
    half = side // 2
    x = np.zeros((3, half, half, kernel.shape[3]))
    for b, row, column in np.ndindex(3, half, half):
      square = mapped[b, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
      x[b, row, column] = square.mean((0, 1))
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


def test_only_training_drops_hidden_units():
  system, batch = build_cnn(), cnn_batch()
  variables = random_variables(system.module, batch, train=False)
  run = compiled(
    lambda key: system.module.apply(variables, batch, train=True, rngs={"noise": key}).logits
  )
  still = system.module.apply(variables, batch, train=False).logits
  first, second = run(jax.random.key(0)), run(jax.random.key(1))
  assert not np.allclose(first, second)
  assert not np.allclose(first, still)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"dropout": 1.0}, r"config\.model\.dropout must be from 0 to below 1; it is 1\.0"),
    ({"kernel": 2, "padding": "same"}, r"config\.model\.kernel must be an odd number .*'same'"),
    ({"kernel": 7}, r"config\.model\.kernel 7, .*\(14 -> 8 -> 4 -> 0\)"),
    ({"pool": 9}, r"config\.model\.pool 9 .*\(14 -> 12 -> 1 -> 0\)"),
  ],
)
def test_bad_values_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    build_cnn(**changes)
