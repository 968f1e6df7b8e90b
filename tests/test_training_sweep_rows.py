"""The rows of a sweep: finished ones, tables against NumPy, tasks, failures, signals.

train.py as the process of a row: test_training_process.py.
"""

import csv
import io
import json
import os
import re
import signal
import sys
import threading
import time
import types

import numpy as np
import pytest

from scae_jax.errors import Interrupted, RunError
from scae_jax.evaluation.comparison import csv_table, markdown_table, summary
from scae_jax.files import write_json
from scae_jax.training import sweep
from scae_jax.training.workdir import locked, write_description
from tests.runs import FOUR, report_of, rows_of
from tests.toy_system import toy_config


def several_seeds(folder, lin_matches):
  """The summary of a run of several seeds, which have these shares of LIN-MATCH."""
  reports = {i: report_of(toy_config(), i, share) for i, share in enumerate(lin_matches)}
  for report in reports.values():
    del report["metrics"]["squared_error"]
  write_json(folder / "metrics.json", summary(reports))
  return json.loads((folder / "metrics.json").read_text())


def test_a_row_is_finished_by_its_report(home):
  (row,) = rows_of(home, FOUR)[:1]
  path = home / "run" / "evaluation" / "metrics.json"
  path.parent.mkdir(parents=True)
  assert sweep.finished_report(row, home / "run") is None
  report = report_of(toy_config())
  undated = {key: value for key, value in report.items() if key != "date"}
  # A report of another evaluation of the run, as evaluate.py writes it there; and an old one.
  for other in ({}, [], {"provenance": {}}, report | {"max_examples": 3}, undated):
    path.write_text(json.dumps(other))
    assert sweep.finished_report(row, home / "run") is None
  path.write_text("{")
  assert sweep.finished_report(row, home / "run") is None
  for change, finished in (
    ({}, True),
    ({"data__dir": "/elsewhere"}, True),  # a resumed run may change it
    ({"train__num_steps": 30}, False),  # was trained further, or is to be
    ({"evaluation__max_examples": 7}, False),
    ({"evaluation__batch_size": 7}, False),
    ({"train__seed": 1}, False),
    ({"loss__image": 3.0}, False),
  ):
    report = report_of(toy_config(**change))
    path.write_text(json.dumps(report))
    assert sweep.finished_report(row, home / "run") == (report if finished else None)
  path.write_text(json.dumps(report_of(toy_config()) | {"unfinished": "figures: why"}))
  assert sweep.finished_report(row, home / "run") is None
  several = several_seeds(path.parent, [0.5, 0.75])
  assert sweep.finished_report(row, home / "run") == several


CODE_FIGURES = ["LIN-MATCH, code", "LIN-PRED, code", "capsules in use, code"]
OTHER_FIGURES = ["LIN-MATCH, raw pixels", "LIN-PRED, raw pixels", "probe accuracy", "squared error"]
LIN_MATCH = np.array([51.25, 60.5, 72.125])  # of the seeds of row "three", in percent


@pytest.fixture
def reports(tmp_path):
  """Of a row of three seeds, and of a row of one seed, which alone has a squared error."""
  return {
    "three": several_seeds(tmp_path, list(LIN_MATCH / 100)),
    "one": report_of(toy_config(), seed=7, lin_match=0.875),
  }


def test_csv_table_against_numpy(reports):
  assert reports["three"]["notes"] == ["of all", "of seed 0", "of seed 1", "of seed 2"]
  lines = list(csv.DictReader(io.StringIO(csv_table(reports))))
  assert [(line["row"], line["seed"]) for line in lines] == [
    *(("three", seed) for seed in ("0", "1", "2", "mean", "sd")),
    *(("one", seed) for seed in ("7", "mean", "sd")),
  ]
  assert list(lines[0]) == ["row", "seed", "step", *CODE_FIGURES, *OTHER_FIGURES]
  column = [line["LIN-MATCH, code"] for line in lines]
  expected = [*LIN_MATCH, np.mean(LIN_MATCH), np.std(LIN_MATCH, ddof=1), 87.5, 87.5]
  np.testing.assert_allclose([float(cell) for cell in column[:7]], expected, rtol=1e-12)
  assert column[7] == ""  # one seed has no deviation
  assert {line["step"] for line in lines} == {"24"}
  assert [line["squared error"] for line in lines] == [*5 * [""], "12.5", "12.5", ""]


def test_markdown_table_against_numpy(reports):
  lines = markdown_table(reports, ["x", "y"]).splitlines()
  rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[:4]]
  header, _, three, one_seed = (dict(zip(rows[0], row, strict=True)) for row in rows)
  names = list(header)[2:]  # after the row and its seeds
  assert names[:2] == ["LIN-MATCH, code", "LIN-PRED, code"]
  assert names[-1] == "squared error"  # which the first row does not have
  mean, deviation = np.mean(LIN_MATCH), np.std(LIN_MATCH, ddof=1)
  assert three["LIN-MATCH, code"] == f"{mean:.1f} ({deviation:.1f})"
  assert three["LIN-PRED, code"] == "75.0 (0.0)"
  assert three["squared error"] == ""
  assert rows[3][:4] == ["one", "1", "87.5", "75.0"]
  assert one_seed["squared error"] == "12.5"
  # Below the table once what was scored, and at last the rows that are not finished.
  assert len([line for line in lines if re.search(r"\b360 examples\b", line)]) == 1
  assert re.search(r"\bx, y\b", lines[-1])


def test_markdown_table_has_the_dates_of_its_reports(reports):
  both = {"2026-11-20", "2026-11-27"}
  for some_reports, dates in (
    (reports, both),
    (dict(reversed(reports.items())), both),
    ({"one": reports["one"]}, {"2026-11-27"}),
  ):
    assert set(re.findall(r"\d{4}-\d\d-\d\d", markdown_table(some_reports))) == dates


def rows_in_table(home) -> list[str]:
  """Names of the rows that the Markdown table has, which are the finished ones."""
  lines = (home / "root" / "table.md").read_text().splitlines()
  return [line.split("|")[1].strip() for line in lines if line.startswith("| ")][1:]


def test_tasks_share_the_rows():
  """A row is run by the task that runs the row it starts from: e starts from b, h from e."""
  starts = {"e": "b", "h": "e"}
  rows = [types.SimpleNamespace(name=name, start_from=starts.get(name, "")) for name in "abcdefgh"]
  assert sweep.read_task("0/1", rows) == rows
  for text, names in (("0/3", "ad"), ("1/3", "befh"), ("2/3", "cg"), ("9/10", "")):
    assert [row.name for row in sweep.read_task(text, rows)] == list(names)
  for text in ("3/3", "1", "-1/3", "1/0", "a/b", "1/3/4", ""):
    with pytest.raises(RunError, match=r"--task .*i/n"):
      sweep.read_task(text, rows)


# Stands for train.py: reports, prints and ends as `plan.json` says for the row of its workdir.
TRAINER = """
import json, os, pathlib, sys
workdir = pathlib.Path(sys.argv[-1].removeprefix("--workdir="))
with open("calls.txt", "a") as file:
  file.write(workdir.name + " ")
plan = json.loads(pathlib.Path("plan.json").read_text())[workdir.name]
print(plan.get("say", "training"), file=sys.stderr)
if "report" in plan:
  (workdir / "evaluation").mkdir(exist_ok=True)
  (workdir / "evaluation" / "metrics.json").write_text(json.dumps(plan["report"]))
if plan.get("code", 0) < 0:
  os.kill(os.getpid(), -plan["code"])
sys.exit(plan.get("code", 0))
"""


@pytest.fixture
def trainer(home):
  """Runs rows by a script that follows a plan; returns the lines that the sweep prints."""
  (home / "trainer.py").write_text(TRAINER)
  command = [sys.executable, "-S", str(home / "trainer.py")]

  def run(plan, task_rows, rows):
    (home / "plan.json").write_text(json.dumps(plan))
    (home / "calls.txt").write_text("")
    lines = []
    sweep.run_rows(task_rows, rows, home / "root", command, lines.append)
    return lines

  return run


def calls(home):
  return (home / "calls.txt").read_text().split()


def test_a_failing_row_does_not_stop_the_others(home, trainer):
  rows = rows_of(home, FOUR)
  good = {"report": report_of(rows[0].config)}
  plan = {
    "a": good,
    "b": {"code": 1, "say": "step 3\nerror: loss term 'image' is not finite at step 3\nbye"},
    "c": {"code": -9, "say": "cut short"},
    "d": good | {"code": 1, "say": "error: disk full"},
  }
  with pytest.raises(sweep.RowsFailed) as info:
    trainer(plan, rows, rows)
  assert info.value.exit_code == 1
  for fact in (
    r"\b3 of 4\b",
    "b: .* 1, error: loss term 'image' is not finite at step 3",  # the row's last error
    "c: .* -9, cut short",  # or its last line
    "d: .* 1, error: disk full",  # though it has a report
  ):
    assert re.search(fact, str(info.value))
  assert calls(home) == ["a", "b", "c", "d"]
  assert rows_in_table(home) == ["a", "d"]
  # Finished rows are not run again; failed ones are.
  lines = trainer({"b": good, "c": good}, rows, rows)
  assert calls(home) == ["b", "c"]
  assert any("1/4 a" in line for line in lines)
  assert rows_in_table(home) == ["a", "b", "c", "d"]
  # The log has both attempts, and errors of the first are not those of the second.
  (home / "root" / "b" / "evaluation" / "metrics.json").unlink()
  with pytest.raises(sweep.RowsFailed, match=r"b: .* 0, training"):
    trainer({"b": {}}, rows, rows)  # it writes no report
  assert (home / "root" / "b" / "train.log").read_text().count("training\n") == 2


def test_a_row_waits_for_the_one_it_starts_from(home, trainer):
  """Else it would start, once and for all, from a checkpoint in the middle of the other run."""
  rows = rows_of(home, f'{FOUR}start_from = "b"\n')  # the last row
  assert rows[3].config.train.start_from == str(home / "root" / "b")
  plan = {name: {"report": report_of(row.config)} for name, row in zip("abcd", rows, strict=True)}
  with pytest.raises(sweep.RowsFailed) as info:
    trainer(plan | {"b": {"code": 1}}, rows, rows)
  assert "d: b" in str(info.value)
  assert calls(home) == ["a", "b", "c"]
  trainer(plan, rows, rows)
  assert calls(home) == ["b", "d"]
  # The row that it has started from is trained again or longer: then it is of another one.
  trainer(plan, rows, rows)
  assert calls(home) == []
  (home / "root" / "b" / "metrics.jsonl").write_text("{}\n")
  with pytest.raises(sweep.RowsFailed, match=r"d: b\b.*root/d\b"):
    trainer(plan, rows, rows)


def test_a_row_that_has_trained_keeps_the_spelling_of_its_start(home):
  """The folder of a sweep may be moved, or written in another way."""
  text = f'{FOUR}start_from = "b"\n'
  config = rows_of(home, text)[3].config.copy_and_resolve_references()
  workdir = home / "root" / "d"
  with config.unlocked():
    config.train.start_from = "elsewhere/b"
  with locked(workdir):
    write_description(workdir, config, {})
  assert rows_of(home, text)[3].config.train.start_from == str(home / "root" / "b")
  (workdir / "checkpoints").mkdir()
  assert rows_of(home, text)[3].config.train.start_from == "elsewhere/b"


def test_a_task_runs_its_rows_and_tables_all(home, trainer):
  rows = rows_of(home, FOUR)
  plan = {name: {"report": report_of(rows[0].config)} for name in "abcd"}
  trainer(plan, sweep.read_task("1/2", rows), rows)
  assert calls(home) == ["b", "d"]
  assert rows_in_table(home) == ["b", "d"]
  trainer(plan, sweep.read_task("0/2", rows), rows)
  assert calls(home) == ["a", "c"]
  assert rows_in_table(home) == ["a", "b", "c", "d"]


# Ends at a signal as train.py does, with exit code 128 + signal.
PATIENT = """
import signal, sys, time
def stop(number, _):
  print(signal.Signals(number).name, flush=True)
  sys.exit(128 + number)
signal.signal(signal.SIGINT, stop)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_goes_on_to_the_run_and_ends_the_sweep(home, number):
  rows = rows_of(home, FOUR)
  log = home / "root" / "a" / "train.log"
  before = signal.getsignal(number)

  def interrupt():
    while not (log.exists() and "ready" in log.read_text()):
      time.sleep(0.01)
    os.kill(os.getpid(), number)

  thread = threading.Thread(target=interrupt)
  command = [sys.executable, "-S", "-c", PATIENT]
  thread.start()
  with pytest.raises(Interrupted, match=r"train\.log") as info:
    sweep.run_rows(rows, rows, home / "root", command, lambda line: None)
  thread.join()
  assert info.value.exit_code == 128 + number
  assert signal.Signals(number).name in log.read_text()  # the run has heard it
  assert not (home / "root" / "b").exists()
  assert (home / "root" / "table.md").exists()  # from the start
  assert signal.getsignal(number) is before
