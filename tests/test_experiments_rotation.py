"""The rotation experiment: what is trained, what is scored, and what is written of it."""

import json
import pathlib
import sys

import numpy as np
import pytest

from experiments import many_runs, rotation
from experiments.rotation import ROTATED, UPRIGHT
from experiments.rotation_systems import RANGES, SHARED, SYSTEMS
from scae_jax.data.digits import load_digits
from scae_jax.data.transfer import rotated
from scae_jax.evaluation import report
from scae_jax.evaluation.collect import feature_collector
from scae_jax.evaluation.examples import load_split
from scae_jax.evaluation.probes import fit_clusters, fit_probe
from scae_jax.training import sweep
from scae_jax.training.build import open_run
from scae_jax.training.config import parse_command_line
from scae_jax.training.loop import train
from scae_jax.training.reporting import report_run
from tests.toy_system import CONFIG_FILE

CANVAS = SHARED["digits"]["data.canvas"]


def test_every_system_is_trained_at_every_range():
  rows = rotation.make_rows("digits", RANGES, 2, {"train.num_steps": 7})
  assert [row.name for row in rows] == [
    f"{name}-{degrees}" for name in SYSTEMS["digits"] for degrees in RANGES
  ]
  for row in rows:
    assert row.config.data.max_rotation == rotation.system_and_range(row.name)[1]
    assert (row.config.train.seeds, row.config.train.num_steps) == (2, 7)
  assert {0, 180} <= set(RANGES)


@pytest.mark.parametrize("data", SYSTEMS)
def test_all_systems_of_a_data_set_see_the_same_images(data):
  assert set(SYSTEMS[data]) == {"scae", "probabilistic"}
  for row in rotation.make_rows(data, (90,), 1, {}):
    expected = SHARED[data] | {"data.name": data, "data.num_validation": 0, "data.crop": 0}
    for key, value in expected.items():
      assert row.config.data[key.removeprefix("data.")] == value


def test_systems_of_mnist_have_the_same_capsules():
  """Smith et al. 2020, appendix C: more of them would share a digit by its turn."""
  scae, probabilistic = (row.config.model for row in rotation.make_rows("mnist", (0,), 1, {}))
  assert (scae.num_parts, scae.num_objects) == probabilistic.capsules == (24, 24)


def result(turned_accuracy, upright, pixels):
  """Of a run with two seeds, as `score_run` gives it."""
  accuracies = {
    images: {
      "LIN-MATCH, object_code": {0: first, 1: second},
      "LIN-PRED, object_code": {0: 1.0, 1: 0.5},
    }
    for images, (first, second) in {ROTATED: turned_accuracy, UPRIGHT: upright}.items()
  }
  of_pixels = {ROTATED: {"LIN-MATCH": pixels}, UPRIGHT: {"LIN-MATCH": 0.7}}
  return {"accuracy": accuracies, "pixels": of_pixels}


RESULTS = {
  "ours-0": result((0.8, 0.9), (0.8, 0.9), 0.7),
  "ours-90": result((0.5, 0.6), (0.75, 0.85), 0.4),
  "theirs-90": result((0.3, 0.3), (0.2, 0.2), 0.4),
}


def test_table_has_means_over_seeds_and_gaps():
  lines = rotation.table(rotation.make_lines(RESULTS), (0, 90)).splitlines()
  assert lines[0] == "| scored by | test images | of | up to 0 | up to 90 |"
  assert lines[2:] == [
    "| LIN-MATCH | turned within the range | ours, object code | 85.0 | 55.0 |",
    "| LIN-MATCH | turned within the range | theirs, object code |  | 30.0 |",
    "| LIN-MATCH | turned within the range | raw pixels | 70.0 | 40.0 |",
    "| LIN-MATCH | upright | ours, object code | 85.0 | 80.0 |",
    "| LIN-MATCH | upright | theirs, object code |  | 20.0 |",
    "| LIN-MATCH | upright | raw pixels | 70.0 | 70.0 |",
    "| LIN-PRED | turned within the range | ours, object code | 75.0 | 75.0 |",
    "| LIN-PRED | turned within the range | theirs, object code |  | 75.0 |",
    "| LIN-PRED | upright | ours, object code | 75.0 | 75.0 |",
    "| LIN-PRED | upright | theirs, object code |  | 75.0 |",
  ]


def test_curves_have_a_panel_for_each_kind_and_images():
  found = rotation.curves(rotation.make_lines(RESULTS), (0, 90))
  assert list(found) == [
    f"{kind}, test images {images}"
    for kind in ("LIN-MATCH", "LIN-PRED")
    for images in (ROTATED, UPRIGHT)
  ]
  panel = found["LIN-MATCH, test images turned within the range"]
  np.testing.assert_allclose(panel["ours, object code"], [0.85, 0.55])
  np.testing.assert_array_equal(panel["theirs, object code"], [np.nan, 0.3])
  np.testing.assert_array_equal(panel["raw pixels"], [0.7, 0.4])


def test_remarks_say_what_was_trained_and_what_is_missing():
  facts = {"parameters": 1234, "steps": 20, "notes": ["ink of 3 images is cut."]}
  record = {"seeds": 2, "max_examples": 50}
  text = "\n".join(rotation.remarks({"ours-0": facts, "ours-90": facts}, ["theirs-0"], record))
  assert "mean over 2 seed(s)" in text
  assert "At most 50 examples of each split." in text
  assert text.count("ours: 1,234 parameters, 20 steps.") == 1
  assert text.count("ink of 3 images is cut.") == 1
  assert "Not finished: theirs-0." in text
  whole = "\n".join(rotation.remarks({"ours-0": facts}, [], {**record, "max_examples": 0}))
  assert "At most 50" not in whole
  assert "Not finished" not in whole


@pytest.fixture
def command(tmp_path, monkeypatch):
  """Runs the command on toys, `broken` of which cannot be trained; tells what was trained."""
  monkeypatch.setenv("SCAE_JAX_CACHE", str(tmp_path / "cache"))
  (tmp_path / "toy.py").write_text(CONFIG_FILE)
  both = {"toy": (str(tmp_path / "toy.py"), {}), "broken": (str(tmp_path / "toy.py"), {})}
  monkeypatch.setattr(rotation, "SYSTEMS", {"digits": both})
  monkeypatch.setattr(many_runs, "keep_compiled", lambda folder: None)
  monkeypatch.setattr(report, "save_figures", lambda folder, drawers: None)
  trained = []

  def run_in_this_process(arguments, log):
    trained.append(log.parent.name)
    if log.parent.name.startswith("broken"):
      log.write_text("error: cannot.\n")
      return 1
    assert arguments[0] == sys.executable
    assert pathlib.Path(arguments[1]).name == "train.py"
    parsed = parse_command_line(list(arguments[2:]), default_config="")
    report_run(train(parsed.settings, parsed.workdir), parsed.workdir)
    return 0

  monkeypatch.setattr(sweep, "run_logged", run_in_this_process)
  arguments = ["rotation", "digits", str(tmp_path / "results"), f"--workdir={tmp_path / 'runs'}"]
  monkeypatch.setattr(sys, "argv", [*arguments, "--max_examples=150", "--ranges", "90", "0"])

  def run():
    trained.clear()
    with pytest.raises(SystemExit) as info:
      rotation.main()
    return info.value.code, list(trained)

  return run


def test_one_command_trains_scores_and_writes(command, tmp_path, capsys):
  """A row that fails stops no other, and the second time no other is trained."""
  code, trained = command()
  assert (code, trained) == (1, ["toy-0", "toy-90", "broken-0", "broken-90"])
  assert "2 of 4 rows failed" in capsys.readouterr().err
  written = json.loads((tmp_path / "results" / "rotation-digits.json").read_text())
  assert list(written["results"]) == ["toy-0", "toy-90"]
  assert (written["ranges"], written["max_examples"]) == ([0, 90], 150)
  assert written["command"].startswith("python -m experiments.rotation digits ")
  text = (tmp_path / "results" / "rotation-digits.md").read_text()
  assert "Not finished: broken-0, broken-90." in text
  assert (tmp_path / "results" / "rotation-digits.png").stat().st_size > 10_000

  upright, within = (written["results"]["toy-0"]["accuracy"][kind] for kind in (UPRIGHT, ROTATED))
  assert upright == within  # the same images, whether padded here or there
  check_scores(tmp_path / "runs" / "toy-90", written["results"]["toy-90"])

  assert command() == (1, ["broken-0", "broken-90"])
  again = json.loads((tmp_path / "results" / "rotation-digits.json").read_text())
  assert again["results"] == written["results"]


def check_scores(workdir, found):
  """Both accuracies of the features and of the pixels, turned and upright."""
  run = open_run(workdir)
  assert found["config"] == json.loads(run.config.to_json())
  for images, one in ((ROTATED, rotated(load_digits(), 90, CANVAS)), (UPRIGHT, load_digits())):
    splits = [load_split(one, name, 150) for name in ("train", "test")]
    collect = feature_collector(run.system, canvas=CANVAS, batch_size=32)
    codes = [collect(run.variables[0], one)["features"]["code"] for one in splits]
    pixels = [one["image"].reshape(len(one["image"]), -1) / np.float32(255) for one in splits]
    for prefix, (train_values, test_values) in ((", code", codes), ("", pixels)):
      fitted, scored = (train_values, splits[0]["label"]), (test_values, splits[1]["label"])
      expected = {
        f"LIN-MATCH{prefix}": fit_clusters(*fitted, num_classes=10, seed=0).accuracy(*scored),
        f"LIN-PRED{prefix}": fit_probe(*fitted, num_classes=10).accuracy(*scored),
      }
      if prefix:
        assert found["accuracy"][images] == {key: {"0": it} for key, it in expected.items()}
      else:
        assert found["pixels"][images] == expected
