"""Collectors: every example once, in order, compiled once, without noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from scae_jax.evaluation.collect import feature_collector
from tests.stand_ins import stub


class Toy(nn.Module):
  """Multiplies the mean of every column by a parameter; asks for a key only in training."""

  @nn.compact
  def __call__(self, batch, *, train):
    scale = self.param("scale", nn.initializers.constant(2.0), ())
    noise = jax.random.uniform(self.make_rng("noise")) if train else 0.0
    return scale * jnp.mean(batch["image"], axis=(1, 3)) + noise


def toy(calls=None, **changes):
  def features(columns):
    if calls is not None:
      calls.append(columns.shape)  # runs once a compilation
    return {"columns": columns, "sum": columns.sum(1, keepdims=True)}

  def metrics(output, batch):
    return {"label_squared": batch["label"] ** 2}

  return stub(Toy(), **{"features": features, "metrics": metrics, **changes})


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
  collect = feature_collector(toy(calls), canvas=6, batch_size=4)
  for n in (4, 7, 8):
    split = make_split(n)
    on_device = {name: jnp.asarray(array) for name, array in split.items()}
    for found in (collect(VARIABLES, split), collect(VARIABLES, on_device)):
      features, expected = found["features"], expected_columns(split)
      assert features["columns"].dtype == np.float32
      # float32 of means of at most 24 numbers
      np.testing.assert_allclose(features["columns"], expected, rtol=1e-5)
      np.testing.assert_allclose(features["sum"][:, 0], expected.sum(1), rtol=1e-5)
      np.testing.assert_array_equal(found["metrics"]["label_squared"], np.arange(n) ** 2)
  rows = np.array([5, 0, 3, 3, 6])  # in their order, from the whole split
  found = collect(VARIABLES, split, rows)
  np.testing.assert_array_equal(found["metrics"]["label_squared"], rows**2)
  np.testing.assert_allclose(found["features"]["columns"], expected[rows], rtol=1e-5)
  assert calls == [(4, 6)]


def test_readings_come_beside_features_in_float32():
  split = make_split(5)
  system = toy(probe_features=lambda output: {"minus": -output})
  found = feature_collector(system, canvas=6, batch_size=4)(VARIABLES, split)
  assert (set(found["features"]), set(found["probe_features"])) == ({"columns", "sum"}, {"minus"})
  # Both are in one program, and may be computed apart.
  np.testing.assert_allclose(
    found["probe_features"]["minus"], -found["features"]["columns"], rtol=1e-6
  )
  assert feature_collector(toy(), canvas=6, batch_size=4)(VARIABLES, split)["probe_features"] == {}
  system = toy(features=lambda output: {"half": output.astype(jnp.bfloat16)})
  found = feature_collector(system, canvas=6, batch_size=2)(VARIABLES, make_split(3))
  assert found["features"]["half"].dtype == np.float32


def test_images_that_have_statistics_are_normalised():
  split, mean, std = make_split(5), np.linspace(0.2, 0.6, 5), np.linspace(0.1, 0.3, 5)
  expected = (expected_columns(split) - 3.0 * mean[:, None]) / std[:, None]
  split |= {"mean": np.float32(mean), "std": np.float32(std)}
  found = feature_collector(toy(), canvas=6, batch_size=4)(VARIABLES, split)
  np.testing.assert_allclose(found["features"]["columns"], expected, rtol=1e-4, atol=1e-5)


def test_a_batch_has_at_least_one_example_and_no_more_than_there_are():
  calls = []
  feature_collector(toy(calls), canvas=6, batch_size=10**9)(VARIABLES, make_split(3))
  assert calls == [(3, 6)]
  with pytest.raises(ValueError, match=r"batch_size.* 0"):
    feature_collector(toy(), canvas=6, batch_size=0)(VARIABLES, make_split(2))
