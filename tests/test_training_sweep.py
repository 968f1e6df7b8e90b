"""Sweep files: their rows, and mistakes that are refused before anything runs."""

import pathlib
import re
import shlex

import pytest

from scae_jax.config import parse_command_line
from scae_jax.errors import RunError
from scae_jax.models.ablations import MENU
from scae_jax.training.sweep import check_rows, read_sweep
from scae_jax.training.workdir import locked, write_description
from tests.runs import ROOT, rows_of
from tests.toy_system import toy_config

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
ROW = '[[rows]]\nname = "a"\n'
TABLE = (pathlib.Path("sweeps/table.toml"), pathlib.Path("runs/table"))  # where sweep.py has it


def test_a_row_equals_its_command_line(home):
  base, other = rows_of(home, SWEEP)
  shared = {"loss__image": 2.0, "evaluation__max_examples": 50, "evaluation__batch_size": 16}
  expected = toy_config(train__num_steps=8, train__seeds=2, **shared)
  assert base.config.to_dict() == expected.to_dict()
  assert base.name == "base"
  expected = toy_config(
    train__num_steps=9, train__seeds=3, train__tensorboard=True, data__name="mnist", **shared
  )
  assert other.config.to_dict() == expected.to_dict()
  assert other.name == "other-1+2_3"
  assert base.arguments == (
    "--config=toy.py",
    "--config.train.num_steps=8",
    "--config.loss.image=2",
    "--config.evaluation.max_examples=50",
    "--config.evaluation.batch_size=16",
    "--config.train.seeds=2",
  )
  # Without seeds, the config says how many.
  (row,) = rows_of(home, f'config = "toy.py"\n{ROW}')
  assert row.arguments == ("--config=toy.py",)
  assert row.config.train.seeds == 1


def test_names_that_differ_by_case_alone_are_refused(home):
  with pytest.raises(RunError, match=r"\(A\).*name"):
    rows_of(home, f'config = "toy.py"\n{ROW}[[rows]]\nname = "A"\n')


def test_byte_order_mark_and_crlf_are_read(home):
  text = f'\ufeffconfig = "toy.py"\n{ROW}'.replace("\n", "\r\n")
  assert [row.name for row in rows_of(home, text)] == ["a"]


@pytest.mark.parametrize("name", ["digits", "mnist"])
def test_shipped_sweeps_have_the_whole_menu(name, monkeypatch):
  monkeypatch.chdir(ROOT)
  all_rows = read_sweep(pathlib.Path(f"sweeps/{name}-ablations.toml"), pathlib.Path("runs"))
  base, *rows = [row for row in all_rows if not row.start_from]
  assert [base.name, *(row.name for row in rows)] == ["base", *MENU]
  for row in rows:
    assert row.arguments[1:] == base.arguments[1:]
    assert re.fullmatch(f"{base.arguments[0]}[:,]ablation={row.name}", row.arguments[0])
  settings = ("configs/digits.py", 18_000, 3) if name == "digits" else ("official", 300_000, 5)
  assert base.arguments[0].endswith(settings[0])
  assert (base.config.train.num_steps, base.config.train.seeds) == settings[1:]
  assert len(base.arguments) == 2  # the config and its seeds: nothing is shortened
  presets = [row.arguments[0].partition(":")[2] for row in all_rows if row.start_from]
  if name == "digits":  # each row goes on with two views
    assert presets == ["views", *(f"views,ablation={row}" for row in MENU)]
  else:
    assert presets == []


def test_rows_of_the_shipped_table_are_in_the_results(monkeypatch):
  monkeypatch.chdir(ROOT)
  rows = {row.name: row for row in read_sweep(*TABLE)}
  configs = {name: row.arguments[0].removeprefix("--config=") for name, row in rows.items()}
  table = (ROOT / "docs" / "results.md").read_text()
  named = re.findall(r"^\|.*\[`(?:python train.py|--config=(\S+))`\]", table, re.MULTILINE)
  in_results = {config or "configs/digits.py" for config in named}
  starts = {row.config.train.start_from.removeprefix("runs/table/") for row in rows.values()}
  started_from = {configs[name] for name in starts if name in configs}
  assert set(configs.values()) <= in_results | started_from
  # `make table` scores runs that hold images out on the test images.
  held_out = {name for name, row in rows.items() if row.config.data.get("num_validation", 0)}
  expected = {name for name in held_out if configs[name] in in_results}
  scored = re.findall(r"^SCORED_ON_\w+ := (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
  assert sorted(" ".join(scored).split()) == sorted(expected)


@pytest.mark.parametrize(
  ("record", "names"),
  [
    ("mnist", {"sharp": "mnist-first", "views": "mnist", "views-40": "mnist-40"}),
    ("digits", {"five": "digits", "five-views": "digits-views"}),
    ("fashion_mnist", {"fashion": "fashion-mnist-first", "fashion-views": "fashion-mnist"}),
    ("cifar10", {"cifar10-views": "cifar10"}),
  ],
)
def test_shipped_table_has_the_runs_of_a_record(record, names, monkeypatch):
  monkeypatch.chdir(ROOT)
  rows = {row.name: row for row in read_sweep(*TABLE)}
  commands = (ROOT / "results" / record / "README.md").read_text().replace("\\\n", " ")
  for value in re.findall(r'^ *run="([^"]*)"', commands, re.MULTILINE):
    commands = commands.replace("$run ", f"{value} ")
  for workdir, name in names.items():
    lines = re.findall(r"python train\.py (.*)", commands)
    line = next(line for line in lines if f"--workdir=runs/{workdir} " in f"{line} ")
    arguments = [argument for argument in shlex.split(line) if "workdir" not in argument]
    arguments = [
      re.sub("=runs/(.*)", lambda start: f"=runs/table/{names[start[1]]}", argument)
      for argument in arguments
    ]
    settings = parse_command_line(arguments, default_config="configs/digits.py").settings
    assert settings.config.to_dict() == rows[name].config.to_dict()


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("rows = ", r"sweep\.toml"),
    ("rows = [3]", r"\[\[rows\]\].*\[3\]"),
    ('seed = 3\nconfig = "toy.py"\n' + ROW, r"sweep\.toml.*\['seed'\]"),
    (ROW + "confg = 3", r"row 0 \(a\).*\['confg'\].*\['name', 'conf"),
    (ROW, r"row 0 \(a\).*config.*'FILE\[:PRESET\]'.*None"),
    ('[[rows]]\nconfig = "toy.py"', r"row 0 .*name.*None"),
    ('config = "toy.py"\n[[rows]]\nname = "a/b"', r"row 0 \(a/b\).*name"),
    ('config = "toy.py"\n[[rows]]\nname = "table.md"', r"row 0 \(table\.md\).*name"),
    ('config = "toy.py"\n' + 2 * ROW, r"row 1 \(a\).*name"),
    (ROW + 'config = "toi.py"', r"row 0 \(a\).*--config.*'toi\.py'"),
    (ROW + 'config = "toy.py:lon"', r"row 0 \(a\): .*'' or 'long'.*'lon'"),
    ('config = "toy.py"\noverrides = 3\n' + ROW, r"row 0 \(a\).*overrides.* 3\b"),
    ('config = "toy.py"\nseeds = 0\n' + ROW, r"row 0 \(a\).*train\.seeds.* 0\b"),
    ('config = "toy.py"\nseeds = true\n' + ROW, r"row 0 \(a\).*train\.seeds.*\bint\b"),
    ('config = "toy.py"\n' + ROW + "start_from = 3", r"row 0 \(a\).*start_from.* 3\b"),
    ('config = "toy.py"\n' + ROW + 'start_from = "a"', r"row 0 \(a\).*start_from.*'a'"),
    (
      f'config = "toy.py"\n{ROW}start_from = "b"\noverrides.train.start_from = "runs/b"',
      r"row 0 \(a\).*train\.start_from",
    ),
    *(
      (f'config = "toy.py"\n{ROW}overrides = {{ {override} }}', rf"row 0 \(a\).*{message}")
      for override, message in {
        "train.num_stepz = 3": r"'train\.num_stepz'.*config\.train",
        'train.num_steps = "3"': r"config\.train\.num_steps.*\bint\b.*'3'",
        'model.noise_scale = "1"': r"config\.model\.noise_scale.*\bfloat\b.*'1'",
        "data.name = 3": r"config\.data\.name.*\bstr\b.* 3\b",
        "train.tensorboard = 1": r"config\.train\.tensorboard.*\bbool\b.* 1\b",
        "train.seeds = 3": "seeds = 3",
      }.items()
    ),
  ],
)
def test_wrong_sweep_files_are_refused(home, text, message):
  with pytest.raises(RunError, match=message) as info:
    rows_of(home, text)
  assert info.value.exit_code == 2


def test_all_rows_that_cannot_be_read_are_named_at_once(home):
  text = 'config = "toy.py"\n' + ROW + "seed = 3\n" + ROW.replace("a", "b") + 'config = "c.py"\n'
  with pytest.raises(RunError, match=r"row 0(.|\n)*row 1"):
    rows_of(home, text)
  cosine = 'overrides.optimizer = { schedule = "cosine", decay_steps = 3, end_factor = 0.0 }\n'
  with pytest.raises(RunError, match=r"row 0.*decay_steps"):
    rows_of(home, 'config = "toy.py"\n' + ROW + cosine)
  with pytest.raises(RunError, match=r"nowhere\.toml"):
    read_sweep(home / "nowhere.toml", home)


ROWS_WITH_MISTAKES = """
config = "toy.py"

[[rows]]
name = "good"

[[rows]]
name = "small"
overrides = { data.canvas = 15 }

[[rows]]
name = "taken"
overrides = { train.batch_size = 8 }

[[rows]]
name = "nowhere"
overrides = { train.start_from = "nowhere" }

[[rows]]
name = "two"
seeds = 2

[[rows]]
name = "three"
seeds = 3
start_from = "two"

[[rows]]
name = "modules"
seeds = 2
start_from = "two"
overrides = { train.start_modules = ["no_such"] }
"""


def test_all_rows_that_cannot_run_are_named_before_any_runs(home):
  """Row `taken` has the workdir of a run of another config."""
  rows = rows_of(home, ROWS_WITH_MISTAKES)
  with locked(home / "root" / "taken"):
    write_description(home / "root" / "taken", toy_config(), {})
  with pytest.raises(RunError) as info:
    check_rows(rows, home / "root")
  _, *of_rows = str(info.value).split("row '")
  message_by_row = dict(message.split("'", 1) for message in of_rows)
  assert set(message_by_row) == {"small", "taken", "nowhere", "three", "modules"}
  assert "config.data.canvas" in message_by_row["small"]
  assert "train.batch_size" in message_by_row["taken"]
  assert "train.start_from" in message_by_row["nowhere"]
  assert re.search(r"\b2 seeds\b.*\b3\b", message_by_row["three"])
  assert "no_such" in message_by_row["modules"]
  assert not (home / "root" / "good").exists()
  check_rows(rows[:1], home / "root")
