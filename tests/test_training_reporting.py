"""What a report on a run is asked for, and the folder that it goes to."""

import numpy as np
import pytest

from scae_jax.data.dataset import Dataset, ScoredSet, Split
from scae_jax.training import reporting
from scae_jax.training.build import Run
from scae_jax.training.reporting import load_scored_set, report_run
from tests.toy_system import make_system, toy_config, toy_data

SPLIT = Split(np.zeros((2, 16, 16, 1), np.uint8), np.zeros(2, np.int32))
PLAIN = Dataset("plain", ("a",), {"train": SPLIT, "test": SPLIT})
HELD_OUT = Dataset("held", ("a",), {"train": SPLIT, "validation": SPLIT, "test": SPLIT})
OTHER = ScoredSet("other", ("a",), {"test": SPLIT})
SAME_NAME = ScoredSet("plain", ("a",), {"test": SPLIT})


def run_on(dataset=PLAIN, **changes):
  config = toy_config(**changes)
  system = make_system(config.model.to_dict(), config.loss.to_dict(), toy_data())
  return Run(config, system, dataset, {3: {"w": 1.0}}, 12)


@pytest.fixture
def reports(monkeypatch):
  """What `write_reports` would have been given."""
  found = []
  monkeypatch.setattr(
    reporting, "write_reports", lambda *given, **named: found.append((given, named))
  )
  return found


@pytest.mark.parametrize(
  ("dataset", "asked", "folder", "split"),
  [
    (PLAIN, {}, ".", "test"),
    (PLAIN, {"split": "test"}, ".", "test"),
    (PLAIN, {"split": "train"}, "plain-train", "train"),
    (PLAIN, {"is_latest": False}, "plain-test-step12", "test"),
    (PLAIN, {"is_latest": False, "split": "train"}, "plain-train-step12", "train"),
    (PLAIN, {"scored": OTHER}, "other-test", "test"),
    (PLAIN, {"scored": OTHER, "is_latest": False}, "other-test-step12", "test"),
    (PLAIN, {"scored": SAME_NAME}, "plain-test", "test"),
    (HELD_OUT, {}, ".", "validation"),
    (HELD_OUT, {"split": "test"}, "held-test", "test"),
    (HELD_OUT, {"scored": PLAIN}, "plain-test", "test"),
  ],
)
def test_only_the_runs_own_held_out_split_at_its_end_goes_to_evaluation(
  reports, tmp_path, dataset, asked, folder, split
):
  run = run_on(dataset)
  report_run(run, tmp_path, **asked)
  (((directory, system, variables, fitted), named),) = reports
  assert directory == tmp_path / "evaluation" / folder
  assert (system, variables) == (run.system, run.variables)
  assert fitted is dataset
  assert named["scored_dataset"] is asked.get("scored", dataset)
  assert named["split"] == split


@pytest.mark.parametrize(("asked", "expected"), [(None, 60), (0, 0), (7, 7)])
def test_settings_of_a_report_are_those_of_the_run(reports, tmp_path, asked, expected):
  run = run_on(data__canvas=20, evaluation__batch_size=5, evaluation__max_examples=60)
  report_run(run, tmp_path, max_examples=asked)
  ((_, named),) = reports
  del named["split"], named["scored_dataset"]
  assert named == {
    "canvas": 20,
    "batch_size": 5,
    "step": 12,
    "max_examples": expected,
    "provenance": {"workdir": str(tmp_path), "config": run.config.to_dict()},
    "history": tmp_path / "metrics.jsonl",
  }


@pytest.mark.parametrize(("flag", "expected"), [("/flag", "/flag"), ("", "/config")])
def test_a_set_to_score_on_is_looked_for_in_the_runs_folders(monkeypatch, flag, expected):
  """On its canvas; a folder that is given comes before the config's."""
  monkeypatch.setattr(reporting, "load_scored", lambda *arguments: arguments)
  folders = {"dir": "/config", "cache_dir": "/cache", "affnist_dir": "/affnist"}
  run = run_on(data__canvas=20, **{f"data__{key}": value for key, value in folders.items()})
  assert load_scored_set(run, "x", flag) == ("x", 20, expected, "/cache", "/affnist")
