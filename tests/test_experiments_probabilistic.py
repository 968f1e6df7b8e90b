"""Commands on tiny probabilistic capsules: whether they route, and what an object draws."""

import dataclasses
import json

import numpy as np
import pytest

from configs import probabilistic
from experiments import one_run, routing, sample_object
from scae_jax.data.dataset import Dataset, Split
from scae_jax.training.build import Run
from scae_jax.training.config import read_settings
from tests import toy_system
from tests.test_models_generative_pictures import (
  CANVAS,
  OBJECTS,
  PARTS,
  batch,
  generative,
  system,
  variables,
)
from tests.test_models_generative_pictures import matrix as in_full
from tests.toy_system import toy_config, toy_data

__all__ = ["batch", "generative", "system", "variables"]  # fixtures

NUM_IMAGES = 5


@pytest.fixture
def opened(monkeypatch, system, variables):
  """The command finds a run of seed 3, or of others, its system changed."""
  config = probabilistic.get_config()
  config.data.canvas = CANVAS
  config.evaluation.batch_size = 2  # and one image left
  images = np.random.RandomState(0).randint(0, 255, (NUM_IMAGES, 16, 16, 1), np.uint8)
  split = Split(images, np.arange(NUM_IMAGES, dtype=np.int32) % 3)
  noise = Dataset("noise", ("a", "b", "c"), {"train": split, "test": split})
  monkeypatch.setattr(one_run, "load_settings", lambda workdir, changes: config)
  monkeypatch.setattr(one_run, "keep_compiled", lambda folder: None)

  def open_with(seeds=(3,), **changes):
    fed = dataclasses.replace(system, **changes)
    of_seeds = dict.fromkeys(seeds, variables)
    made = Run(read_settings(config), fed, noise, of_seeds, 7, is_latest=True)
    monkeypatch.setattr(one_run, "open_run", lambda *arguments: made)

  open_with()
  return open_with


def run_command(monkeypatch, command, *arguments):
  monkeypatch.setattr("sys.argv", ["command", *map(str, arguments)])
  command.main()


@pytest.mark.usefixtures("opened")
def test_routing_writes_what_varies(monkeypatch, tmp_path, capsys, generative):
  measured = {}
  measure = routing.measure_routing
  monkeypatch.setattr(
    routing, "measure_routing", lambda **arrays: measure(**measured.setdefault("arrays", arrays))
  )
  run_command(monkeypatch, routing, tmp_path / "run", tmp_path / "out")
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
  for changes, message in (
    ({"poses": None}, "has no poses"),
    ({"pictures": lambda variables, batch: {}}, "no parts that choose among objects"),
  ):
    opened(**changes)
    with pytest.raises(SystemExit) as stopped:
      run_command(monkeypatch, routing, tmp_path / "run", tmp_path / "out")
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("opened")
def test_sample_object_draws_the_object_at_its_pose(monkeypatch, tmp_path, capsys, generative):
  shown = []
  figure = sample_object.FIGURES["prior_samples"]

  def keep(pictures, title):
    shown.append((pictures, title))
    return figure(pictures, title)

  monkeypatch.setitem(sample_object.FIGURES, "prior_samples", keep)
  out = tmp_path / "new" / "object.png"
  flags = ("--turn=90", "--scale=0.8", "--shift", "0.3", "-0.1", "--samples=2", f"--out={out}")
  run_command(monkeypatch, sample_object, "runs/tiny", "--object=1", *flags)
  assert out.stat().st_size > 1000
  assert f"wrote {out}" in capsys.readouterr().out
  ((pictures, title),) = shown
  assert pictures.shape == (3, CANVAS, CANVAS, 1)
  for word in ("tiny, step 7: object 1", "90°", "× 0.8", "right 0.3, down -0.1", "samples"):
    assert word in title
  # Where its parts are expected: a quarter counter-clockwise, then the shift.
  relations = generative.relations()[0]
  pose = np.array([[0, 0.8, 0.3], [-0.8, 0, -0.1]])
  places = [(in_full(pose) @ in_full(np.eye(2, 3) + one))[:2, 2] for one in relations.offsets[1]]
  seen = [place for place in places if np.abs(place).max() < 0.8]
  assert seen
  for x, y in seen:
    column, row = (int((place + 1) / 2 * CANVAS) for place in (x, y))
    assert pictures[0, row - 2 : row + 3, column - 2 : column + 3].max() > 0.02
  assert np.abs(pictures[1] - pictures[2]).max() > 0.05  # samples differ


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (("--object=2",), f"--object must be 0 to {OBJECTS - 1}"),
    (("--object=-1",), "it is -1"),
    (("--object=0", "--scale=0"), "--scale must be above 0; it is 0"),
    (("--object=0", "--turn=nan"), "--turn and --shift must be finite"),
    (("--object=0", "--samples=100"), "--samples must be 0 to 99; it is 100"),
    (("--object=0", "--seed=0"), "--seed must be one of 3, 4; it is 0"),
    (("--object=0", "--out=object.jpg"), "--out must end in .png; it is object.jpg"),
  ],
)
def test_sample_object_refuses_in_one_message(
  opened, monkeypatch, tmp_path, capsys, flags, message
):
  opened(seeds=(3, 4))
  with pytest.raises(SystemExit) as stopped:
    run_command(monkeypatch, sample_object, "runs/tiny", f"--out={tmp_path / 'object.png'}", *flags)
  assert stopped.value.code == 2
  assert message in capsys.readouterr().err
  assert not list(tmp_path.iterdir())


def test_sample_object_refuses_other_systems(monkeypatch, tmp_path, capsys, opened):
  config = toy_config()
  toy = toy_system.make_system(dict(config.model), dict(config.loss), toy_data(side=18))
  run = Run(read_settings(config), toy, None, {0: {}}, 7, is_latest=True)
  monkeypatch.setattr(one_run, "open_run", lambda *arguments: run)
  arguments = ("runs/tiny", "--object=0", f"--out={tmp_path / 'object.png'}")
  with pytest.raises(SystemExit):
    run_command(monkeypatch, sample_object, *arguments)
  assert "this run is of system 'tests.toy_system'" in capsys.readouterr().err
