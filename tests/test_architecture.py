"""The shape of the package: imports go down, files stay small, nothing is hushed up."""

import ast
import functools
import importlib
import re
import subprocess
import sys
import tomllib

import pytest

import scae_jax
from tests.conftest import ROOT

PACKAGE = ROOT / "scae_jax"
FILES = sorted(PACKAGE.rglob("*.py"))
COMMANDS = ("train", "evaluate", "explore", "sweep")
SCRIPTS = [ROOT / f"{name}.py" for name in COMMANDS]
CONFIGS = sorted((ROOT / "configs").glob("*.py"))
EXPERIMENTS = sorted((ROOT / "experiments").glob("*.py"))

# From what imports all the others to what imports none, as in docs/code/layout.md.
FLOORS = (
  {"page"},
  {"library"},
  {"training"},
  {"config"},
  {"sections"},
  {"evaluation"},
  {"figures"},
  {"data"},
  {"models"},
  {"layers"},
  {"kernels"},
  {"math"},
  {"shards", "precision", "errors"},
  {"bounds", "files", "interrupt", "typing", "waiting"},
)
LEVEL = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}


@functools.cache
def modules_imported(path):
  """Dotted names that a file imports; the names of `from a import b` are followed: a, a.b."""
  names = set()
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      names |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, f"{path}: relative imports hide where they go"
      names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
  return names


def rooms_imported(path):
  """What of scae_jax a file imports, by the first name below scae_jax."""
  inside = (name.split(".") for name in modules_imported(path))
  return {name[1] for name in inside if name[0] == "scae_jax" and len(name) > 1}


def room_of(path):
  relative = path.relative_to(PACKAGE)
  return relative.parts[0].removesuffix(".py")


def name_of(path):
  return str(path.relative_to(ROOT))


def test_every_module_has_a_floor():
  assert {room_of(path) for path in FILES} - {"__init__"} == set(LEVEL)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_go_down(path):
  if room_of(path) == "__init__":  # imports nothing before it is asked for; below says what
    return
  own_room = room_of(path)
  for room in rooms_imported(path) - {own_room}:
    assert LEVEL[room] > LEVEL[own_room], f"{own_room} imports {room}, which is not below it"


def test_configs_are_plain_and_nothing_imports_them():
  assert not list((ROOT / "results").rglob("*.py"))
  for path in FILES:
    roots = {name.split(".")[0] for name in modules_imported(path)}
    assert not roots & {"configs", "experiments", "tests", *COMMANDS}, path
  for path in CONFIGS:
    modules = modules_imported(path) - {"scae_jax.models", "scae_jax.models.ablations"}
    assert {name.split(".")[0] for name in modules} <= {"ml_collections", "configs"}, path


@pytest.mark.parametrize("floor", ["data", "evaluation", "figures", "library", "page", "training"])
def test_no_model_by_name(floor):
  """The loop, the evaluator, data and figures know systems, never a model."""
  for path in sorted((PACKAGE / floor).rglob("*.py")):
    models = {name for name in modules_imported(path) if name.startswith("scae_jax.models.")}
    assert all(name.startswith("scae_jax.models.system") for name in models), path


def test_every_package_is_installed():
  """setuptools takes what is listed; scae_jax/shipped is what stands at the top of a checkout."""
  listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
  packages = {".".join(path.parent.relative_to(ROOT).parts) for path in FILES}
  assert set(listed) == packages | {"scae_jax.shipped"}
  pretrained = [path for path in (ROOT / "pretrained").rglob("*") if path.is_file()]
  assert sum(path.stat().st_size for path in pretrained) < 10e6


def test_what_the_package_exports_is_where_type_checkers_look():
  """`if TYPE_CHECKING` and `__getattr__` name the same homes, and `__all__` what they have."""
  path = PACKAGE / "__init__.py"
  imported = {
    alias.name: node.module
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.ImportFrom) and node.module.startswith("scae_jax.")
    for alias in node.names
  }
  assert imported == scae_jax._HOMES
  assert sorted(imported) == scae_jax.__all__
  for name, home in imported.items():
    assert getattr(scae_jax, name) is getattr(importlib.import_module(home), name)


def test_import_is_cheap():
  """Neither JAX nor anything else that takes a second."""
  heavy = "import sys, scae_jax; print({'jax', 'numpy', 'flax'} & set(sys.modules))"
  imports = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, cwd=ROOT)
  assert imports.stdout == "set()\n", imports.stderr


@pytest.mark.parametrize("path", [*FILES, *CONFIGS, *EXPERIMENTS, *SCRIPTS], ids=name_of)
def test_files_are_short_documented_and_hush_nothing(path):
  text = path.read_text()
  assert len(text.splitlines()) <= (90 if path in SCRIPTS else 400)
  assert ast.get_docstring(ast.parse(text)), "a file says what it is about"
  hushed = re.search(r"#\s*(type:\s*ignore|pyright:|noqa|pylint:|fmt:\s*(off|skip)|TODO)", text)
  assert not hushed, hushed
