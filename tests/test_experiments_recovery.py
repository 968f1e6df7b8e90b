"""Images drawn from a known model, and what was found in them."""

import json
import re
import types

import numpy as np
import pytest

from experiments import recovery
from experiments.template_match import match_templates
from scae_jax.data.sources import load_dataset
from scae_jax.evaluation.encode import Measured
from scae_jax.models.system import Encoding
from tests.stand_ins import call, refused


@pytest.fixture(scope="module")
def scenes():
  return recovery.draw_scenes(0, 64)


def test_objects_draw_where_they_stand(scenes):
  """Each object's own places are brighter in images that have it than in those that have none."""
  images, there = scenes
  assert images.shape == (64, recovery.CANVAS, recovery.CANVAS, 1)
  np.testing.assert_array_equal(recovery.draw_scenes(0, 64)[0], images)
  assert (recovery.draw_scenes(1, 64)[1] != there).any()
  assert 0.3 < there.mean() < 0.7
  empty = images[~there.any(axis=1)].mean()
  assert empty < 20  # noise of a twentieth, cut at black, of 255
  alone = [images[(there == np.eye(3, dtype=bool)[k]).all(axis=1)] for k in range(3)]
  assert all(len(pictures) for pictures in alone)
  middle = recovery.CANVAS // 2
  # The first object's parts stand in the upper half, the last one's in the middle and below.
  assert alone[0][:, :middle].mean() > 3 * alone[0][:, middle + 2 :].mean()
  assert alone[2][:, middle:].mean() > 1.5 * alone[2][:, :middle].mean()


def test_no_part_can_draw_the_glyph_of_another():
  """At any affine pose: the cross, turned by 45 degrees, drew an X that is gone."""
  cells = np.array([[list(row) for row in glyph] for glyph in recovery.GLYPHS])
  ink = np.float32(cells == "#")  # [glyphs, height, width]
  result = match_templates(np.pad(ink, ((0, 0), (1, 1), (1, 1)))[..., None])
  assert result["matched"] == 0
  assert result["mean_error"] > 0.2


def test_folders_say_what_is_there(tmp_path):
  counts = {"train": 24, "test": 24}
  recovery.write_scenes(tmp_path / "scenes", counts)
  dataset = load_dataset("folder", str(tmp_path / "scenes"), str(tmp_path / "cache"))
  for seed, (split, count) in enumerate(counts.items(), start=recovery.FIRST_SEED):
    _, there = recovery.draw_scenes(seed, count)
    result = recovery.true_presences(dataset, split)
    assert result.shape == (count, 3)
    # The order is the folders'.
    np.testing.assert_array_equal(result.sum(axis=0), there.sum(axis=0))


def test_score_is_of_the_test_images(monkeypatch):
  """Right but for every fourth test image's first object; out of order, one more says nothing."""
  truth = {split: np.random.RandomState(i).rand(40, 3) < 0.5 for i, split in enumerate(SPLITS)}
  encoded = {split: np.pad(value[:, [2, 0, 1]], ((0, 0), (0, 1))) for split, value in truth.items()}
  encoded["train"][0, 0] = ~encoded["train"][0, 0]  # objects are matched all the same
  encoded["test"][::4, 1] = ~encoded["test"][::4, 1]
  splits = {split: types.SimpleNamespace(arrays={"image": split}) for split in SPLITS}
  monkeypatch.setattr(recovery, "Dataset", types.SimpleNamespace)
  monkeypatch.setattr(recovery, "true_presences", lambda dataset, split: truth[split])
  bounds = {"train": np.array([1, 2]), "test": np.array([5])}

  def measure_dataset(system, variables, examples, make_batch, *, batch_size):
    encoding = Encoding(features={"presences": encoded[examples["image"]].astype(float)})
    return Measured(encoding, {"bound": bounds[examples["image"]]}, None)

  monkeypatch.setattr(recovery, "measure_dataset", measure_dataset)
  options = types.SimpleNamespace(evaluation=types.SimpleNamespace(batch_size=40))
  run = types.SimpleNamespace(
    dataset=types.SimpleNamespace(splits=splits), system=None, settings=options, step=7
  )
  result = recovery.score(run, {})
  assert result["accuracy_by_object"] == [0.75, 1.0, 1.0]
  assert result["accuracy"] == pytest.approx(11 / 12)
  assert result["all_right"] == 0.75
  assert result["order"] == [1, 2, 0]
  assert (result["training_bound"], result["test_bound"]) == (1.5, 5)


SPLITS = ("train", "test")


def test_several_runs_and_seeds_are_scored_by_one_command(tmp_path, monkeypatch, capsys):
  config = types.SimpleNamespace(system="probabilistic")
  dataset = types.SimpleNamespace(name="folder")
  runs = {
    "one": types.SimpleNamespace(config=config, dataset=dataset, variables={0: 5.0}),
    "two": types.SimpleNamespace(config=config, dataset=dataset, variables={1: 9.0, 2: 7.0}),
  }
  monkeypatch.setattr(recovery, "open_run", lambda workdir: runs[workdir.name])
  monkeypatch.setattr(
    recovery, "score", lambda run, bound: {"accuracy": 1 / bound, "training_bound": bound}
  )
  workdirs = [tmp_path / name for name in runs]

  def score_into(folder):
    call(monkeypatch, recovery, "score", *workdirs, folder)

  score_into(tmp_path / "results")
  lines = capsys.readouterr().out.splitlines()
  assert re.search(r"two, seed 1\b.*\b11\.1 %.*\b9\.0 nats", lines[1])
  assert len(lines) == 3
  record = json.loads((tmp_path / "results" / "recovery-two.json").read_text())
  assert record["by_seed"]["2"]["training_bound"] == 7
  assert record["command"].startswith("python -m experiments.recovery score")
  assert (tmp_path / "results" / "recovery-one.json").is_file()
  dataset.name = "digits"
  assert str(workdirs[0]) in refused(capsys, score_into, tmp_path / "other")
  assert not (tmp_path / "other").exists()
