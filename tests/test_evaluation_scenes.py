"""The report on scenes, of a model that is told the answer: what is scored, drawn and refused."""

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from scae_jax.evaluation import evaluators
from scae_jax.evaluation.encode import mean_metrics
from scae_jax.evaluation.ransac import ransac
from scae_jax.evaluation.report import Evaluated, write_reports
from scae_jax.evaluation.segmentation import segmentation
from scae_jax.figures import FIGURES
from scae_jax.models.system import Encoding
from tests.stand_ins import stub
from tests.toy_data import SCENES

COUNT = 12  # of test scenes, instead of 10,000


class BatchAndShift(nn.Module):
  """Gives the batch and its parameter back."""

  @nn.compact
  def __call__(self, batch, *, train):
    return batch, self.param("shift", nn.initializers.zeros, ())


def encoding(output):
  """The patterns themselves, where `shift` is 0; by predicted presence the third is missed."""
  batch, shift = output
  moved = jnp.where(batch["points"][..., 0] < shift, 0, batch["pattern"])
  return Encoding(point_winner=moved, groups=jnp.where(moved == 2, -1, moved))


SYSTEM = stub(
  BatchAndShift(),
  pictures=lambda variables, batch: {"constellations": dict(batch)},
  encoding=encoding,
)
VARIABLES = {3: {"params": {"shift": jnp.float32(-2)}}, 4: {"params": {"shift": jnp.float32(0)}}}


@pytest.fixture(autouse=True)
def few_scenes_not_drawn(monkeypatch, not_drawn):
  """Few test scenes, which are not drawn."""
  monkeypatch.setattr(evaluators, "NUM_TEST", COUNT)
  monkeypatch.setattr(
    "scae_jax.evaluation.report.read_pictures",
    lambda system, variables, batch: {"constellations": batch},
  )
  monkeypatch.setitem(FIGURES, "constellations", lambda **batch: batch)


def test_scenes_with_too_many_points_have_no_ransac(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(evaluators, "MAX_POINTS", SCENES.slots - 1)
  monkeypatch.setattr(evaluators, "ransac", None)
  for report in write(tmp_path).values():
    assert "ransac" not in report["segmentation"]["0"]
  assert "ransac" in capsys.readouterr().out


def write(directory, system=SYSTEM, variables=VARIABLES, **more):
  evaluated = Evaluated(system, variables, step=9, batch_size=5, **more)
  return write_reports(directory, evaluated, evaluators.evaluate_scenes(evaluated, SCENES))


def scores(scenes, capsule):
  return mean_metrics(segmentation(scenes["presence"], scenes["pattern"], capsule))


def test_every_figure_of_every_seed(tmp_path, capsys):
  reports = write(tmp_path)
  lines = capsys.readouterr().out.splitlines()
  assert sum(line.startswith("| accuracy, ") for line in lines) == 9  # jitters and presences
  assert any(re.search(rf"\b{COUNT}\b.*\bconstellations test\b.* 9\b", line) for line in lines)
  assert "ransac" in lines[-1]
  assert list(reports) == [3, 4]
  for seed, report in reports.items():
    assert (report["seed"], report["step"], report["max_examples"]) == (seed, 9, 0)
    assert report["scored_on"] == {"dataset": "constellations", "split": "test", "examples": COUNT}
    assert list(report["segmentation"]) == ["0", "0.1", "0.25"]
    for jitter, kinds in report["segmentation"].items():
      scenes = SCENES.test_scenes(float(jitter), COUNT)
      answers = encoding((scenes, VARIABLES[seed]["params"]["shift"]))
      groups = {"true_presence": answers.point_winner, "predicted_presence": answers.groups}
      for name, capsule in groups.items():
        assert kinds[name] == scores(scenes, np.asarray(capsule)), (seed, jitter, name)
      options = dataclasses.replace(SCENES, jitter=float(jitter))  # which RANSAC knows
      expected = scores(scenes, ransac(scenes["points"], scenes["presence"], options))
      assert kinds["ransac"] == expected
      assert expected["accuracy"] > 0.9
  perfect, half = (reports[seed]["segmentation"]["0"]["true_presence"] for seed in (3, 4))
  assert perfect["accuracy"] == 1 > half["accuracy"]


def test_first_scenes_without_jitter_are_drawn_and_each_seeds_own_curves(tmp_path, not_drawn):
  history = tmp_path / "metrics.jsonl"
  line = {"step": 8, "split": "train", "total": 2.5}
  line["seeds"] = {"3": {"total": 2.0}, "4": {"total": 3.0}}
  history.write_text(json.dumps(line) + "\n")
  seen = []
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(FIGURES, "training_curves", lambda steps, values: seen.append((steps, values)))
    write(tmp_path / "evaluation", history=history)
    for drawers in not_drawn:
      pictured = drawers["constellations"]()
      expected = SCENES.test_scenes(0.0, 8)
      jax.tree.map(np.testing.assert_array_equal, dict(pictured), expected)
      drawers["training_curves"]()
  assert [(steps.tolist(), values["train/total"].tolist()) for steps, values in seen] == [
    ([8], [2.0]),
    ([8], [3.0]),
  ]


def test_a_system_that_does_not_segment_is_refused(tmp_path):
  system = dataclasses.replace(SYSTEM, encoding=lambda output: Encoding())
  with pytest.raises(ValueError, match="point_winner"):
    write(tmp_path, system)
  assert not list(tmp_path.rglob("*.json"))
