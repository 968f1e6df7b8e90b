"""The number of compilations, and the folder of compiled programs.

That programs are kept there: test_training_process.py.
"""

import logging
import pathlib

import jax
import pytest

from scae_jax.evaluation.evaluators import evaluate_features
from scae_jax.evaluation.report import Evaluated, write_reports
from scae_jax.training.hosts import keep_compiled
from scae_jax.training.loop import train
from tests.toy_system import toy_config

KEYS = ("jax_compilation_cache_dir", "jax_enable_compilation_cache")


@pytest.fixture(autouse=True)
def as_before():
  before = {key: getattr(jax.config, key) for key in KEYS}
  yield
  for key, value in before.items():
    jax.config.update(key, value)


def test_compilation_cache_is_the_given_folder_or_the_environments(monkeypatch):
  home = pathlib.Path.home()
  both = {"JAX_COMPILATION_CACHE_DIR": "/jax", "SCAE_JAX_CACHE": "/ours"}
  for folder, environment, expected in (
    ("~/here", both, home / "here"),
    ("", both, "/jax"),
    ("", {"SCAE_JAX_CACHE": "/ours"}, "/ours/compiled"),
    ("", {}, home / ".cache" / "scae_jax" / "compiled"),
  ):
    for name in both:
      monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
      monkeypatch.setenv(name, value)
    keep_compiled(folder)
    assert jax.config.jax_compilation_cache_dir == str(expected)
    assert jax.config.jax_enable_compilation_cache
  keep_compiled("off")
  assert not jax.config.jax_enable_compilation_cache
  assert jax.config.jax_compilation_cache_dir == str(expected)


def test_step_and_evaluation_are_compiled_once_each(tmp_path, caplog):
  """Also where the last dispatch of 22 steps is shorter and the run is resumed and extended."""
  config = {"train__steps_per_dispatch": 4, "train__log_every": 8, "train__eval_every": 8}
  config |= {"train__checkpoint_every": 8, "optimizer__schedule": "constant"}
  with jax.log_compiles(), caplog.at_level(logging.WARNING, "jax"):
    train(toy_config(train__num_steps=22, **config), tmp_path)
    assert compilations(caplog) == {"dispatch": 1, "heldout": 1}
    caplog.clear()
    run = train(toy_config(train__num_steps=30, **config), tmp_path)
    assert compilations(caplog) == {"dispatch": 1, "heldout": 1}
    caplog.clear()
    evaluated = Evaluated(run.system, run.variables, step=30, batch_size=50, max_examples=90)
    items = evaluate_features(evaluated, run.dataset, run.dataset, "test", 18)
    write_reports(tmp_path, evaluated, items)
    # The last batch of both splits is filled up.
    assert compilations(caplog) == {"encode_batch": 1, "_measure_batch": 1}


def compilations(caplog) -> dict[str, int]:
  names = ("dispatch", "heldout", "encode_batch", "_measure_batch")
  messages = [record.getMessage() for record in caplog.records]
  counts = {name: sum(f"Compiling jit({name}) " in m for m in messages) for name in names}
  return {name: count for name, count in counts.items() if count}
