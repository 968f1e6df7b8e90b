"""Where compiled programs are kept. That they are: tests/test_training_process.py."""

import pathlib

import jax
import pytest

from scae_jax.training.compilation import keep_compiled

KEYS = ("jax_compilation_cache_dir", "jax_enable_compilation_cache")


@pytest.fixture(autouse=True)
def as_before():
  before = {key: getattr(jax.config, key) for key in KEYS}
  yield
  for key, value in before.items():
    jax.config.update(key, value)


@pytest.mark.parametrize(
  ("folder", "environment", "expected"),
  [
    ("/given", {"JAX_COMPILATION_CACHE_DIR": "/jax", "SCAE_JAX_CACHE": "/ours"}, "/given"),
    ("", {"JAX_COMPILATION_CACHE_DIR": "/jax", "SCAE_JAX_CACHE": "/ours"}, "/jax"),
    ("", {"SCAE_JAX_CACHE": "/ours"}, "/ours/compiled"),
    ("", {}, str(pathlib.Path.home() / ".cache" / "scae_jax" / "compiled")),
    ("~/here", {}, str(pathlib.Path.home() / "here")),
  ],
)
def test_folder_is_given_or_from_the_environment(folder, environment, expected, monkeypatch):
  for name in ("JAX_COMPILATION_CACHE_DIR", "SCAE_JAX_CACHE"):
    monkeypatch.delenv(name, raising=False)
  for name, value in environment.items():
    monkeypatch.setenv(name, value)
  keep_compiled(folder)
  assert jax.config.jax_compilation_cache_dir == expected
  assert jax.config.jax_enable_compilation_cache


def test_off_keeps_nothing():
  before = jax.config.jax_compilation_cache_dir
  keep_compiled("off")
  assert not jax.config.jax_enable_compilation_cache
  assert jax.config.jax_compilation_cache_dir == before
