"""Tables of a sweep: which rows count as finished, and their figures against NumPy."""

import csv
import fcntl
import io
import json
import threading

import numpy as np
import pytest

from scae_jax.evaluation.comparison import csv_table, markdown_table, write_summary
from scae_jax.evaluation.table import markdown
from scae_jax.training.sweep import finished_report, write_tables
from tests.runs import FOUR, report_of, rows_of
from tests.toy_system import toy_config


def several_seeds(folder, lin_matches):
  """The summary of a run of several seeds at once, which have these shares of LIN-MATCH."""
  reports = {i: report_of(toy_config(), i, share) for i, share in enumerate(lin_matches)}
  for report in reports.values():
    del report["measures"]["squared_error"]
  write_summary(folder, reports)
  return json.loads((folder / "metrics.json").read_text())


@pytest.mark.parametrize(
  ("change", "finished"),
  [
    ({}, True),
    ({"data__dir": "/elsewhere"}, True),  # a resumed run may change it
    ({"train__log_every": 1}, True),
    ({"train__num_steps": 30}, False),  # was trained further, or is to be
    ({"evaluation__max_examples": 7}, False),
    ({"evaluation__batch_size": 7}, False),
    ({"train__seed": 1}, False),
    ({"loss__image": 3.0}, False),
  ],
)
def test_a_row_is_finished_by_its_report(home, change, finished):
  (row,) = rows_of(home, FOUR)[:1]
  folder = home / "run" / "evaluation"
  folder.mkdir(parents=True)
  report = report_of(toy_config(**change))
  (folder / "metrics.json").write_text(json.dumps(report))
  assert finished_report(row, home / "run") == (report if finished else None)


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", '{"provenance": {}}'])
def test_what_is_no_report_does_not_finish_a_row(home, text):
  (row,) = rows_of(home, FOUR)[:1]
  folder = home / "run" / "evaluation"
  folder.mkdir(parents=True)
  if text is not None:
    (folder / "metrics.json").write_text(text)
  assert finished_report(row, home / "run") is None
  # A report of another evaluation of the run, as evaluate.py writes it there; and an old one.
  report = report_of(row.config)
  undated = {key: value for key, value in report.items() if key != "date"}
  for other in (report | {"max_examples": 3}, undated):
    (folder / "metrics.json").write_text(json.dumps(other))
    assert finished_report(row, home / "run") is None


def test_the_summary_of_several_seeds_finishes_a_row(home):
  (row,) = rows_of(home, FOUR)[:1]
  (home / "run" / "evaluation").mkdir(parents=True)
  summary = several_seeds(home / "run" / "evaluation", [0.5, 0.75])
  assert finished_report(row, home / "run") == summary


def test_tables_against_numpy(tmp_path):
  values = np.array([51.25, 60.5, 72.125])
  reports = {
    "three": several_seeds(tmp_path, list(values / 100)),
    "one": report_of(toy_config(), seed=7, lin_match=0.875),
  }
  lines = list(csv.DictReader(io.StringIO(csv_table(reports))))
  assert [(line["row"], line["seed"]) for line in lines] == [
    *(("three", seed) for seed in ("0", "1", "2", "mean", "sd")),
    *(("one", seed) for seed in ("7", "mean", "sd")),
  ]
  column = [line["LIN-MATCH, code"] for line in lines]
  expected = [*values, np.mean(values), np.std(values, ddof=1), 87.5, 87.5]
  np.testing.assert_allclose([float(cell) for cell in column[:7]], expected, rtol=1e-12)
  assert column[7] == ""  # one seed has no deviation
  assert {line["step"] for line in lines} == {"24"}
  assert [line["squared error"] for line in lines] == [*5 * [""], "12.5", "12.5", ""]

  header, _, three, one, *rest = markdown_table(reports, ["x", "y"]).splitlines()
  names = [cell.strip() for cell in header.split("|")[3:-1]]
  assert names[:2] == ["LIN-MATCH, code", "LIN-PRED, code"]
  assert names[-1] == "squared error"  # which the first row does not have
  cells = dict(zip(names, (cell.strip() for cell in three.split("|")[3:-1]), strict=True))
  mean, deviation = np.mean(values), np.std(values, ddof=1)
  assert cells.pop("LIN-MATCH, code") == f"{mean:.1f} ({deviation:.1f})"
  assert cells.pop("squared error") == ""
  assert cells["LIN-PRED, code"] == "75.0 (0.0)"
  assert one.startswith("| one | 1 | 87.5 | 75.0 |")
  assert [line for line in rest if "360 examples of digits test" in line] == [rest[2]]
  dates = "Measured 2026-11-20 to 2026-11-27."
  assert dates in rest
  assert dates in markdown_table(dict(reversed(reports.items())))
  assert rest[-1] == "Not finished: x, y."
  assert "Measured 2026-11-27." in markdown_table({"one": reports["one"]}).splitlines()


def test_csv_of_two_seeds(tmp_path):
  """Columns stand as in the report; 50 and 75 have the deviation 25 / sqrt(2)."""
  lines = list(csv.DictReader(io.StringIO(csv_table({"a": several_seeds(tmp_path, [0.5, 0.75])}))))
  assert list(lines[0]) == [
    "row",
    "seed",
    "step",
    "LIN-MATCH, code",
    "LIN-PRED, code",
    "capsules in use, code",
    "LIN-MATCH, raw pixels",
    "LIN-PRED, raw pixels",
    "probe accuracy",
  ]
  column = [float(line["LIN-MATCH, code"]) for line in lines]
  np.testing.assert_allclose(column, [50, 75, 62.5, 25 / np.sqrt(2)], rtol=1e-12)


def test_tasks_take_turns_at_the_tables(home):
  rows = rows_of(home, FOUR)
  (home / "root").mkdir()
  with (home / "root" / "table.lock").open("a") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    writer = threading.Thread(target=write_tables, args=(rows, home / "root"))
    writer.start()
    writer.join(0.2)
    assert writer.is_alive()
    assert not (home / "root" / "table.md").exists()
  writer.join(10)
  assert (home / "root" / "table.md").exists()


def test_a_table_has_its_first_row_as_the_head():
  assert markdown([["", "x"], ["a", "1"], ["b", ""]]) == ("| | x |\n|---|---|\n| a | 1 |\n| b |  |")
