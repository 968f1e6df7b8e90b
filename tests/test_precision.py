"""What a program that has switched JAX to double precision gets: the same, in single precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scae_jax
from scae_jax.training.loop import train
from scae_jax.training.reporting import report_run
from scae_jax.training.run import open_run
from tests.runs import assert_same_run, stop_after
from tests.tiny import TINY, tiny
from tests.toy_system import toy_config


@pytest.mark.parametrize("module", TINY, ids=lambda module: module.__name__.rpartition(".")[2])
def test_parameters_are_float32(module):
  system = tiny(module)
  keys = {"params": jax.random.key(0), "noise": jax.random.key(1)}
  batch = TINY[module][2].blank_batch(2)
  with jax.enable_x64(True):
    params = jax.eval_shape(lambda: system.module.init(keys, batch, train=True))
  assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float32)}


def test_a_run_is_the_same_in_double_precision(tmp_path):
  train(toy_config(), tmp_path / "single")
  images = np.random.RandomState(0).uniform(size=(3, 16, 16)).astype(np.float32)
  expected = scae_jax.load(tmp_path / "single").encode(images)
  with jax.enable_x64(True):
    stop_after(3, toy_config(), tmp_path / "double", r"\b12\D+24\b")
    train(toy_config(), tmp_path / "double")  # resumed
    report_run(open_run(tmp_path / "double"), tmp_path / "double")
    encoding = scae_jax.load(tmp_path / "double").encode(images)
    assert jnp.zeros(()).dtype == jnp.float64  # the program's own arrays
  assert_same_run(tmp_path / "double", tmp_path / "single")
  np.testing.assert_array_equal(encoding.features["code"], expected.features["code"])
  assert encoding.features["code"].dtype == np.float32
