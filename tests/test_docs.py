"""README and docs/: every link, command, config and name in them is there; nothing is run.

And what the repository keeps of finished runs names no folder of one machine.
"""

import ast
import importlib.util
import json
import pathlib
import re
import shlex
import subprocess
import tomllib

import pytest

import train
from experiments import table
from scae_jax.config import load_config, parse_command_line
from scae_jax.data.tfds_source import TfdsSet
from scae_jax.models.ablations import ABLATIONS
from tests.runs import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
SCRIPTS = ("train.py", "evaluate.py", "explore.py", "sweep.py", "docs/pictures.py")


def name_of(path):
  return str(path.relative_to(ROOT))


def prose(path):
  """The page without its fenced blocks."""
  return FENCE.sub("", path.read_text())


def commands(path):
  """Lines of indented blocks and `code` that start a program of this repository, joined at "\\"."""
  text = prose(path).replace("\\\n", " ")
  lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
  lines += re.findall(r"`((?:python |--config=)[^`]+)`", text)
  for line in lines:
    line = line.partition("   #")[0].replace("$HOME", "home")
    words = shlex.split(line.replace(".venv/bin/python", "python"))
    if words[:1] == ["timeout"]:
      words = words[2:]
    if words and words[0].startswith("--config="):
      words = ["python", "train.py", *words]
    if words[:1] == ["python"]:
      yield words[1:]


COMMANDS = [
  pytest.param(words, id=f"{name_of(path)}: {' '.join(words)[:60]}")
  for path in PAGES
  for words in commands(path)
]


assert len(COMMANDS) > 60


def flags_of(arguments):
  return {argument[2:].partition("=")[0] for argument in arguments if argument.startswith("--")}


def names_defined(path):
  """Functions, classes, their members and constants of a file, as `name` and `Class.name`."""
  names = set()
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
      names.add(node.name)
    if isinstance(node, ast.ClassDef):
      names |= {f"{node.name}.{n.name}" for n in node.body if isinstance(n, ast.FunctionDef)}
    if isinstance(node, ast.Assign | ast.AnnAssign):
      targets = node.targets if isinstance(node, ast.Assign) else [node.target]
      names |= {target.id for target in targets if isinstance(target, ast.Name)}
  return names


def slug(heading):
  """The anchor of a heading, as GitHub and MkDocs make it."""
  return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_somewhere(path):
  for text, target in LINK.findall(prose(path)):
    if target.startswith("https://"):
      continue
    file, _, anchor = target.partition("#")
    there = (path.parent / file).resolve() if file else path
    assert there.exists(), f"{name_of(path)}: {target}"
    if anchor:
      headings = re.findall(r"^#+ (.*)$", there.read_text(), re.M)
      assert anchor in map(slug, headings), f"{name_of(path)}: {target}"
    if there.suffix == ".py" and re.fullmatch(r"`[\w.]+`", text) and not text.endswith(".py`"):
      name = text.strip("`").removeprefix(f"{there.stem}.")
      assert name in names_defined(there), f"{name_of(path)}: {text} is not in {name_of(there)}"


@pytest.mark.parametrize("words", COMMANDS)
def test_commands_can_be_given(words):
  if words[:2] in (["-m", "pip"], ["-m", "venv"]):
    return
  if words[0] == "-c":
    whole = TfdsSet("mnist", "", "", pathlib.Path("folder")).prepare_commands
    assert words[1] in whole.replace(", data_dir='folder'", "")
    return
  if words[0] == "-m":
    spec = importlib.util.find_spec(words[1])
    assert spec is not None, words[1]
    assert spec.origin is not None
    sources = "".join(path.read_text() for path in pathlib.Path(spec.origin).parent.glob("*.py"))
    for flag in flags_of(words):
      assert f'"--{flag}"' in sources, flag
    return
  assert words[0] in SCRIPTS, words[0]
  if words[0] == "train.py":
    check_training(words[1:])
    return
  defined = re.findall(
    r'(?:DEFINE_\w+|add_argument)\("(?:--)?(\w+)"', (ROOT / words[0]).read_text()
  )
  assert flags_of(words) <= set(defined)
  if words[0] == "sweep.py":
    assert tomllib.loads((ROOT / words[1]).read_text())["rows"]


def check_training(arguments):
  """The whole config is read, as train.py reads it; placeholders have values of their own."""
  if any("mine/" in argument for argument in arguments):
    return  # files that the page tells the reader to write
  source = next((a[9:] for a in arguments if a.startswith("--config=")), train.DEFAULT_CONFIG)
  if re.search(r"[A-Z]{2}", source):
    assert source == "FILE:PRESET"
    return
  filled = [
    a.replace("=I", "=0").replace("=N", "=2").replace("HOST:PORT", "a:1")
    for a in arguments
    if a != "--help"
  ]
  parse_command_line(filled, default_config=train.DEFAULT_CONFIG)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_configs_keys_and_files_in_code_are_there(path):
  """`configs/x.py:preset`, `section.key` of a config, and paths below the root."""
  sections = load_config("configs/digits.py").keys()
  sources = ["configs/digits.py", "configs/probabilistic.py", "configs/capsnet.py"]
  configs = [load_config(source) for source in sources]
  for code in re.findall(r"`([^`\n]+)`", prose(path)):
    if match := re.fullmatch(r"(configs/\w+\.py)(:\w+)?", code):
      load_config(code)
      assert (ROOT / match[1]).is_file()
    elif match := re.fullmatch(r"(\w+)(\.\w+)+( = .*)?", code.removeprefix("config.")):
      if match[1] in sections and not code.endswith((".py", ".json")):
        key = code.removeprefix("config.").partition(" =")[0]
        assert any(has_key(config, key) for config in configs), f"{name_of(path)}: {code}"
    elif re.fullmatch(
      r"(scae_jax|tests|experiments|results|pretrained|docs|sweeps)/[\w./-]*", code
    ):
      assert (ROOT / code).exists(), f"{name_of(path)}: {code}"


def has_key(config, key):
  """Whether a config has a key or a section."""
  node = config
  for name in key.split("."):
    if not hasattr(node, "keys") or name not in node:
      return False
    node = node[name]
  return True


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_programs_in_pages_are_sound(path):
  """They compile, and what they import of this package is there."""
  for language, block in FENCE.findall(path.read_text()):
    if language == "toml":
      assert tomllib.loads(block)["rows"]
    if language != "python":
      continue
    for node in ast.walk(ast.parse(block)):
      if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in ("scae_jax", "configs"):
        module = importlib.import_module(node.module)
        for alias in node.names:
          assert hasattr(module, alias.name), alias.name


def test_ablations_are_all_described():
  page = (ROOT / "docs" / "guide" / "configs.md").read_text()
  for name in ABLATIONS:
    assert f"| `{name}` |" in page


def cells_of(table):
  return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


TABLES = table.tables()


@pytest.mark.parametrize("path", TABLES, ids=name_of)
def test_tables_are_those_of_the_records(path):
  """Cell by cell, what `python -m experiments.table` would write."""
  _, committed_table, _ = table.parts_of(path.read_text())
  expected, committed = cells_of(TABLES[path]), cells_of(committed_table)
  assert len(expected) > 6
  for row, computed in zip(committed, expected, strict=True):
    assert row == computed, name_of(path)


def test_many_runs_stand_as_a_range():
  numbers = {"values": [1000.5, 999.0, 20_000.0, 5.0, 7.0, 8.0], "digits": 1}
  texts = dict.fromkeys(
    ("record", "system", "data", "measure", "published", "minutes", "command", "note"), "x"
  )
  lines = table.of_record([table.Row(**texts, **numbers, detail=False)], "x")
  assert "| 5.0 to 20,000.0 |" in lines


RUNS = [
  {"figures": {"x": 90, "steps alone, minutes": 2}},
  {"figures": {"x": 92, "steps alone, minutes": 3}},
  {"figures": {"x": 97, "steps alone, minutes": 2}},
]
ROWS = [
  {"split": "test", "step": 5, "y": 0.25},
  {"split": "test", "step": 1000, "y": 0.5},
  {"split": "train", "step": 2000},
]
TABLE = """
[[systems]]
name = "s"
command = "c"
data = "d"
record = "a"
files = ["runs.json"]
cores = ", 1 core"
rows = [{ measure = "x", at = "*/figures/x", published = 98.0 }]

[[systems]]
name = "s"
command = "c"
data = "d"
record = "b"
files = ["*.jsonl"]
split = "test"
scale = 100
minutes = ""
step_at = "step"
note = "step {step:,}"
rows = [{ measure = "y", at = "y" }, { measure = "z", at = "y", detail = true }]

[[readme]]
name = "n"
record = "a"
system = "s"
data = "d"
measure = "x"
"""


@pytest.fixture
def records(tmp_path):
  """A folder of two records, `a` in JSON and `b` in JSONL, and the description of their tables."""
  (tmp_path / "a").mkdir()
  (tmp_path / "b").mkdir()
  (tmp_path / "a" / "runs.json").write_text(json.dumps(RUNS))
  (tmp_path / "b" / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
  (tmp_path / "table.toml").write_text(TABLE)
  return tmp_path


def test_figures_of_json_have_mean_and_deviation(records):
  rows = table.read_rows(records)
  # x is 90, 92 and 97, of mean 93 and deviation sqrt(13).
  figure, minutes = "93.0 (3.6)", "2.0 to 3.0, 1 core"
  link = "[`c`](../results/a/README.md)"
  assert cells_of(table.all_results(rows))[2] == ["s", "d", "x", "98.0", figure, "3", minutes, link]
  assert cells_of(table.of_record(rows, "a"))[2:] == [
    ["s", "d", "x", "90.0, 92.0, 97.0", figure, "98.0"],
    ["", "", "minutes of steps", "", minutes, ""],
  ]
  assert cells_of(table.of_readme(rows, records))[2][4] == f"{figure}, 3 runs"


def test_figures_of_jsonl_are_those_of_the_last_line_of_the_split(records):
  rows = table.read_rows(records)
  link = "[`c`](../results/b/README.md)"
  # In percent by `scale`; `detail` is left to the page of the record.
  assert cells_of(table.all_results(rows))[3:] == [
    ["s", "d", "y", "", "50.0, step 1,000", "1", "", link]
  ]
  assert [row[2] for row in cells_of(table.of_record(rows, "b"))[2:]] == ["y", "z"]


def test_figures_that_records_lack_are_refused(records):
  rows = table.read_rows(records)
  with pytest.raises(ValueError, match="'n'"):
    table.of_readme(rows[1:], records)
  (records / "a" / "runs.json").write_text("[]")
  with pytest.raises(ValueError, match=r"runs\.json"):
    table.read_rows(records)


def test_grid_has_a_figure_for_each_row_and_column(tmp_path):
  """Its figures are of a sweep's CSV files, one a seed; their own rows of means are not used."""
  (tmp_path / "a").mkdir()
  for seed, x in ((0, "90"), (1, "92")):
    lines = ["row,seed,x,y", f"first,{seed},{x},1", f"first,mean,{x},1", "first,sd,,"]
    (tmp_path / "a" / f"{seed}.csv").write_text("\n".join(lines))
  columns = [{"name": "X", "at": "{run}/[0-9]/x"}, {"name": "Y", "at": "{run}/0/y"}]
  rows = [{"name": "r", "run": "first", "files": ["*.csv"]}]
  grid = {"record": "a", "name": "g", "columns": columns, "rows": rows}
  lines = cells_of(table.of_grid(grid, tmp_path))
  assert [lines[0], *lines[2:]] == [["g", "X", "Y"], ["r", "91.0 (1.4)", "1.0"]]
  with pytest.raises(ValueError, match="second/"):
    table.of_grid(grid | {"rows": [rows[0] | {"run": "second"}]}, tmp_path)


def test_every_record_is_in_the_results():
  page = (ROOT / "docs" / "results.md").read_text()
  for record in (ROOT / "results").glob("*/README.md"):
    assert f"../results/{record.parent.name}/README.md" in page


def test_diagrams_name_what_is_there():
  """In every box, `<b>name</b>` is defined somewhere, and files are there."""
  defined = {"get_config(preset)"}
  files = (ROOT / "scae_jax").rglob("*.py")
  for path in files:
    defined |= names_defined(path)
  for page in ("config", "image"):
    blocks = FENCE.findall((ROOT / "docs" / "code" / f"{page}.md").read_text())
    diagrams = "".join(text for language, text in blocks if language == "mermaid")
    for name in re.findall(r"<b>([^<]+)</b>", diagrams):
      assert name.split(".")[-1] in defined or name in SCRIPTS, name
    for name in re.findall(r"\b(?:[a-z_]+/)+[a-z_]+\.py", diagrams):
      assert (ROOT / "scae_jax" / name).is_file(), name


# "../srv/x" and "https://a.org/srv/x" are other things.
ABSOLUTE = re.compile(r"(?<![\w./~$}*)-])/[A-Za-z]\w*/\S*")


def test_records_have_no_absolute_path():
  """Text files that git tracks in the folders of records; what somebody tries out is not."""
  for text in ('"workdir": "/tmp/runs/a"', "--workdir=/home/me/runs", "`/srv/a/x`"):
    assert ABSOLUTE.search(text)
  for text in ("runs/srv/a", "../srv/a", "https://a.org/srv/x", "$HOME/data/x", "~/data/x"):
    assert not ABSOLUTE.search(text)
  if not (ROOT / ".git").exists():
    pytest.skip("not a checkout: what is tracked is not known")
  command = ["git", "-C", str(ROOT), "ls-files", "-z", "results", "pretrained", "sweeps"]
  listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
  paths = [ROOT / name for name in listed.split("\0") if name]
  kinds = {".csv", ".json", ".jsonl", ".md", ".toml"}
  records = [path for path in paths if path.suffix in kinds and path.exists()]
  assert len(records) > 50
  paths_of_machine = {
    str(path.relative_to(ROOT)): ABSOLUTE.search(path.read_text()) for path in records
  }
  assert not {name: match[0] for name, match in paths_of_machine.items() if match}
