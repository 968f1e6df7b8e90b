"""CapsNet against NumPy, its masks and gradients, and configs that do not fit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scae_jax.models.capsnet import (
  OFFSETS,
  CapsNetOutput,
  ClassCapsules,
  in_order_of,
  make_system,
)
from scae_jax.models.system import ImageSpec
from scae_jax.training.systems import check_system
from tests.test_math_routing_dynamic import reference
from tests.test_models_build import compiled, random_variables

CLASSES, CANVAS, BATCH, TYPES, NUMBERS, SIZE = 3, 10, 4, 2, 3, 5
MODEL = {
  "conv_width": 4,
  "conv_kernel": 3,
  "primary_types": TYPES,
  "primary_features": NUMBERS,
  "primary_kernel": 4,
  "primary_stride": 2,
  "class_features": SIZE,
  "routing_iterations": 3,
  "routing_gradient": "all",
  "decoder_widths": (6,),
}
LOSS = {
  "present_margin": 0.9,
  "absent_margin": 0.1,
  "absent_weight": 0.5,
  "weights": {"margin": 1.0, "reconstruction": 0.0005},
  "schedule": {},
}


def tiny_system(num_labels=1, loss=LOSS, **changes):
  return make_system(MODEL | changes, loss, ImageSpec(CANVAS, 1, CLASSES, num_labels))


def tiny_batch(num_labels=1):
  rng = np.random.RandomState(0)
  sources = rng.uniform(0, 0.5, (BATCH, num_labels, CANVAS, CANVAS, 1)).astype(np.float32)
  batch = {"image": sources.sum(1), "label": np.array([0, 2, 1, 1], np.int32)}
  if num_labels == 2:
    batch |= {"sources": sources, "other_label": np.array([1, 0, 2, 0], np.int32)}
  return jax.tree.map(jnp.asarray, batch)


@pytest.fixture(scope="module")
def trained():
  """Parameters, and a compiled function of parameters and batch: of `train` and not, outputs,
  terms and measures."""
  system = tiny_system()
  variables = random_variables(system.module, tiny_batch(), train=False)

  @compiled
  def run(variables, batch):
    outputs = [system.module.apply(variables, batch, train=train) for train in (True, False)]
    return [
      (output, system.loss_terms(output, batch, 0), system.metrics(output, batch))
      for output in outputs
    ]

  return variables, lambda variables, batch: jax.device_get(run(variables, batch))


def correlate(x, kernel, bias, stride):
  """VALID convolution in float64, one window after the other."""
  side = kernel.shape[0]
  rows = (x.shape[1] - side) // stride + 1
  result = np.zeros((x.shape[0], rows, rows, kernel.shape[3]))
  for b, row, column in np.ndindex(x.shape[0], rows, rows):
    window = x[
      b, row * stride : row * stride + side, column * stride : column * stride + side
    ].astype(float)
    result[b, row, column] = np.einsum("rsc,rscd->d", window, kernel) + bias
  return result


def squash(s):
  length = np.linalg.norm(s, axis=-1, keepdims=True)
  return length**2 / (1 + length**2) * s / length


def test_capsules_and_reconstruction_against_numpy(trained):
  variables, run = trained
  batch, params = tiny_batch(), jax.device_get(variables["params"])
  output, terms, measures = run(variables, batch)[0]
  x = np.asarray(batch["image"])
  layer = params["convolution"]
  x = np.maximum(correlate(x, layer["kernel"], layer["bias"], 1), 0)
  layer = params["primary"]
  primary = squash(correlate(x, layer["kernel"], layer["bias"], 2).reshape(BATCH, -1, NUMBERS))
  assert primary.shape[1] == 3 * 3 * TYPES
  maps = params["class_capsules"]["maps"]
  labels, margin, error = np.asarray(batch["label"]), [], []
  for b in range(BATCH):
    predictions = np.einsum("nd,nkde->nke", primary[b], maps)
    capsules, coupling, _ = reference(predictions, 3)[-1]
    # Three rounds of float32 sums over 18 children.
    np.testing.assert_allclose(output.routing.parents[b], capsules, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(output.routing.coupling[b, -1], coupling, rtol=1e-4, atol=1e-5)
    lengths = np.linalg.norm(capsules, axis=1)
    np.testing.assert_allclose(output.lengths[b], lengths, rtol=1e-4)
    alone = np.zeros_like(capsules)
    alone[labels[b]] = capsules[labels[b]]
    hidden, last = params["decoder"]["dense_0"], params["decoder"]["dense_1"]
    hidden = np.maximum(alone.reshape(-1) @ hidden["kernel"] + hidden["bias"], 0)
    drawn = 1 / (1 + np.exp(-(hidden @ last["kernel"] + last["bias"])))
    np.testing.assert_allclose(output.reconstruction[b, 0].reshape(-1), drawn, rtol=1e-3, atol=1e-4)
    there = np.arange(CLASSES) == labels[b]
    costs = np.where(
      there, np.maximum(0, 0.9 - lengths) ** 2, 0.5 * np.maximum(0, lengths - 0.1) ** 2
    )
    margin.append(costs.sum())
    error.append(((drawn - np.asarray(batch["image"][b]).reshape(-1)) ** 2).sum())
  assert terms["margin"] == pytest.approx(np.mean(margin), rel=1e-4)
  assert terms["reconstruction"] == pytest.approx(np.mean(error), rel=1e-4)
  np.testing.assert_allclose(measures["squared_error"], error, rtol=1e-3)
  np.testing.assert_array_equal(measures["accuracy"], output.lengths.argmax(1) == labels)


def test_training_draws_the_true_class_and_evaluation_the_longest(trained):
  variables, run = trained
  batch = tiny_batch()
  (training, _, _), (evaluation, _, _) = run(variables, batch)
  np.testing.assert_array_equal(training.drawn[:, 0], batch["label"])
  np.testing.assert_array_equal(evaluation.drawn[:, 0], evaluation.lengths.argmax(1))
  # Both are in one program, and may be computed apart; so here and below.
  close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
  close(training.lengths, evaluation.lengths)
  # Labels that are what the capsules say: then both draw the same.
  said = batch | {"label": jnp.asarray(evaluation.drawn[:, 0])}
  (training, _, _), (again, _, _) = run(variables, said)
  close(training.reconstruction, again.reconstruction)
  close(evaluation.reconstruction, again.reconstruction)


def test_reconstruction_teaches_the_capsule_of_the_class_alone():
  # With one iteration coupling is fixed, and no class reaches another through it.
  system, batch = tiny_system(routing_iterations=1), tiny_batch()
  variables = random_variables(system.module, batch, train=False)

  @compiled
  @jax.grad
  def gradient(params):
    output = system.module.apply({"params": params}, batch, train=True)
    # The first image, of class 0.
    return jnp.sum(jnp.square(output.reconstruction[0]))

  found = gradient(variables["params"])["class_capsules"]["maps"]
  assert np.abs(found[:, 0]).max() > 0
  np.testing.assert_array_equal(found[:, 1:], 0)  # they are multiplied by a mask of zeros


@pytest.mark.parametrize("iterations", [1, 3])
def test_gradient_through_the_last_iteration_alone(iterations):
  """Values are the same; gradients differ where there is more than one iteration."""
  batch = tiny_batch()
  found = []
  for kind in ("all", "last"):
    system = tiny_system(routing_gradient=kind, routing_iterations=iterations)
    variables = random_variables(system.module, batch, train=False)

    @compiled
    @jax.value_and_grad
    def run(params, system=system):
      output = system.module.apply({"params": params}, batch, train=True)
      return system.loss_terms(output, batch, 0)["margin"]

    found.append(run(variables["params"]))
  (first, of_all), (second, of_last) = found
  assert float(first) == pytest.approx(float(second), rel=1e-6)
  of_all, of_last = (gradient["class_capsules"]["maps"] for gradient in (of_all, of_last))
  # Numbers up to 0.04 in two programs; of three iterations they differ by up to 0.005.
  same = np.allclose(of_all, of_last, rtol=1e-4, atol=1e-6)
  assert same == (iterations == 1)


def test_two_labels_have_a_reconstruction_each():
  system, batch = tiny_system(num_labels=2), tiny_batch(num_labels=2)
  check_system(system, ImageSpec(CANVAS, 1, CLASSES, 2), BATCH)
  variables = random_variables(system.module, batch, train=False)

  @compiled
  def run(batch):
    outputs = [system.module.apply(variables, batch, train=train) for train in (True, False)]
    return [
      (output, system.loss_terms(output, batch, 0), system.metrics(output, batch))
      for output in outputs
    ]

  (training, terms, measures), (evaluation, _, _) = jax.device_get(run(batch))
  labels = np.stack([batch["label"], batch["other_label"]], axis=1)
  np.testing.assert_array_equal(training.drawn, labels)
  error = np.square(training.reconstruction - np.asarray(batch["sources"])).sum((1, 2, 3, 4))
  np.testing.assert_allclose(measures["squared_error"], error, rtol=1e-5)
  assert terms["reconstruction"] == pytest.approx(error.mean(), rel=1e-5)
  order = np.argsort(-training.lengths, axis=1)[:, :2]
  np.testing.assert_array_equal(np.sort(evaluation.drawn), np.sort(order))
  right = [len(set(label) & set(said)) / 2 for label, said in zip(labels, order, strict=True)]
  np.testing.assert_array_equal(measures["accuracy"], right)
  again = in_order_of(jnp.asarray(labels), jnp.asarray(evaluation.drawn))
  np.testing.assert_array_equal(again, evaluation.drawn)


def test_answers_stand_in_the_place_of_the_label_that_they_are():
  labels = jnp.array([[1, 2], [1, 2], [1, 2], [1, 2], [1, 2]])
  said = jnp.array([[1, 2], [2, 1], [5, 1], [2, 5], [5, 6]])
  expected = [[1, 2], [1, 2], [1, 5], [5, 2], [5, 6]]
  np.testing.assert_array_equal(in_order_of(labels, said), expected)
  np.testing.assert_array_equal(in_order_of(labels[:, :1], said[:, :1]), said[:, :1])


def test_pictures(trained):
  variables, _ = trained
  system, batch = tiny_system(), tiny_batch()
  drawn = jax.device_get(jax.jit(system.pictures)(variables, batch))
  assert set(drawn) == {"class_reconstructions", "capsule_dimensions", "coupling"}
  perturbed = drawn["capsule_dimensions"]["perturbed"]
  assert perturbed.shape == (3, SIZE, len(OFFSETS), CANVAS, CANVAS, 1)
  middle = list(OFFSETS).index(0.0)
  reconstruction = drawn["class_reconstructions"]["reconstruction"]
  for d in range(SIZE):  # without a change each is the reconstruction
    np.testing.assert_allclose(perturbed[:, d, middle], reconstruction[:3], rtol=1e-5)
  # A change of one number, as the decoder sees it.
  output = system.module.apply(variables, batch, train=False)
  changed = np.zeros((CLASSES, SIZE), np.float32)
  said = int(output.drawn[1, 0])
  np.testing.assert_allclose(reconstruction, output.reconstruction[:, 0], rtol=1e-5)
  fed = {name: drawn["class_reconstructions"][name] for name in ("image", "label", "predicted")}
  expected = {"image": batch["image"], "label": batch["label"], "predicted": output.drawn[:, 0]}
  jax.tree.map(np.testing.assert_array_equal, fed, expected)
  changed[said] = output.routing.parents[1, said]
  changed[said, 2] += OFFSETS[-1]
  decoder = variables["params"]["decoder"]
  hidden = jax.nn.relu(
    changed.reshape(-1) @ decoder["dense_0"]["kernel"] + decoder["dense_0"]["bias"]
  )
  pixels = jax.nn.sigmoid(hidden @ decoder["dense_1"]["kernel"] + decoder["dense_1"]["bias"])
  np.testing.assert_allclose(perturbed[1, 2, -1].reshape(-1), pixels, rtol=1e-4, atol=1e-5)
  # Of the first example, by iteration; couplings start even, which agreements are not.
  fed, routing = drawn["coupling"], output.routing
  np.testing.assert_array_equal(fed["image"], batch["image"][0])
  np.testing.assert_allclose(fed["coupling"], routing.coupling[0], rtol=1e-5)
  np.testing.assert_allclose(fed["agreement"], routing.agreement[0], rtol=1e-4, atol=1e-6)
  np.testing.assert_allclose(fed["coupling"][0], 1 / CLASSES, rtol=1e-6)
  others = np.abs(routing.coupling[1:] - routing.coupling[:1]).max(axis=(1, 2, 3))
  assert (others > 1e-3).all()


def test_numbers_are_changed_by_up_to_a_quarter():
  """Sabour, Frosst and Hinton 2017, section 5.1: in steps of 0.05."""
  expected = [-0.25, -0.2, -0.15, -0.1, -0.05, 0, 0.05, 0.1, 0.15, 0.2, 0.25]
  np.testing.assert_allclose(OFFSETS, expected, atol=1e-7)


def test_lengths_are_the_scores_of_classes():
  lengths = jnp.array([[0.25, 0.9, 0.5], [0.75, 0.1, 0.0]])
  blank = jnp.zeros(0)
  classify = tiny_system().classify
  np.testing.assert_array_equal(classify(CapsNetOutput(lengths, blank, blank, blank)), lengths)


def test_maps_to_classes_start_as_in_the_release():
  """Normal with a deviation of 0.1, cut at two of them, which leaves 0.8796 of it."""
  layer = ClassCapsules(num_classes=10, features=16, iterations=1, through_all=True)
  maps = jax.jit(layer.init)(jax.random.key(0), jnp.zeros((1, 20, 8)))["params"]["maps"]
  assert maps.shape == (20, 10, 8, 16)
  assert 0.199 < np.abs(maps).max() < 0.2 + 1e-6  # rounding of the largest
  # Of 25,600 numbers: four standard errors.
  assert np.std(maps) == pytest.approx(0.08796, rel=0.02)
  assert abs(np.mean(maps)) < 0.0022


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"routing_gradient": "some"}, "config.model.routing_gradient must be one of all, last"),
    ({"primary_kernel": 9}, r"config\.model\.primary_kernel 9, .*\(10 -> 8 -> 0\)"),
    ({"primary_stride": 9}, r"config\.model\.primary_stride 9 .*features see .* of the pixels"),
  ],
)
def test_bad_values_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    tiny_system(**changes)


def test_bad_margins_and_keys_are_refused():
  with pytest.raises(ValueError, match=r"absent_margin must be from 0 to 1; it is -0.1"):
    tiny_system(loss=LOSS | {"absent_margin": -0.1})
  with pytest.raises(ValueError, match=r"unknown keys \['routing'\]"):
    tiny_system(routing=3)
