"""The table of one run on several data sets: which reports are in it, and in which order."""

import json
import sys

import pytest

from experiments import transfer
from tests.test_experiments_summarize import SHARED

SCORES = {"lin_match": 0.5, "lin_pred": 0.75, "capsules_in_use": 3}
REPORT = SHARED | {
  "max_examples": 0,
  "features": {"prior": SCORES},
  "pixels": {"lin_match": 0.25, "lin_pred": 0.5},
  "measures": {},
}


def write(path, name, step=40_000, **changes):
  path.mkdir(parents=True)
  scored = {"dataset": name, "split": "test", "examples": 360}
  report = REPORT | {"scored_on": scored, "step": step} | changes
  (path / "metrics.json").write_text(json.dumps(report))


@pytest.fixture
def workdir(tmp_path):
  folder = tmp_path / "digits" / "evaluation"
  write(folder, "digits")
  write(folder / "rotated_digits_15-test", "rotated_digits:15", notes=["turned", "both"])
  write(folder / "affine_digits-test", "affine_digits", notes=["both"])
  write(folder / "digits-test-step500", "digits", step=500)
  write(folder / "digits-test-max30", "digits", max_examples=30)
  write(folder / "affine_digits-test-step500-max1000", "affine_digits", 500, max_examples=1_000)
  write(folder / "digits-test", "digits")
  write(folder / "seed-0", "digits", seed=0)
  return tmp_path / "digits"


def test_own_report_is_first_and_other_steps_other_numbers_and_single_seeds_are_left_out(workdir):
  reports, left_out = transfer.read_reports(workdir)
  assert list(reports) == ["digits test", "affine_digits test", "rotated_digits:15 test"]
  assert reports["digits test"]["seed"] == SHARED["seed"]
  assert reports["digits test"]["step"] == 40_000
  assert reports["digits test"]["max_examples"] == 0
  where = "Left out: the report in"
  few = "at most 1,000 examples of each split, not of all examples"
  assert left_out == [
    f"{where} affine_digits-test-step500-max1000, of step 500, not of step 40,000 and of {few}.",
    f"{where} digits-test, of digits test, as another one is.",
    f"{where} digits-test-max30, of at most 30 examples of each split, not of all examples.",
    f"{where} digits-test-step500, of step 500, not of step 40,000.",
  ]


def test_a_run_whose_own_report_is_of_few_examples_leaves_out_those_of_all(tmp_path):
  write(tmp_path / "evaluation", "digits", max_examples=60)
  write(tmp_path / "evaluation" / "affine_digits-test", "affine_digits", max_examples=60)
  write(tmp_path / "evaluation" / "moved-test", "moved")
  reports, (sentence,) = transfer.read_reports(tmp_path)
  assert list(reports) == ["digits test", "affine_digits test"]
  assert sentence.endswith("moved-test, of all examples, not of at most 60 examples of each split.")


def test_command(workdir, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(sys, "argv", ["transfer", str(workdir), str(tmp_path / "table")])
  transfer.main()
  table = (tmp_path / "table" / "digits.md").read_text()
  assert table.strip() == capsys.readouterr().out.strip()
  assert "| rotated_digits:15 test | 1 | 50.0 | 75.0 | 3.0 | 25.0 | 50.0 |" in table
  # Three sentences on what was scored, one each on hardware and versions.
  assert table.count("360 examples of") == 3
  reports, left_out = transfer.read_reports(workdir)
  # What the reports note stands below, once, and then what is left out.
  assert table.endswith("\n".join((".", "both", "turned", *left_out, "")))
  assert table.count("Left out: ") == len(left_out) == 4
  assert table.count("Hardware") == table.count("Versions") == 1
  found = json.loads((tmp_path / "table" / "digits.json").read_text())
  assert found == reports


def test_run_that_was_never_evaluated(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(sys, "argv", ["transfer", str(tmp_path), str(tmp_path / "table")])
  with pytest.raises(SystemExit):
    transfer.main()
  assert "run evaluate.py --workdir=" in capsys.readouterr().err
  assert not (tmp_path / "table").exists()
