"""Supervised models, CapsNet and LeNet-5, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scae_jax.models import capsnet, cnn
from scae_jax.models.capsnet import OFFSETS, in_order_of
from scae_jax.models.system import ImageSpec
from scae_jax.training.build import check_system
from tests.references import correlate, reference_agreement
from tests.tiny import compiled, random_variables, tiny

CLASSES, CANVAS, BATCH, TYPES, NUMBERS, SIZE = 3, 10, 4, 2, 3, 5


def tiny_system(num_labels=1, **changes):
  return tiny(capsnet, ImageSpec(CANVAS, 1, CLASSES, num_labels), **changes)


def tiny_batch(num_labels=1):
  rng = np.random.RandomState(0)
  sources = rng.uniform(0, 0.5, (BATCH, num_labels, CANVAS, CANVAS, 1)).astype(np.float32)
  batch = {"image": sources.sum(1), "label": np.array([0, 2, 1, 1], np.int32)}
  if num_labels == 2:
    batch |= {"sources": sources, "other_label": np.array([1, 0, 2, 0], np.int32)}
  return jax.tree.map(jnp.asarray, batch)


def runner(num_labels):
  """Parameters, and a compiled function of parameters and batch.

  It returns output, terms and metrics in training, the same in evaluation, and pictures.
  """
  system = tiny_system(num_labels)
  variables = random_variables(system.module, tiny_batch(num_labels), train=False)

  @compiled
  def run(variables, batch):
    outputs = [system.module.apply(variables, batch, train=train) for train in (True, False)]
    results = [
      (output, system.loss_terms(output, batch, 0), system.metrics(output, batch))
      for output in outputs
    ]
    return *results, system.pictures(variables, batch)

  return variables, lambda variables, batch: jax.device_get(run(variables, batch))


@pytest.fixture(scope="module")
def trained():
  return runner(num_labels=1)


def decoded(params, capsules):
  """The pixels of capsules of which all but one are zero."""
  hidden, last = params["dense_0"], params["dense_1"]
  hidden = np.maximum(capsules.reshape(-1) @ hidden["kernel"] + hidden["bias"], 0)
  return 1 / (1 + np.exp(-(hidden @ last["kernel"] + last["bias"])))


def mean_margin(lengths, labels):
  """Sabour et al. 2017, equation 4, over examples that have one or two labels."""
  there = (labels[..., None] == np.arange(CLASSES)).any(axis=1)
  short, long = np.maximum(0, 0.9 - lengths), np.maximum(0, lengths - 0.1)
  return np.where(there, short**2, 0.5 * long**2).sum(axis=1).mean()


def test_capsules_and_reconstruction_against_numpy(trained):
  variables, run = trained
  batch, params = tiny_batch(), jax.device_get(variables["params"])
  output, terms, measures = run(variables, batch)[0]
  x = np.asarray(batch["image"])
  layer = params["convolution"]
  x = np.maximum(correlate(x, layer["kernel"], layer["bias"], 1), 0)
  layer = params["primary"]
  primary = correlate(x, layer["kernel"], layer["bias"], 2).reshape(BATCH, -1, NUMBERS)
  length = np.linalg.norm(primary, axis=-1, keepdims=True)
  primary = length**2 / (1 + length**2) * primary / length
  assert primary.shape[1] == 3 * 3 * TYPES
  maps = params["class_capsules"]["maps"]
  labels, error = np.asarray(batch["label"]), []
  for b in range(BATCH):
    predictions = np.einsum("nd,nkde->nke", primary[b], maps)
    capsules, coupling, _ = reference_agreement(predictions, 3)[-1]
    # Three rounds of float32 sums over 18 children.
    np.testing.assert_allclose(output.routing.parents[b], capsules, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(output.routing.coupling[b, -1], coupling, rtol=1e-4, atol=1e-5)
    lengths = np.linalg.norm(capsules, axis=1)
    np.testing.assert_allclose(output.lengths[b], lengths, rtol=1e-4)
    alone = np.zeros_like(capsules)
    alone[labels[b]] = capsules[labels[b]]
    drawn = decoded(params["decoder"], alone)
    np.testing.assert_allclose(output.reconstruction[b, 0].reshape(-1), drawn, rtol=1e-3, atol=1e-4)
    error.append(((drawn - np.asarray(batch["image"][b]).reshape(-1)) ** 2).sum())
  assert terms["margin"] == pytest.approx(mean_margin(output.lengths, labels[:, None]), rel=1e-5)
  assert terms["reconstruction"] == pytest.approx(np.mean(error), rel=1e-4)
  np.testing.assert_allclose(measures["squared_error"], error, rtol=1e-3)
  np.testing.assert_array_equal(measures["accuracy"], output.lengths.argmax(1) == labels)


def test_gradient_through_the_last_iteration_alone_on_request():
  for kind in ("all", "last"):
    module = tiny_system(routing_gradient=kind).module
    assert module.bind({}).class_capsules.through_all == (kind == "all")


def test_two_labels_have_a_reconstruction_each():
  check_system(tiny_system(num_labels=2), ImageSpec(CANVAS, 1, CLASSES, 2), BATCH)
  batch, (variables, run) = tiny_batch(num_labels=2), runner(num_labels=2)
  (training, terms, measures), (evaluation, _, _), _ = run(variables, batch)
  labels = np.stack([batch["label"], batch["other_label"]], axis=1)
  np.testing.assert_array_equal(training.drawn, labels)
  error = np.square(training.reconstruction - np.asarray(batch["sources"])).sum((1, 2, 3, 4))
  np.testing.assert_allclose(measures["squared_error"], error, rtol=1e-5)
  assert terms["reconstruction"] == pytest.approx(error.mean(), rel=1e-5)
  assert terms["margin"] == pytest.approx(mean_margin(training.lengths, labels), rel=1e-5)
  order = np.argsort(-training.lengths, axis=1)[:, :2]
  np.testing.assert_array_equal(np.sort(evaluation.drawn), np.sort(order))
  right = [len(set(label) & set(answer)) / 2 for label, answer in zip(labels, order, strict=True)]
  np.testing.assert_array_equal(measures["accuracy"], right)
  again = in_order_of(jnp.asarray(labels), jnp.asarray(evaluation.drawn))
  np.testing.assert_array_equal(again, evaluation.drawn)


def test_right_answers_are_ordered_as_their_labels():
  labels = jnp.array([[1, 2], [1, 2], [1, 2], [1, 2], [1, 2]])
  answers = jnp.array([[1, 2], [2, 1], [5, 1], [2, 5], [5, 6]])
  expected = [[1, 2], [1, 2], [1, 5], [5, 2], [5, 6]]
  np.testing.assert_array_equal(in_order_of(labels, answers), expected)
  np.testing.assert_array_equal(in_order_of(labels[:, :1], answers[:, :1]), answers[:, :1])


def test_pictures(trained):
  (variables, run), batch = trained, tiny_batch()
  _, (output, _, _), drawn = run(variables, batch)
  assert set(drawn) == {"class_reconstructions", "capsule_dimensions", "coupling"}
  perturbed = drawn["capsule_dimensions"]["perturbed"]
  assert perturbed.shape == (3, SIZE, len(OFFSETS), CANVAS, CANVAS, 1)
  middle = list(OFFSETS).index(0.0)
  reconstruction = drawn["class_reconstructions"]["reconstruction"]
  for d in range(SIZE):  # without a change each is the reconstruction
    np.testing.assert_allclose(perturbed[:, d, middle], reconstruction[:3], rtol=1e-5)
  # A change of one number, as the decoder sees it.
  changed = np.zeros((CLASSES, SIZE), np.float32)
  predicted_class = int(output.drawn[1, 0])
  np.testing.assert_allclose(reconstruction, output.reconstruction[:, 0], rtol=1e-5)
  fed = {name: drawn["class_reconstructions"][name] for name in ("image", "label", "predicted")}
  expected = {"image": batch["image"], "label": batch["label"], "predicted": output.drawn[:, 0]}
  jax.tree.map(np.testing.assert_array_equal, fed, expected)
  changed[predicted_class] = output.routing.parents[1, predicted_class]
  changed[predicted_class, 2] += OFFSETS[-1]
  pixels = decoded(jax.device_get(variables["params"]["decoder"]), changed)
  np.testing.assert_allclose(perturbed[1, 2, -1].reshape(-1), pixels, rtol=1e-4, atol=1e-5)
  # Of the first example, by iteration; couplings start even, which agreements are not.
  fed, routing = drawn["coupling"], output.routing
  np.testing.assert_array_equal(fed["image"], batch["image"][0])
  np.testing.assert_allclose(fed["coupling"], routing.coupling[0], rtol=1e-5)
  np.testing.assert_allclose(fed["agreement"], routing.agreement[0], rtol=1e-4, atol=1e-6)
  np.testing.assert_allclose(fed["coupling"][0], 1 / CLASSES, rtol=1e-6)
  others = np.abs(routing.coupling[1:] - routing.coupling[:1]).max(axis=(1, 2, 3))
  assert (others > 1e-3).all()


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
  np.testing.assert_allclose(system.encoding(output).scores, shares, rtol=1e-4, atol=1e-5)
  expected = -np.log(shares[np.arange(3), batch["label"]]).mean()
  terms = system.loss_terms(output, batch, 0)
  assert float(terms["cross_entropy"]) == pytest.approx(expected, rel=1e-4)
  # Of two labels each has half the weight.
  both = batch | {"other_label": jnp.array([1, 2, 0])}
  expected = (expected - np.log(shares[np.arange(3), both["other_label"]]).mean()) / 2
  assert float(system.loss_terms(output, both, 0)["cross_entropy"]) == pytest.approx(
    expected, rel=1e-4
  )


def test_dropout_is_in_training_alone_and_keeps_the_mean():
  """An affine layer follows: over many draws, its mean equals the output without dropout."""
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
