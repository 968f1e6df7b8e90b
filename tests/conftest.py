"""Every test runs with four CPU devices, strict broadcasting and checked key use."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ.setdefault("MPLBACKEND", "Agg")

import pathlib

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def tfds_dir() -> str:
  """Folder with real prepared data sets: `TFDS_DATA_DIR`, or shared/tfds beside the checkout."""
  candidates = [os.environ.get("TFDS_DATA_DIR"), ROOT.parent / "shared" / "tfds"]
  for candidate in candidates:
    if candidate and (pathlib.Path(candidate) / "mnist").is_dir():
      return str(candidate)
  pytest.skip("no prepared TFDS data: set TFDS_DATA_DIR to a folder that has mnist")
