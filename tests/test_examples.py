"""The notebook runs from top to bottom, in a folder of its own, in a process of its own."""

import json
import os
import pathlib
import resource
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent


def code_of(name: str) -> str:
  """The code of a notebook's cells."""
  cells = json.loads((ROOT / "examples" / name).read_text())["cells"]
  return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def processor_seconds() -> float:
  """Of all processes that this one has started and waited for."""
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  return used.ru_utime + used.ru_stime


@pytest.mark.slow
def test_quickstart(tmp_path):
  """In three minutes of one core, however busy; compiled as for users, without a data set."""
  environment = os.environ | {
    "XLA_FLAGS": os.environ["TEST_XLA_FLAGS"],
    "PYTHONPATH": str(ROOT),
    "TFDS_DATA_DIR": str(tmp_path / "none"),
  }
  start = processor_seconds()
  done = subprocess.run(
    [sys.executable, "-c", code_of("quickstart.ipynb")],
    capture_output=True,
    text=True,
    cwd=tmp_path,
    env=environment,
  )
  assert done.returncode == 0, done.stderr
  assert processor_seconds() - start < 180
  assert "labels: [0 1" in done.stdout
  assert (tmp_path / "runs" / "quickstart" / "checkpoints").is_dir()
