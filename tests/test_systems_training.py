"""CapsNet and matrix capsules in training and report.

For LeNet-5 see test_reliability.py, for probabilistic capsules test_models_probabilistic.py.
"""

import importlib
import json

import numpy as np
import pytest

from scae_jax.evaluation import report
from scae_jax.figures import FIGURES
from scae_jax.training.loop import train
from scae_jax.training.reporting import report_run
from tests.runs import assert_golden, metrics, on_eight_digits

CADENCE = {
  **dict.fromkeys(("train.log_every", "train.eval_every", "train.steps_per_dispatch"), 12),
  "train.num_steps": 24,
  "train.batch_size": 16,
  "train.checkpoint_every": 24,
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
  "capsnet": ("capsnet", CAPSNET),
  "overlaid": ("capsnet", CAPSNET | OVERLAY),
  "matrix": ("matrix_capsules", MATRIX | {"data.normalize": True}),
}
# Plain CapsNet has the golden step below, and its pictures test_models_supervised.py.
DRAWN = {"overlaid": {"overlaid_reconstructions", "capsule_dimensions"}, "matrix": set()}


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("name", DRAWN)
def test_it_learns_and_is_reported(name, tmp_path, monkeypatch):
  """The loss on held-out digits falls, and the report has its figures and numbers."""
  file, changes = SYSTEMS[name]
  drawn = []

  def noted(figure, draw):
    def note_and_draw(*arguments, **options):
      drawn.append(figure)
      return draw(*arguments, **options)

    return note_and_draw

  monkeypatch.setattr(
    report, "draw_figures", lambda figures: {f.name: f.draw() and b"" for f in figures}
  )
  for figure, draw in FIGURES.items():
    monkeypatch.setitem(FIGURES, figure, noted(figure, draw))
  config = importlib.import_module(f"configs.{file}").get_config("digits")
  config.update_from_flattened_dict(CADENCE | changes)
  run = train(config.lock(), tmp_path)
  held_out = [line["total"] for line in metrics(tmp_path) if line["split"] == "test"]
  assert held_out[-1] < held_out[0]
  report_run(run, tmp_path)
  assert DRAWN[name] | {"coupling", "confusion", "reliability"} <= set(drawn)
  written = json.loads((tmp_path / "evaluation" / "metrics.json").read_text())
  if name == "overlaid":
    assert set(written["mean"]) >= {"accuracy", "error", "both right"}
    return
  scores = written["classification"]
  assert scores["accuracy"] == pytest.approx(1 - scores["error"])
  # Of the report, on the same digits as the metric.
  assert scores["accuracy"] == pytest.approx(written["metrics"]["accuracy"], abs=1e-6)
  assert np.sum(scores["confusion"]) == 40


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
  file, changes = SYSTEMS[name]
  config = importlib.import_module(f"configs.{file}").get_config("digits")
  config.update_from_flattened_dict(changes)
  assert_golden(on_eight_digits(config, 20), GOLDEN[name])
