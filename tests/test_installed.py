"""What `pip install .` installs, as users start it in a folder that is not a checkout: the lines of
Python in README.md, the commands, and the notebook."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

import pytest

from tests.runs import ONE_DEVICE, ROOT

pytestmark = pytest.mark.slow
KEPT = ("HOME", "LANG", "PATH", "TMPDIR")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
  """The folder that it is installed in."""
  folder = tmp_path_factory.mktemp("installed")
  source = folder / "source"  # building writes beside what it builds
  left_out = shutil.ignore_patterns(".*", "build", "docs", "results", "runs", "site", "tests")
  shutil.copytree(ROOT, source, ignore=left_out)
  pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
  subprocess.run([*pip, f"--target={folder / 'package'}", str(source)], check=True)
  shutil.rmtree(source)
  return folder / "package"


def start(installed: pathlib.Path, folder: pathlib.Path, *command: str) -> str:
  """What a command prints, with no other variable of the tests, no GPU and no data set."""
  environment = {name: os.environ[name] for name in KEPT if name in os.environ}
  environment |= {"PYTHONPATH": str(installed), "MPLBACKEND": "Agg", "JAX_PLATFORMS": "cpu"}
  environment["TFDS_DATA_DIR"] = str(folder / "none")
  # Compiled as all tests are: as users compile it takes several times longer, and tests no more.
  environment["XLA_FLAGS"] = ONE_DEVICE
  done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  return done.stdout


def test_lines_of_the_readme(installed, tmp_path):
  block = (ROOT / "README.md").read_text().partition("    import scae_jax\n")
  lines = textwrap.dedent(block[1] + block[2].partition("\n\n")[0])
  assert lines.count("model.") == 3
  before = "import numpy as np\nimages = np.zeros((3, 28, 28), np.uint8)\n"
  after = "\nprint(scae_jax.__file__, encoding.object_poses.shape, image.shape, labels.shape)\n"
  path = tmp_path / "lines.py"
  path.write_text(before + lines + after)
  printed = start(installed, tmp_path, sys.executable, str(path))
  assert printed == f"{installed}/scae_jax/__init__.py (3, 24, 2, 3) (3, 40, 40, 1) (3,)\n"


@pytest.mark.parametrize("name", ["train", "evaluate", "explore"])
def test_commands_have_their_names_in_their_help(installed, tmp_path, name):
  printed = start(installed, tmp_path, str(installed / "bin" / f"scae-{name}"), "--help")
  assert f"  scae-{name} --" in printed
  assert "python " not in printed


def test_notebook(installed, tmp_path):
  cells = json.loads((ROOT / "examples" / "quickstart.ipynb").read_text())["cells"]
  code = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
  shorter = code.replace("num_steps = 200", "num_steps = 2").replace("every = 100", "every = 1")
  assert len(shorter) == len(code) - 4
  path = tmp_path / "quickstart.py"
  path.write_text(shorter)
  printed = start(installed, tmp_path, sys.executable, str(path))
  assert "labels: [0 1" in printed
  assert (tmp_path / "runs" / "quickstart" / "checkpoints" / "2").is_dir()
