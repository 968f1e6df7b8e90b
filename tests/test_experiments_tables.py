"""Tables of runs: the figures of reports, a run's data sets (transfer), and runs (summarize)."""

import json
import pathlib
import re

import pytest

from experiments import transfer
from experiments.summarize import read_run, table_of, wall_seconds
from scae_jax.evaluation.comparison import (
  conditions,
  figures,
  markdown_table,
  seeds_table,
  summary,
)
from scae_jax.evaluation.tables import table
from tests.stand_ins import call, refusal

SHARED = {
  "scored_on": {"dataset": "constellations", "split": "test", "examples": 10_000},
  "step": 40_000,
  "seed": 3,
  "date": "2026-11-21T10:00:00+00:00",
  "hardware": {"cpu_count": 2, "cpu_model": "Some CPU", "device_count": 1, "device_kind": "cpu"},
  "versions": {"python": "3.11.7", "jax": "0.10.2"},
}
SEGMENTS = {"accuracy": 0.875, "adjusted_rand_index": 0.5, "variation_of_information": 0.25}
ON_SCENES = SHARED | {"segmentation": {"0.1": {"true_presence": SEGMENTS}}, "metrics": {}}
CODE = {"lin_match": 0.5, "lin_pred": 0.75, "capsules_in_use": 3, "capsules": 8}
ON_IMAGES = SHARED | {
  "max_examples": 0,
  "features": {"code": CODE},
  "pixels": {"lin_match": 0.25, "lin_pred": 0.875},
  "metrics": {},
}
ANSWERS = {"accuracy": 0.99, "error": 0.01, "expected_calibration_error": 0.035}
ANSWERS |= {"mean_confidence": 0.5, "confusion": [[1, 0], [0, 1]]}
OF_IMAGES = {"LIN-MATCH, code": 50, "LIN-PRED, code": 75, "capsules in use, code": 3}
OF_ANSWERS = {"accuracy": 99, "error": 1, "mean confidence": 50, "expected calibration error": 3.5}
OF_SEGMENTS = {"accuracy": 87.5, "adjusted rand index": 0.5, "variation of information": 0.25}
OF_PIXELS = {"LIN-MATCH, raw pixels": 25, "LIN-PRED, raw pixels": 87.5}


@pytest.mark.parametrize(
  ("report", "expected"),
  [
    # Shares in percent, counts and errors as they are.
    (
      ON_IMAGES | {"metrics": {"squared_error": 12.5, "probe_accuracy": 0.625}},
      OF_IMAGES | OF_PIXELS | {"squared error": 12.5, "probe accuracy": 62.5},
    ),
    # Readings have one figure each.
    (
      ON_IMAGES | {"readings": {"poses": {"lin_pred": 0.625, "lin_pred_train": 1.0}}},
      OF_IMAGES | {"LIN-PRED, poses": 62.5} | OF_PIXELS,
    ),
    # A metric of the same name as an answer's stands once.
    (
      {"classification": ANSWERS, "metrics": {"squared_error": 12.5, "accuracy": 0.75}},
      OF_ANSWERS | {"squared error": 12.5},
    ),
    (ON_SCENES, {f"{name}, jitter 0.1, true presence": x for name, x in OF_SEGMENTS.items()}),
  ],
)
def test_figures_of_a_report(report, expected):
  values = figures(report)
  assert values == pytest.approx(expected)
  assert list(values) == list(expected)


def test_conditions_of_a_report():
  scored, hardware, versions = conditions(SHARED).splitlines()
  assert re.search(r"\b10,000\b.*\bconstellations test\b.*\b40,000\b", scored)
  assert "2 x Some CPU, jax on 1 cpu" in hardware
  assert "python 3.11.7, jax 0.10.2" in versions
  fitted = conditions(SHARED | {"fitted_on": {"split": "train", "examples": 1_437}})
  assert re.search(r"test\b.*\b1,437\b.*\btrain\b.*\b40,000\b", fitted)


def test_cells_have_the_format_of_their_column():
  """Text and whole numbers as they are; of several numbers mean and deviation; 3 and 1 decimals."""
  columns = {"": "", "share": ".2f", "x": "", "count": ".1f"}
  rows = [["a", 0.125, 12.34, 1_000], ["b", None, 0.125, [3]], ["c", [1.0, 2.0, 6.0], 0.0, [1, 2]]]
  lines = [
    "| | share | x | count |",
    "|---|---|---|---|",
    "| a | 0.12 | 12.3 | 1,000 |",
    "| b |  | 0.125 | 3 |",
    "| c | 3.00 (2.65) | 0.0 | 1.5 (0.7) |",
  ]
  assert table(columns, rows).splitlines() == lines
  turned = table(columns, rows, transposed=True).splitlines()
  assert turned[0] == "| | a | b | c |"
  assert turned[2] == "| share | 0.12 |  | 3.00 (2.65) |"
  with pytest.raises(ValueError, match="zip"):
    table(columns, [["a", 1.0]])


def test_seeds_of_a_classifier_have_two_decimals_in_their_own_table_and_in_that_of_runs():
  reports = {
    seed: SHARED
    | {"seed": seed, "notes": [], "max_examples": 0, "provenance": {}, "metrics": {"loss": 2.345}}
    | {"classification": ANSWERS | {"accuracy": share}}
    for seed, share in ((3, 0.98765), (4, 0.98765))
  }
  saved = json.loads(json.dumps(summary(reports)))
  assert saved["by_seed"]["3"] == pytest.approx(figures(reports[3]))
  cells = [line.split(" | ") for line in markdown_table({"run": saved}).splitlines()[:3]]
  row = dict(zip(cells[0], cells[2], strict=True))
  assert row["accuracy"] == "98.77 (0.00)"
  assert row["loss |"] == "2.3 (0.0) |"
  del saved["formats"]  # as version 0.1 wrote it
  assert "| 98.8 (0.0) |" in markdown_table({"run": saved})


def test_seeds_stand_beside_each_other():
  """1, 2 and 6 have the mean 3 and the deviation sqrt(7); what one seed lacks is left out."""
  index = "adjusted rand index, jitter 0"
  by_seed = [
    (seed, {"squared error": x, "accuracy": x, index: x / 8})
    for seed, x in ((4, 1.0), (5, 2.0), (6, 6.0))
  ]
  by_seed[0][1]["other"] = 1.0
  formats = {"accuracy": ".2f", index: ".3f"}
  assert seeds_table(by_seed, formats).splitlines() == [
    "| | seed 4 | seed 5 | seed 6 | mean (sd) |",
    "|---|---|---|---|---|",
    "| squared error | 1.0 | 2.0 | 6.0 | 3.0 (2.6) |",
    "| accuracy | 1.00 | 2.00 | 6.00 | 3.00 (2.65) |",
    f"| {index} | 0.125 | 0.250 | 0.750 | 0.375 (0.331) |",
  ]
  assert (
    seeds_table(by_seed[:2], formats).splitlines()[2] == "| squared error | 1.0 | 2.0 | 1.5 (0.7) |"
  )
  alone = ["| | seed 4 |", "|---|---|", "| squared error | 1.0 |", "| accuracy | 1.00 |"]
  assert seeds_table(by_seed[:1], formats).splitlines() == [
    *alone,
    f"| {index} | 0.125 |",
    "| other | 1.0 |",
  ]


@pytest.mark.parametrize(
  ("lines", "expected"),
  [
    ([], 0.0),
    ([(2.0, 2.0), (2.0, 14.0), (2.0, 26.0)], 26.0),
    # Resumed after the second line; the clock starts again.
    ([(2.0, 2.0), (2.0, 14.0), (2.0, 2.5), (2.0, 9.0)], 14.0 + 9.0),
    # Stopped soon: the second session's first line is later on its clock than the one before, but
    # not by the time of its own steps.
    ([(2.0, 2.0), (2.0, 2.5), (2.0, 9.0)], 2.0 + 9.0),
    # Steps without a break between them are one session, however the clock was rounded.
    ([(0.1, 0.1), (0.2, 0.3), (0.3, 0.6 - 1e-9)], 0.6),
  ],
)
def test_wall_clock_is_summed_over_sessions(lines, expected):
  timings = [{"seconds": seconds, "wall_seconds": wall} for seconds, wall in lines]
  assert wall_seconds(timings) == pytest.approx(expected)


def test_a_run_below_the_current_folder_has_a_relative_name_and_times_if_it_has_lines(
  tmp_path, monkeypatch
):
  """Stopped before the first line, its time is not known, and no 0."""
  folder = tmp_path / "runs" / "one"
  (folder / "evaluation").mkdir(parents=True)
  (folder / "evaluation" / "metrics.json").write_text(json.dumps(ON_SCENES))
  (folder / "metrics.jsonl").write_text("")
  (run,) = read_run(folder)
  assert (run["workdir"], run["figures"]) == (str(folder), figures(ON_SCENES))
  assert table_of([run, run | {"metrics": ON_SCENES | {"step": 7}}]).count("Step ") == 2
  monkeypatch.chdir(tmp_path)
  assert read_run(pathlib.Path("runs/one")) == read_run(folder) == [run | {"workdir": "runs/one"}]


def write(path, name, step=40_000, **changes):
  path.mkdir(parents=True)
  scored = {"dataset": name, "split": "test", "examples": 360}
  report = ON_IMAGES | {"scored_on": scored, "step": step} | changes
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


def test_own_report_is_first_and_other_steps_other_numbers_and_single_seeds_are_left_out(
  workdir, tmp_path
):
  reports, left_out = transfer.read_reports(workdir)
  assert list(reports) == ["digits test", "affine_digits test", "rotated_digits:15 test"]
  assert reports["digits test"]["seed"] == SHARED["seed"]
  # The folder of each report, and the numbers by which it differs.
  expected = (
    r" affine_digits-test-step500-max1000, .*\b500\b.*\b40,000\b.*\b1,000\b",
    r" digits-test, .*\bdigits test\b",
    r" digits-test-max30, .*\b30\b",
    r" digits-test-step500, .*\b500\b.*\b40,000\b",
  )
  for sentence, pattern in zip(left_out, expected, strict=True):
    assert re.search(pattern, sentence)
  write(tmp_path / "evaluation", "digits", max_examples=60)
  write(tmp_path / "evaluation" / "affine_digits-test", "affine_digits", max_examples=60)
  write(tmp_path / "evaluation" / "moved-test", "moved")
  reports, (sentence,) = transfer.read_reports(tmp_path)
  assert list(reports) == ["digits test", "affine_digits test"]
  assert re.search(r"moved-test\b.*\b60\b", sentence)


def test_transfer_writes_one_table_of_a_run(workdir, tmp_path, monkeypatch, capsys):
  call(monkeypatch, transfer, workdir, tmp_path / "table")
  table = (tmp_path / "table" / "digits.md").read_text()
  assert table.strip() == capsys.readouterr().out.strip()
  assert "| rotated_digits:15 test | 1 | 50.0 | 75.0 | 3 | 25.0 | 87.5 |" in table
  # Three sentences on what was scored, one each on hardware and versions.
  assert table.count("360 examples of") == 3
  assert table.count("Hardware") == table.count("Versions") == 1
  reports, left_out = transfer.read_reports(workdir)
  # What the reports note stands below, once, and then what is left out.
  assert table.endswith("\n".join((".", "both", "turned", *left_out, "")))
  assert json.loads((tmp_path / "table" / "digits.json").read_text()) == reports
  nowhere = tmp_path / "nowhere"
  assert "evaluate.py --workdir=" in refusal(capsys, monkeypatch, transfer, tmp_path, nowhere)
  assert not nowhere.exists()
