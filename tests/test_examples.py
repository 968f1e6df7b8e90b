"""The notebook runs from top to bottom, in a folder of its own, in a process of its own."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent


def code_of(name: str) -> str:
  """The code of a notebook's cells."""
  cells = json.loads((ROOT / "examples" / name).read_text())["cells"]
  return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


@pytest.mark.slow
def test_quickstart(tmp_path):
  """Without a data set; in CI as it is, elsewhere with 4 steps of training instead of 200."""
  code = code_of("quickstart.ipynb")
  assert code.count("num_steps = 200") == 1
  if "CI" not in os.environ:
    code = code.replace("num_steps = 200", "num_steps = 4")
  environment = os.environ | {
    "XLA_FLAGS": os.environ["XLA_FLAGS"].replace("device_count=4", "device_count=1"),
    "PYTHONPATH": str(ROOT),
    "TFDS_DATA_DIR": str(tmp_path / "none"),
  }
  done = subprocess.run(
    [sys.executable, "-c", code],
    capture_output=True,
    text=True,
    cwd=tmp_path,
    env=environment,
  )
  assert done.returncode == 0, done.stderr
  assert "labels: [0 1" in done.stdout
  assert (tmp_path / "runs" / "quickstart" / "checkpoints").is_dir()
