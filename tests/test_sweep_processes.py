"""Rows as processes: tasks that share them, failures, signals, and a run that was cut off."""

import csv
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import sweep as sweep_script
from scae_jax.training import sweep
from scae_jax.training.errors import Interrupted, RunError
from scae_jax.training.loop import train
from scae_jax.training.sweep import RowsFailed, read_task, reason, run_logged, run_rows
from tests.runs import FOUR, ROOT, report_of, rows_of, stop_after


def test_tasks_share_the_rows():
  rows = list("abcdefg")
  assert read_task("0/1", rows) == rows
  assert [read_task(f"{i}/3", rows) for i in range(3)] == [list("adg"), list("be"), list("cf")]
  assert read_task("9/10", rows) == []
  for text in ("3/3", "1", "-1/3", "1/0", "a/b", "1/3/4", ""):
    with pytest.raises(RunError, match=r"--task must be i/n, with i from 0 to n - 1; it is "):
      read_task(text, rows)


# Stands for train.py: does what `plan.json` says of the row whose workdir it is given.
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
  """Runs rows by a script that does what it is told, and returns what was said."""
  (home / "trainer.py").write_text(TRAINER)
  command = [sys.executable, "-S", str(home / "trainer.py")]

  def run(plan, mine, rows):
    (home / "plan.json").write_text(json.dumps(plan))
    (home / "calls.txt").write_text("")
    said = []
    run_rows(mine, rows, home / "root", command, said.append)
    return said

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
    "d": good,
  }
  with pytest.raises(RowsFailed) as info:
    trainer(plan, rows, rows)
  assert info.value.exit_code == 1
  assert "2 of 4 rows failed" in str(info.value)
  assert "b: exit code 1, error: loss term 'image' is not finite at step 3" in str(info.value)
  assert "c: exit code -9, cut short" in str(info.value)
  assert calls(home) == ["a", "b", "c", "d"]
  table = (home / "root" / "table.md").read_text()
  assert "| a | 1 |" in table
  assert "| d | 1 |" in table
  assert "Not finished: b, c." in table
  # What is finished is left alone; what failed is tried again.
  said = trainer({"b": good, "c": good}, rows, rows)
  assert calls(home) == ["b", "c"]
  assert "1/4 a: finished before" in said
  assert "Not finished" not in (home / "root" / "table.md").read_text()
  # The log has both attempts, and errors of the first are not those of the second.
  (home / "root" / "b" / "evaluation" / "metrics.json").unlink()
  with pytest.raises(RowsFailed, match="b: exit code 3, training"):
    trainer({"b": {"code": 3}}, rows, rows)
  assert (home / "root" / "b" / "train.log").read_text().count("training\n") == 2


def test_a_run_without_its_report_has_failed(home, trainer):
  rows = rows_of(home, FOUR)[:1]
  with pytest.raises(RowsFailed, match="a: exit code 0, training"):
    trainer({"a": {}}, rows, rows)


def test_a_run_that_fails_after_its_report_has_failed(home, trainer):
  rows = rows_of(home, FOUR)[:1]
  with pytest.raises(RowsFailed, match="a: exit code 1, error: disk full"):
    trainer(
      {"a": {"report": report_of(rows[0].config), "code": 1, "say": "error: disk full"}}, rows, rows
    )


def test_a_task_runs_its_rows_and_tables_all(home, trainer):
  rows = rows_of(home, FOUR)
  plan = {name: {"report": report_of(rows[0].config)} for name in "abcd"}
  trainer(plan, read_task("1/2", rows), rows)
  assert calls(home) == ["b", "d"]
  assert "Not finished: a, c." in (home / "root" / "table.md").read_text()
  trainer(plan, read_task("0/2", rows), rows)
  assert calls(home) == ["a", "c"]
  lines = (home / "root" / "table.md").read_text().splitlines()
  assert [line[2] for line in lines[2:6]] == list("abcd")


# Ends at a signal as train.py does, after a moment in which a second one would be another request.
PATIENT = """
import signal, sys, time
def stop(number, _):
  print("saved at", signal.Signals(number).name, flush=True)
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
  thread.start()
  with pytest.raises(Interrupted, match=r"has ended, see .*train.log; the same command") as info:
    run_rows(rows, rows, home / "root", [sys.executable, "-S", "-c", PATIENT], lambda line: None)
  thread.join()
  assert info.value.exit_code == 128 + number
  assert f"saved at {signal.Signals(number).name}" in log.read_text()
  assert not (home / "root" / "b").exists()
  # The tables are there from the start.
  assert "Not finished: a, b, c, d." in (home / "root" / "table.md").read_text()
  assert signal.getsignal(number) is before


def test_a_signal_before_the_process_is_not_lost(home, monkeypatch):
  class Late(subprocess.Popen):
    def __init__(self, *arguments, **options):
      os.kill(os.getpid(), signal.SIGTERM)
      super().__init__(*arguments, **options)

  monkeypatch.setattr(sweep.subprocess, "Popen", Late)
  started = time.monotonic()
  with pytest.raises(Interrupted):
    run_logged([sys.executable, "-S", "-c", "import time; time.sleep(60)"], home / "log")
  assert time.monotonic() - started < 30


def test_a_run_does_not_read_what_is_typed(tmp_path):
  reader, writer = os.pipe()
  os.write(writer, b"typed")
  os.close(writer)
  before = os.dup(0)
  os.dup2(reader, 0)
  try:
    run_logged([sys.executable, "-S", "-c", "print([*open(0)])"], tmp_path / "log")
  finally:
    os.dup2(before, 0)
    os.close(before)
    os.close(reader)
  assert (tmp_path / "log").read_text() == "[]\n"


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("", "it said nothing"),
    ("one\n  two  \n\n", "two"),
    ("error: first\nerror: second\nstep 3\n", "error: second"),
    ("Traceback\n  x\njaxlib.errors.JaxRuntimeError: out of memory\nend", "jaxlib.errors.JaxR"),
  ],
)
def test_the_reason_is_the_last_error_or_line(tmp_path, text, expected):
  (tmp_path / "log").write_bytes(b"error: of an earlier run\n" + text.encode())
  assert reason(tmp_path / "log", len(b"error: of an earlier run\n")).startswith(expected)


CUT_OFF = """
config = "toy.py"
overrides = { evaluation.max_examples = 40 }

[[rows]]
name = "early"

[[rows]]
name = "late"
overrides = { train.seed = 1 }
"""


def stamps(folder):
  return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_sweep_that_was_cut_off_loses_nothing(home, monkeypatch, capsys):
  """A row that was finished stands, the one that was cut off resumes; and the report of train.py
  itself says that it is finished. All that a sweep knows is in its folders."""
  rows, root = rows_of(home, CUT_OFF), home / "runs" / "sweep"
  early = root / "early" / "evaluation" / "metrics.json"
  early.parent.mkdir(parents=True)
  early.write_text(json.dumps(report_of(rows[0].config, seed=7)))
  finished = stamps(root / "early")
  with monkeypatch.context() as patch:
    stop_after(patch, 3)
    with pytest.raises(Interrupted, match="step 12 of 24"):
      train(rows[1].settings, root / "late")
  monkeypatch.setenv("PYTHONPATH", str(ROOT))
  sweep_script.main(["sweep.toml"])
  assert "2/2 late: finished in" in capsys.readouterr().out
  assert "resuming at step 12" in (root / "late" / "train.log").read_text()
  lines = list(csv.DictReader((root / "table.csv").read_text().splitlines()))
  assert [line["seed"] for line in lines] == ["7", "mean", "sd", "1", "mean", "sd"]
  assert [(line["row"], line["step"]) for line in lines[3:]] == 3 * [("late", "24")]
  assert stamps(root / "early") == finished

  kept, said = stamps(root / "late"), []
  run_rows(rows, rows, root, ["no such program"], said.append)
  assert said[:2] == ["1/2 early: finished before", "2/2 late: finished before"]
  assert stamps(root / "late") == kept


def test_a_typo_is_one_message_before_any_run(home, capsys):
  (home / "sweep.toml").write_text(CUT_OFF.replace("train.seed = 1", "model.nan_bellow = 1e9"))
  with pytest.raises(SystemExit) as stopped:
    sweep_script.main(["sweep.toml"])
  assert stopped.value.code == 2
  said = capsys.readouterr().err
  assert said.startswith("error: sweep.toml, row 1 (late): unknown config key 'model.nan_bellow'")
  assert not (home / "runs").exists()
