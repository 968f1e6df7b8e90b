"""experiments/routing.py on tiny probabilistic capsules."""

import dataclasses
import json

import numpy as np
import pytest

from configs import probabilistic
from experiments import one_run
from experiments import routing as command
from scae_jax.data.constellations import SceneOptions
from scae_jax.data.dataset import Dataset, Split
from scae_jax.data.scenes import Scenes
from scae_jax.training.build import Run
from scae_jax.training.config import read_settings
from tests.test_models_generative_pictures import (
  CANVAS,
  OBJECTS,
  PARTS,
  batch,
  generative,
  system,
  variables,
)

__all__ = ["batch", "generative", "system", "variables"]  # fixtures

NUM_IMAGES = 5


@pytest.fixture
def opened(monkeypatch, system, variables):
  """The command finds a run, its system changed."""
  config = probabilistic.get_config()
  config.data.canvas = CANVAS
  config.evaluation.batch_size = 2  # and one image left
  images = np.random.RandomState(0).randint(0, 255, (NUM_IMAGES, 16, 16, 1), np.uint8)
  split = Split(images, np.arange(NUM_IMAGES, dtype=np.int32) % 3)
  noise = Dataset("noise", ("a", "b", "c"), {"train": split, "test": split})
  monkeypatch.setattr(one_run, "load_settings", lambda workdir, changes: config)
  monkeypatch.setattr(one_run, "keep_compiled", lambda folder: None)

  def open_with(dataset=noise, **changes):
    fed = dataclasses.replace(system, **changes)
    made = Run(read_settings(config), fed, dataset, {3: variables}, 7, is_latest=True)
    monkeypatch.setattr(one_run, "open_run", lambda *arguments: made)

  return open_with


def main(monkeypatch, *arguments):
  monkeypatch.setattr("sys.argv", ["routing", *map(str, arguments)])
  command.main()


def test_the_command_writes_what_varies(opened, monkeypatch, tmp_path, capsys, generative):
  opened()
  measured = {}
  measure = command.measure_routing
  monkeypatch.setattr(
    command, "measure_routing", lambda **arrays: measure(**measured.setdefault("arrays", arrays))
  )
  main(monkeypatch, tmp_path / "run", tmp_path / "out")
  # The image that fills the last batch is left out.
  assert {len(array) for array in measured["arrays"].values()} == {NUM_IMAGES}
  record = json.loads((tmp_path / "out" / "routing-run.json").read_text())
  assert (record["step"], record["seed"]) == (7, 3)
  assert record["scored_on"] == {"dataset": "noise", "split": "test", "examples": NUM_IMAGES}
  assert [len(record["parts"]), len(record["objects"])] == [PARTS, OBJECTS]
  shares = [5 * part["on"] for part in record["parts"]]
  np.testing.assert_allclose(shares, np.round(shares), atol=1e-6)
  assert any(shares)
  assert sum(one["wins"] for one in record["objects"]) <= sum(shares) / 5 + 1e-6
  expected = np.exp(generative.relations()[0].affinity_logits).max(axis=0)
  np.testing.assert_allclose(record["affinities"], expected, rtol=1e-5)
  text = (tmp_path / "out" / "routing-run.md").read_text()
  assert text in capsys.readouterr().out
  assert record["command"] in text
  assert f"of {PARTS} parts" in text
  assert text.count("\n| ") == 2 + PARTS + sum(
    one["wins"] >= 0.01 or one["on"] > 0 for one in record["objects"]
  )


def test_what_has_no_routing_is_refused(opened, monkeypatch, tmp_path, capsys):
  scenes = Scenes(SceneOptions(("square",), 0.5, 0.0, 1.0, 1.0, 2.0, 0.0, 0))
  for changes, message in (
    ({"poses": None}, "has no poses"),
    ({"pictures": lambda variables, batch: {}}, "no parts that choose among objects"),
    ({"dataset": scenes}, "generated scenes has no parts"),
  ):
    opened(**changes)
    with pytest.raises(SystemExit) as stopped:
      main(monkeypatch, tmp_path / "run", tmp_path / "out")
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
