"""What is kept in the repository of finished runs names no folder of one machine."""

import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
# A root folder at the start of a path: "../home/x" and "https://a.org/home/x" are other things.
ABSOLUTE = re.compile(r"(?<![\w./~$}-])/(home|media|mnt|opt|private|root|tmp|Users|var|work)/\S*")
TEXT = {".csv", ".json", ".jsonl", ".md", ".toml"}


def records() -> list[pathlib.Path]:
  """Text files that git tracks in the folders of records; what somebody tries out is not."""
  if not (ROOT / ".git").exists():
    pytest.skip("not a checkout: what is tracked is not known")
  command = ["git", "-C", str(ROOT), "ls-files", "-z", "results", "pretrained", "sweeps"]
  listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
  paths = [ROOT / name for name in listed.split("\0") if name]
  return [path for path in paths if path.suffix in TEXT and path.exists()]


@pytest.mark.parametrize(
  ("text", "found"),
  [
    ('"workdir": "/tmp/runs/a"', True),
    ("--workdir=/home/me/runs", True),
    ("`/work/main/x`", True),
    ("runs/tmp/a", False),
    ("../root/a", False),
    ("https://a.org/home/x", False),
    ("$HOME/work/x", False),
    ("~/work/x", False),
  ],
)
def test_absolute_paths_are_told_from_others(text, found):
  assert bool(ABSOLUTE.search(text)) == found


def test_records_have_no_absolute_path():
  paths = records()
  assert len(paths) > 50
  found = {str(path.relative_to(ROOT)): ABSOLUTE.search(path.read_text()) for path in paths}
  assert not {name: match[0] for name, match in found.items() if match}
