"""Tables of runs: the time that experiments/summarize.py counts, and what stands below a table."""

import json
import pathlib

import pytest

from experiments.summarize import read_run, wall_seconds
from scae_jax.evaluation.comparison import conditions, figures, markdown_table, seeds_table


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


SHARED = {
  "scored_on": {"dataset": "constellations", "split": "test", "examples": 10_000},
  "step": 40_000,
  "seed": 3,
  "date": "2026-11-21T10:00:00+00:00",
  "hardware": {"cpu_count": 2, "cpu_model": "Some CPU", "device_count": 1, "device_kind": "cpu"},
  "versions": {"python": "3.11.7", "jax": "0.10.2"},
}
SCORES = {"accuracy": 0.875, "adjusted_rand_index": 0.5, "variation_of_information": 0.25}
SEGMENTATION = {"0.1": {"true_presence": SCORES}}


def test_conditions_of_a_report():
  expected = (
    "10,000 examples of constellations test. Step 40,000.\n"
    "Hardware: 2 x Some CPU, jax on 1 cpu.\n"
    "Versions: python 3.11.7, jax 0.10.2."
  )
  assert conditions(SHARED) == expected
  fitted = conditions(SHARED | {"fitted_on": {"split": "train", "examples": 1_437}})
  assert "test; clusters and probes are fitted on 1,437 of train. Step" in fitted


def test_figures_of_a_report_on_images():
  """Shares in percent, counts and errors as they are."""
  code = {"lin_match": 0.5, "lin_pred": 0.75, "capsules_in_use": 3, "capsules": 8}
  report = {
    "features": {"code": code},
    "pixels": {"lin_match": 0.25, "lin_pred": 0.875},
    "measures": {"squared_error": 12.5, "probe_accuracy": 0.625},
  }
  assert figures(report) == {
    "LIN-MATCH, code": 50,
    "LIN-PRED, code": 75,
    "capsules in use, code": 3,
    "LIN-MATCH, raw pixels": 25,
    "LIN-PRED, raw pixels": 87.5,
    "squared error": 12.5,
    "probe accuracy": 62.5,
  }


def test_a_run_without_a_line_of_training_has_no_times(tmp_path):
  """Stopped before the first: its time is not known, and no 0."""
  report = SHARED | {"segmentation": SEGMENTATION, "measures": {}}
  (tmp_path / "evaluation").mkdir()
  (tmp_path / "evaluation" / "metrics.json").write_text(json.dumps(report))
  (tmp_path / "metrics.jsonl").write_text("")
  (run,) = read_run(tmp_path)
  assert run["figures"] == figures(report)


def test_a_run_below_the_current_folder_has_a_relative_name(tmp_path, monkeypatch):
  report = SHARED | {"segmentation": SEGMENTATION, "measures": {}}
  folder = tmp_path / "runs" / "one"
  (folder / "evaluation").mkdir(parents=True)
  (folder / "evaluation" / "metrics.json").write_text(json.dumps(report))
  (folder / "metrics.jsonl").write_text("")
  assert read_run(folder)[0]["workdir"] == str(folder)
  monkeypatch.chdir(tmp_path)
  assert read_run(folder)[0]["workdir"] == "runs/one"
  assert read_run(pathlib.Path("runs/one"))[0]["workdir"] == "runs/one"


def test_readings_have_one_figure_each():
  code = {"lin_match": 0.5, "lin_pred": 0.75, "capsules_in_use": 3, "capsules": 8}
  report = {
    "features": {"code": code},
    "readings": {"poses": {"lin_pred": 0.625, "lin_pred_train": 1.0}},
    "pixels": {"lin_match": 0.25, "lin_pred": 0.875},
    "measures": {},
  }
  names = [f"{way}, code" for way in ("LIN-MATCH", "LIN-PRED", "capsules in use")]
  found = figures(report)
  expected = [*names, "LIN-PRED, poses", "LIN-MATCH, raw pixels", "LIN-PRED, raw pixels"]
  assert list(found) == expected
  assert found["LIN-PRED, poses"] == 62.5


def test_figures_of_a_report_on_a_classifier():
  """Of the answers in percent, with hundredths; a measure of the same name stands once."""
  entries = {"accuracy": 0.99, "error": 0.01, "expected_calibration_error": 0.035}
  entries |= {"mean_confidence": 0.5, "confusion": [[1, 0], [0, 1]]}
  measures = {"squared_error": 12.5, "accuracy": 0.75}
  found = figures({"classification": entries, "measures": measures})
  assert found == pytest.approx(
    {
      "accuracy": 99,
      "error": 1,
      "mean confidence": 50,
      "expected calibration error": 3.5,
      "squared error": 12.5,
    }
  )
  table = seeds_table([(0, found)]).splitlines()[2:]
  assert table[0] == "| accuracy | 99.00 |"
  assert table[1] == "| error | 1.00 |"
  assert table[3] == "| expected calibration error | 3.50 |"
  assert table[4] == "| squared error | 12.5 |"
  pairs = {"accuracy": 0.75, "error": 0.25, "both_right": 0.5}
  found = figures({"classification": pairs, "measures": {}})
  assert found == {"accuracy": 75, "error": 25, "both right": 50}


def test_seeds_stand_beside_each_other():
  """1, 2 and 6 have the mean 3 and the deviation sqrt(7); what one seed lacks is left out."""
  index = "adjusted rand index, jitter 0"
  by_seed = [
    (seed, {"squared error": x, index: x / 8}) for seed, x in ((4, 1.0), (5, 2.0), (6, 6.0))
  ]
  by_seed[0][1]["other"] = 1.0
  assert seeds_table(by_seed).splitlines() == [
    "| | seed 4 | seed 5 | seed 6 | mean (sd) |",
    "|---|---|---|---|---|",
    "| squared error | 1.0 | 2.0 | 6.0 | 3.0 (2.6) |",
    f"| {index} | 0.125 | 0.250 | 0.750 | 0.375 (0.331) |",
  ]
  assert seeds_table(by_seed[:2]).splitlines()[2] == "| squared error | 1.0 | 2.0 | 1.5 (0.7) |"
  assert seeds_table(by_seed[:1]) == "| | seed 4 |\n|---|---|\n| squared error | 1.0 |\n" + (
    f"| {index} | 0.125 |\n| other | 1.0 |"
  )


def test_scenes_stand_in_tables_of_sweeps():
  report = SHARED | {"segmentation": SEGMENTATION}
  table = markdown_table({"base": report, "again": report})
  kinds = ("accuracy", "adjusted rand index", "variation of information")
  header = " | ".join(f"{kind}, jitter 0.1, true presence" for kind in kinds)
  assert f"| | seeds | {header} |" in table
  assert "| base | 1 | 87.5 | 0.500 | 0.250 |" in table
  assert table.count("10,000 examples of constellations test.") == 1
