"""Encoding and measuring: every example once, in order, compiled once, without noise."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from scae_jax.data.batches import evaluation_batch
from scae_jax.evaluation.encode import encode_dataset, measure_dataset
from scae_jax.models.system import Encoding
from tests.stand_ins import stub

MAKE_BATCH = functools.partial(evaluation_batch, canvas=6)


class Toy(nn.Module):
  """Multiplies the mean of every column by a parameter; asks for a key only in training."""

  @nn.compact
  def __call__(self, batch, *, train):
    scale = self.param("scale", nn.initializers.constant(2.0), ())
    noise = jax.random.uniform(self.make_rng("noise")) if train else 0.0
    return scale * jnp.mean(batch["image"], axis=(1, 3)) + noise


def toy(calls=None, **fields):
  def encoding(columns):
    if calls is not None:
      calls.append(columns.shape)  # runs once a compilation
    features = {"columns": columns, "sum": columns.sum(1, keepdims=True)}
    more = {name: make(columns) for name, make in fields.items()}
    return Encoding(**{"features": features, "details": {"much": columns}} | more)

  def metrics(output, batch):
    return {"label_squared": batch["label"] ** 2}

  return stub(Toy(), encoding=encoding, metrics=metrics)


VARIABLES = {"params": {"scale": jnp.float32(3.0)}}


def make_split(n):
  images = np.random.RandomState(0).randint(0, 256, (n, 4, 4, 1)).astype(np.uint8)
  return {"image": images, "label": np.arange(n, dtype=np.int32)}


def expected_columns(split, canvas=6):
  """Images centred on the canvas, by hand."""
  padded = np.zeros((len(split["image"]), canvas, canvas, 1))
  padded[:, 1:5, 1:5] = split["image"] / 255
  return 3.0 * padded.mean(axis=(1, 3))


def test_every_example_once_and_in_order_by_one_compilation():
  """Of splits that fill batches and do not, on the host and on the device."""
  calls = []
  system = toy(calls)
  for n in (4, 7, 8):
    split = make_split(n)
    on_device = {name: jnp.asarray(array) for name, array in split.items()}
    for examples in (split, on_device):
      measured_set = measure_dataset(system, VARIABLES, examples, MAKE_BATCH, batch_size=4)
      features, expected = measured_set.encoding.features, expected_columns(split)
      assert features["columns"].dtype == np.float32
      # float32 of means of at most 24 numbers
      np.testing.assert_allclose(features["columns"], expected, rtol=1e-5)
      np.testing.assert_allclose(features["sum"][:, 0], expected.sum(1), rtol=1e-5)
      np.testing.assert_array_equal(measured_set.metrics["label_squared"], np.arange(n) ** 2)
      np.testing.assert_array_equal(measured_set.labels, np.arange(n)[:, None])
  assert calls == [(4, 6)]
  rows = np.array([5, 0, 3, 3, 6])  # in their order, from the whole split
  measured_set = measure_dataset(system, VARIABLES, split, MAKE_BATCH, batch_size=4, rows=rows)
  np.testing.assert_array_equal(measured_set.metrics["label_squared"], rows**2)
  np.testing.assert_allclose(measured_set.encoding.features["columns"], expected[rows], rtol=1e-5)
  for changed in ({}, {"label": -split["label"]}):  # labels are not used
    encoding = encode_dataset(system, VARIABLES, split | changed, MAKE_BATCH, batch_size=4)
    np.testing.assert_allclose(encoding.features["columns"], expected, rtol=1e-5)
  assert calls == [(4, 6)] * 2


def test_an_encoding_is_in_float32_and_without_details():
  """Which of a large data set would fill the memory."""
  system = toy(
    probe_features=lambda columns: {"half": columns.astype(jnp.bfloat16)},
    part_winner=lambda columns: jnp.argmax(columns, axis=1)[:, None],
  )
  split = make_split(5)
  encoding = encode_dataset(system, VARIABLES, split, MAKE_BATCH, batch_size=2)
  measured = measure_dataset(system, VARIABLES, split, MAKE_BATCH, batch_size=2)
  for measured_set in (encoding, measured.encoding):
    assert measured_set.details == {}
    assert measured_set.probe_features["half"].dtype == np.float32
    assert measured_set.part_winner.dtype == np.int32
    np.testing.assert_allclose(
      measured_set.probe_features["half"], measured_set.features["columns"], rtol=2**-7
    )


def test_images_that_have_statistics_are_normalised():
  split, mean, std = make_split(5), np.linspace(0.2, 0.6, 5), np.linspace(0.1, 0.3, 5)
  expected = (expected_columns(split) - 3.0 * mean[:, None]) / std[:, None]
  split |= {"mean": np.float32(mean), "std": np.float32(std)}
  measured_set = encode_dataset(toy(), VARIABLES, split, MAKE_BATCH, batch_size=4)
  np.testing.assert_allclose(measured_set.features["columns"], expected, rtol=1e-4, atol=1e-5)


def test_a_batch_has_at_least_one_example_and_no_more_than_there_are():
  calls = []
  encode_dataset(toy(calls), VARIABLES, make_split(3), MAKE_BATCH, batch_size=10**9)
  assert calls == [(3, 6)]
  with pytest.raises(ValueError, match=r"batch_size.* 0"):
    encode_dataset(toy(), VARIABLES, make_split(2), MAKE_BATCH, batch_size=0)
