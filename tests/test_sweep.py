"""Sweeps: the file and its errors, which rows run, tables, signals, a kill in the middle."""

import contextlib
import csv
import fcntl
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from scae_jax.evaluation.comparison import csv_table, markdown_table
from scae_jax.evaluation.summary import write_summary
from scae_jax.training import sweep
from scae_jax.training.config import dump_config
from scae_jax.training.errors import Interrupted, RunError
from scae_jax.training.sweep import (
  RowsFailed,
  finished_report,
  read_task,
  reason,
  run_logged,
  run_rows,
  write_tables,
)
from scae_jax.training.sweep_file import check_rows, read_sweep
from scae_jax.training.workdir import open_for_writing
from tests.toy_system import CONFIG_FILE, toy_config

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture
def home(tmp_path, monkeypatch) -> pathlib.Path:
  """The folder in which a sweep is started."""
  (tmp_path / "toy.py").write_text(CONFIG_FILE)
  monkeypatch.chdir(tmp_path)
  return tmp_path


def rows_of(home, text):
  (home / "sweep.toml").write_text(text)
  return read_sweep(home / "sweep.toml")


SWEEP = """
config = "toy.py"
seeds = 2
[overrides]
train.num_steps = 8
"loss.image" = 2
evaluation = { max_examples = 50, batch_size = 16 }

[[rows]]
name = "base"

[[rows]]
name = "other-1+2_3"
config = "toy.py:long"
seeds = 3
overrides = { train.num_steps = 9, train.tensorboard = true, data.name = "mnist" }
"""


def test_a_row_is_what_the_command_line_would_be(home):
  base, other = rows_of(home, SWEEP)
  shared = {
    "loss__image": 2.0,
    "evaluation__max_examples": 50,
    "evaluation__batch_size": 16,
  }
  expected = toy_config(train__num_steps=8, train__seeds=2, **shared)
  assert base.config.to_dict() == expected.to_dict()
  assert base.name == "base"
  expected = toy_config(
    train__num_steps=9, train__seeds=3, train__tensorboard=True, data__name="mnist", **shared
  )
  assert other.config.to_dict() == expected.to_dict()
  assert other.name == "other-1+2_3"
  assert base.arguments[0] == "--config=toy.py"
  assert set(base.arguments) == {
    "--config=toy.py",
    "--config.train.num_steps=8",
    "--config.train.seeds=2",
    "--config.loss.image=2",
    "--config.evaluation.max_examples=50",
    "--config.evaluation.batch_size=16",
  }


def test_without_seeds_the_config_says_how_many(home):
  (row,) = rows_of(home, 'config = "toy.py"\n[[rows]]\nname = "a"\n')
  assert row.arguments == ("--config=toy.py",)
  assert row.config.train.seeds == 1


@pytest.mark.parametrize("name", ["digits", "mnist"])
def test_shipped_sweeps_have_the_whole_menu(name, monkeypatch):
  monkeypatch.chdir(ROOT)
  from configs.ablations import MENU

  base, *rows = read_sweep(pathlib.Path(f"sweeps/{name}-ablations.toml"))
  assert base.name == "base"
  assert [row.name for row in rows] == list(MENU)
  for row in rows:
    assert row.arguments[0].endswith(f"ablation={row.name}")
    assert row.arguments[1:] == base.arguments[1:]
    assert row.arguments[0].startswith(base.arguments[0])
  length = base.config.train.num_steps
  points = base.config.loss.schedule.posterior_within
  if name == "digits":
    assert [factor for _, factor in points] == [2.5, 15.0, 1.0]
    assert points[-1][0] == length / 2  # as in the recipe
  else:
    assert (length, base.config.train.seeds, points) == (300_000, 5, ())


ROW = '[[rows]]\nname = "a"\n'


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("rows = ", r"sweep.toml cannot be read: Invalid value"),
    ("", r"must have at least one \[\[rows\]\]"),
    ("rows = [3]", r"must have at least one \[\[rows\]\], each with a name; it has \[3\]"),
    ('seed = 3\nconfig = "toy.py"\n' + ROW, r"unknown keys \['seed'\]; valid ones are \['config'"),
    (
      ROW + "confg = 3",
      r"row 0 \(a\): unknown keys \['confg'\]; valid ones are \['name', 'config'",
    ),
    (ROW, r"row 0 \(a\): config must be 'FILE\[:PRESET\]'; it is None"),
    ('[[rows]]\nconfig = "toy.py"', r"row 0 \(without a name\): name must be letters.*it is None"),
    ('config = "toy.py"\n[[rows]]\nname = "a/b"', r"row 0 \(a/b\): name must be letters"),
    ('config = "toy.py"\n[[rows]]\nname = "table.md"', r"name must be letters"),
    ('config = "toy.py"\n[[rows]]\nname = ""', r"name must be letters"),
    ('config = "toy.py"\n' + 2 * ROW, r"row 1 \(a\): another row has this name"),
    (ROW + 'config = "toi.py"', r"row 0 \(a\): --config must name .* there is no 'toi.py'"),
    (ROW + 'config = "toy.py:lon"', r"row 0 \(a\): .*preset must be '' or 'long', got 'lon'"),
    (
      'config = "toy.py"\n' + ROW + "overrides = { train.num_stepz = 3 }",
      r"row 0 \(a\): unknown config key 'train.num_stepz': the keys of config.train are \['batch_",
    ),
    ('config = "toy.py"\noverrides = 3\n' + ROW, r"row 0 \(a\): overrides must be a table.*is 3"),
    (
      'config = "toy.py"\n' + ROW + 'overrides = { train.num_steps = "ten" }',
      r"row 0 \(a\): .*num_steps=ten.*config.train.num_steps is of type int",
    ),
    (
      'config = "toy.py"\n' + ROW + 'overrides = { train.num_steps = "3" }',
      r"row 0 \(a\): config.train.num_steps must be of type int; it is '3' of type str",
    ),
    (
      'config = "toy.py"\n' + ROW + "overrides = { data.name = 3 }",
      r"row 0 \(a\): config.data.name must be of type str; it is 3 of type int",
    ),
    (
      'config = "toy.py"\n' + ROW + "overrides = { train.tensorboard = 1 }",
      r"row 0 \(a\): config.train.tensorboard must be of type bool; it is 1",
    ),
    (
      'config = "toy.py"\n' + ROW + "overrides = { train.num_steps = 0 }",
      r"row 0 \(a\): config.train.num_steps must be at least 1; it is 0",
    ),
    (
      'config = "toy.py"\n' + ROW + "overrides = { train.seeds = 3 }",
      r"row 0 \(a\): write seeds = 3",
    ),
    ('config = "toy.py"\nseeds = 0\n' + ROW, r"row 0 \(a\): seeds must be a whole .* it is 0"),
    ('config = "toy.py"\nseeds = true\n' + ROW, r"row 0 \(a\): seeds must be a whole .*is True"),
  ],
)
def test_a_wrong_file_is_refused(home, text, message):
  with pytest.raises(RunError, match=message) as info:
    rows_of(home, text)
  assert info.value.exit_code == 2


def test_all_mistakes_are_told_at_once(home):
  text = 'config = "toy.py"\n' + ROW + "seed = 3\n" + ROW.replace("a", "b") + 'config = "c.py"\n'
  with pytest.raises(RunError, match=r"row 0(.|\n)*row 1(.|\n)*Nothing was started."):
    rows_of(home, text)
  with pytest.raises(RunError, match=r"nowhere.toml cannot be read"):
    read_sweep(home / "nowhere.toml")


def test_what_a_run_would_refuse_is_refused_before_any_run(home):
  text = 'config = "toy.py"\n' + "".join(
    f'[[rows]]\nname = "{name}"\noverrides = {{ {override} }}\n'
    for name, override in {
      "good": "",
      "small": "data.canvas = 15",
      "nowhere": 'data.name = "no_such_set"',
      "empty": "model.num_features = 0",
      "taken": "train.batch_size = 8",
      "long": 'optimizer = { schedule = "cosine", decay_steps = 3, end_factor = 0 }',
    }.items()
  )
  rows = rows_of(home, text)
  with open_for_writing(home / "root" / "taken", toy_config(), {}):
    pass
  with pytest.raises(RunError) as info:
    check_rows(rows, home / "root")
  message = str(info.value)
  assert "row 'good'" not in message
  for name, words in {
    "small": "config.data.canvas",
    "nowhere": "no_such_set",
    "empty": "num_features must be at least 1",
    "taken": "train.batch_size: 16 there, 8 given",
    "long": "decay_steps",
  }.items():
    (line,) = (part for part in message.split("row '") if part.startswith(f"{name}'"))
    assert words in line
  assert not (home / "root" / "good").exists()
  check_rows(rows[:1], home / "root")


def test_tasks_share_the_rows():
  rows = list("abcdefg")
  assert read_task("0/1", rows) == rows
  assert [read_task(f"{i}/3", rows) for i in range(3)] == [list("adg"), list("be"), list("cf")]
  assert read_task("9/10", rows) == []
  for text in ("3/3", "1", "-1/3", "1/0", "a/b", "1/3/4", ""):
    with pytest.raises(RunError, match=r"--task must be i/n, with i from 0 to n - 1; it is "):
      read_task(text, rows)


def report_of(config, seed=0, lin_match=0.5):
  """What a run of this config would report."""
  scores = {"lin_match": lin_match, "lin_pred": 0.75, "capsules_in_use": 3, "capsules": 8}
  report = {
    "fitted_on": {"dataset": "digits", "split": "train", "examples": 1437},
    "scored_on": {"dataset": "digits", "split": "test", "examples": 360},
    "max_examples": config.evaluation.max_examples,
    "step": config.train.num_steps,
    "date": f"2026-11-2{seed}T10:00:00+00:00",
    "features": {"code": scores},
    "pixels": scores,
    "measures": {"squared_error": 12.5, "probe_accuracy": 0.25},
    "versions": {"jax": "1.2"},
    "hardware": {"cpu_count": 2, "cpu_model": "C", "device_count": 1, "device_kind": "D"},
    "provenance": {"config": json.loads(dump_config(config))},
  }
  return report | {"seed": seed}


def several_seeds(folder, lin_matches):
  """The summary of a run of several seeds at once, which have these shares of LIN-MATCH."""
  reports = {i: report_of(toy_config(), i, share) for i, share in enumerate(lin_matches)}
  for report in reports.values():
    del report["measures"]["squared_error"]
  write_summary(folder, reports)
  return json.loads((folder / "metrics.json").read_text())


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


FOUR = 'config = "toy.py"\n' + "".join(f'[[rows]]\nname = "{name}"\n' for name in "abcd")


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
  assert "Measured 2026-11-20 to 2026-11-27." in rest
  assert rest[-1] == "Not finished: x, y."
  assert "Measured 2026-11-27." in markdown_table({"one": reports["one"]}).splitlines()


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


KILLED = """
config = "toy.py"
[overrides]
train.compilation_cache = "compiled"
evaluation.max_examples = 40

[[rows]]
name = "first"

[[rows]]
name = "broken"
overrides = { model.nan_below = 1e9 }

[[rows]]
name = "long"
config = "toy.py:long"
"""


def start(home, *flags):
  """sweep.py itself, in a process group of its own."""
  return subprocess.Popen(
    [sys.executable, str(ROOT / "sweep.py"), "sweep.toml", *flags],
    cwd=home,
    env=os.environ | {"PYTHONPATH": str(ROOT), "SCAE_JAX_CACHE": str(home / "cache")},
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    start_new_session=True,
  )


def stamps(folder):
  return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_sweep_killed_in_the_middle_loses_nothing(home):
  (home / "sweep.toml").write_text(KILLED)
  root = home / "runs" / "sweep"
  process = start(home)
  lines, deadline = root / "long" / "metrics.jsonl", time.monotonic() + 300
  # Until the last row has a checkpoint.
  while not (lines.exists() and lines.read_text().count("\n") > 6) and process.poll() is None:
    assert time.monotonic() < deadline
    time.sleep(0.01)
  with contextlib.suppress(ProcessLookupError):
    os.killpg(process.pid, signal.SIGKILL)
  said, _ = process.communicate(timeout=60)
  assert process.returncode == -signal.SIGKILL, said
  assert "1/3 first: finished in" in said
  assert "2/3 broken: FAILED" in said
  kept = stamps(root / "first")
  assert "Not finished: broken, long." in (root / "table.md").read_text()

  process = start(home)
  said, _ = process.communicate(timeout=300)
  assert process.returncode == 1, said
  assert "1/3 first: finished before" in said
  assert "3/3 long: finished in" in said
  assert "error: 1 of 3 rows failed" in said
  assert "broken: exit code 1, error: " in said
  assert "not finite" in said
  assert "Traceback" not in said
  assert stamps(root / "first") == kept
  assert "resuming at step" in (root / "long" / "train.log").read_text()
  lines = list(csv.DictReader((root / "table.csv").read_text().splitlines()))
  assert [(line["row"], line["seed"]) for line in lines] == [
    (row, seed) for row in ("first", "long") for seed in ("0", "mean", "sd")
  ]
  assert {line["step"] for line in lines if line["row"] == "long"} == {"480"}


def test_a_typo_is_one_message_before_any_run(home):
  (home / "sweep.toml").write_text(KILLED.replace("nan_below", "nan_bellow"))
  process = start(home)
  said, _ = process.communicate(timeout=120)
  assert process.returncode == 2, said
  assert said.startswith("error: sweep.toml, row 1 (broken): unknown config key 'model.nan_bellow'")
  assert "Traceback" not in said
  assert not (home / "runs").exists()
