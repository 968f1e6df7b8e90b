"""CapsNet and matrix capsules through training and report; for LeNet-5 see test_reliability.py."""

import functools
import importlib
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scae_jax.data.batches import evaluation_batch
from scae_jax.data.digits import load_digits
from scae_jax.evaluation import pictures
from scae_jax.figures import FIGURES
from scae_jax.models.system import ImageSpec
from scae_jax.training.config import read_settings
from scae_jax.training.loop import train
from scae_jax.training.optimizers import make_optimizer
from scae_jax.training.reporting import report_run
from scae_jax.training.state import initial_state
from scae_jax.training.step import update
from scae_jax.training.systems import make_system
from tests.test_scae_training import TEACHING, one_device

__all__ = ["one_device"]  # a fixture

CADENCE = {
  "train.num_steps": 24,
  "train.batch_size": 16,
  "train.log_every": 12,
  "train.eval_every": 12,
  "train.checkpoint_every": 24,
  "train.steps_per_dispatch": 12,
  "evaluation.batch_size": 40,
  "evaluation.max_examples": 40,
}
CAPSNET = {
  "model.conv_width": 4,
  "model.primary_types": 1,
  "model.class_features": 3,
  "model.decoder_widths": (8,),
}
MATRIX = {
  "model.conv_width": 4,
  "model.primary_types": 2,
  "model.first_types": 2,
  "model.second_types": 2,
  "model.routing_iterations": 2,
  "optimizer.schedule": "constant",
  "optimizer.learning_rate": 5e-3,
  "train.num_steps": 36,
  "train.checkpoint_every": 36,
}
OVERLAY = {"data.overlay": True, "train.seeds": 2}
SYSTEMS = {
  "capsnet": (
    "capsnet",
    CAPSNET,
    {"class_reconstructions", "capsule_dimensions", "coupling", "confusion", "reliability"},
  ),
  "overlaid": (
    "capsnet",
    CAPSNET | OVERLAY,
    {
      "overlaid_reconstructions",
      "capsule_dimensions",
      "coupling",
      "confusion",
      "reliability",
    },
  ),
  "matrix": (
    "matrix_capsules",
    MATRIX | {"data.normalize": True},
    {"coupling", "confusion", "reliability"},
  ),
}


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("name", SYSTEMS)
def test_it_learns_and_is_reported(name, tmp_path, monkeypatch):
  """The loss on held-out digits falls, and the report has its figures and numbers."""
  file, changes, figures = SYSTEMS[name]
  drawn = []
  monkeypatch.setattr(
    pictures, "save_figures", lambda folder, drawers: [draw() for draw in drawers.values()]
  )
  for figure, draw in FIGURES.items():
    monkeypatch.setitem(
      FIGURES, figure, lambda *args, f=figure, d=draw, **kw: drawn.append(f) or d(*args, **kw)
    )
  config = importlib.import_module(f"configs.{file}").get_config("digits")
  config.update_from_flattened_dict(CADENCE | changes)
  run = train(config.lock(), tmp_path)
  lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  held_out = [np.mean(line["total"]) for line in lines if line["split"] == "test"]
  assert held_out[-1] < held_out[0]
  report_run(run, tmp_path)
  assert figures <= set(drawn)
  metrics = json.loads((tmp_path / "evaluation" / "metrics.json").read_text())
  if name == "overlaid":
    assert set(metrics["mean"]) >= {"accuracy", "error", "both right"}
    return
  found = metrics["classification"]
  assert found["accuracy"] == pytest.approx(1 - found["error"])
  # Of the report, on the same digits as the measure.
  assert found["accuracy"] == pytest.approx(metrics["measures"]["accuracy"], abs=1e-6)
  assert np.sum(found["confusion"]) == 40


# Of the first step, and `after`: the total at the second, on the same batch.
GOLDEN = {
  "capsnet": {
    "margin": 0.80847412,
    "reconstruction": 72.507095,
    "total": 0.84472769,
    "grad_norm": 0.019583523,
    "after": 0.81645995,
  },
  "matrix": {
    "spread": 0.41909733,
    "total": 0.41909733,
    "grad_norm": 3.2577064,
    "after": 0.38029990,
  },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GOLDEN)
def test_golden_step(name):
  """What the first step sees of eight digits, and what it does to the total."""
  file, changes, _ = SYSTEMS[name]
  config = importlib.import_module(f"configs.{file}").get_config("digits")
  config.update_from_flattened_dict(changes)
  config.optimizer.learning_rate = 1e-2  # it has a short life
  settings, spec = read_settings(config), ImageSpec(canvas=20, channels=1, num_classes=10)
  system, optimizer = make_system(settings, spec), make_optimizer(settings.optimizer)
  examples = load_digits().splits["train"]
  split = {"image": jnp.asarray(examples.images[:8]), "label": jnp.asarray(examples.labels[:8])}
  batch = evaluation_batch(split, jnp.arange(8), canvas=20)
  state = jax.jit(lambda: initial_state(system, spec, optimizer, seed=0))()
  step = jax.jit(functools.partial(update, system, optimizer))
  state, first = step(state, batch, jax.random.key(1))
  _, second = step(state, batch, jax.random.key(1))
  actual = {term: float(value) for term, value in first["terms"].items()}
  actual |= {key: float(first[key]) for key in ("total", "grad_norm")}
  actual["after"] = float(second["total"])
  message = f"{TEACHING}{json.dumps(actual, indent=2)}"
  # As for the SCAE: float32 sums in another order, and Adam's steps by gradients of rounding.
  expected = {
    k: pytest.approx(v, rel=1e-3 if k == "after" else 1e-4) for k, v in GOLDEN[name].items()
  }
  assert actual == expected, message
