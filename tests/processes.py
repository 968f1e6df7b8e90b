"""Processes that tests start: train.py, sweep.py and small programs, as users start them."""

import pathlib
import subprocess
import sys
import time

# The start of a line of train.py; those of libraries start with `W0000`, `/a/path` or `Traceback`.
OURS = "[a-z]"


def start(*arguments: str) -> subprocess.Popen:
  return subprocess.Popen(
    [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
  )


def wait_for_lines(process: subprocess.Popen, workdir: pathlib.Path, count: int) -> None:
  path, deadline = workdir / "metrics.jsonl", time.monotonic() + 600
  while process.poll() is None and not (path.exists() and path.read_text().count("\n") >= count):
    assert time.monotonic() < deadline
    time.sleep(0.002)
