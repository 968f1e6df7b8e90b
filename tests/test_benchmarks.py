"""The benchmarks run at tiny sizes; what they measure there means nothing."""

import json
import sys

import numpy as np
import pytest

from benchmarks import measuring, step, warp
from configs import mnist
from scae_jax import warping
from scae_jax.models.system import DataSpec
from scae_jax.training.config import read_settings
from tests.test_scae_training import shrink


def test_warp_benchmark_times_every_variant_and_says_on_what(tmp_path, monkeypatch, capsys):
  out = tmp_path / "new" / "warp.json"
  sizes = ["--batch=2", "--parts=3", "--template=4", "--canvas=6", "--rounds=2"]
  monkeypatch.setattr(sys, "argv", ["warp.py", *sizes, f"--out={out}"])
  warp.main()
  record = json.loads(out.read_text())
  names = {f"{name}, {what}" for name in warp.VARIANTS for what in ("forward", "with gradient")}
  assert set(record["milliseconds"]) == names
  assert all(len(times) == 2 and min(times) > 0 for times in record["milliseconds"].values())
  assert record["settings"] == {"batch": 2, "parts": 3, "template": 4, "canvas": 6}
  assert {"commit", "hardware", "versions", "date"} <= set(record)
  assert "| bank, with gradient |" in capsys.readouterr().out


def test_warp_benchmark_refuses_a_variant_that_is_wrong(monkeypatch):
  monkeypatch.setitem(warp.VARIANTS, "tent", lambda *inputs: 1.01 * warp.bank(*inputs))
  sizes = ["--batch=2", "--parts=3", "--template=4", "--canvas=6", "--variants=bank,tent"]
  monkeypatch.setattr(sys, "argv", ["warp.py", *sizes])
  with pytest.raises(AssertionError, match="tent"):
    warp.main()


@pytest.mark.slow
def test_step_benchmark_times_the_step_and_its_parts():
  settings = read_settings(shrink(mnist.get_config("official"), num_steps=2, steps_per_dispatch=2))
  own = warping.warp_templates
  counts, times = step.measure(settings, DataSpec(canvas=18, channels=1, num_classes=10), rounds=1)
  assert warping.warp_templates is own
  assert {"whole step", "whole step, on map_coordinates", "optimiser"} <= set(times)
  assert {"warp, with gradient", "CNN, forward", "object decoder, with gradient"} <= set(times)
  assert all(np.isfinite(counts[name]) for name in counts)


def test_functions_take_turns():
  calls = []
  functions = {name: lambda name=name: calls.append(name) for name in "ab"}
  times = measuring.milliseconds(functions, rounds=2)
  assert calls == ["a", "b", "a", "b", "a", "b"]  # the first of each is not timed
  assert {name: len(values) for name, values in times.items()} == {"a": 2, "b": 2}
