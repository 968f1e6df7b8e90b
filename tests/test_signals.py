"""Ctrl-C, SIGTERM and SIGHUP at any moment of a command, and a sweep that is killed."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.processes import OURS, start, wait_for_lines
from tests.runs import ROOT, steps_of

TWO_SIGNALS = """
import hashlib
from scae_jax.interrupt import stop_request

with stop_request():
  print("ready", flush=True)
  hashlib.pbkdf2_hmac("sha256", b"", b"", 2**30)  # no Python for minutes, as in a compilation
"""


# train.py, which gets a signal as it imports a module.
SIGNAL_AT_IMPORT = """
import os, sys
number, name = int(sys.argv.pop(1)), sys.argv.pop(1)

def send(event, arguments):
  global name
  if event == "import" and arguments[0] == name:
    name = ""
    os.kill(os.getpid(), number)

sys.addaudithook(send)
import train
train.main()
"""


# A session with a terminal of its own, standard input, as that of a window.
IN_A_TERMINAL = """
import fcntl, runpy, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


LISTENING = """
import atexit, os, signal, subprocess, sys, time
from scae_jax.errors import exit_with_message
from scae_jax.interrupt import on_signal

def send(*names):
  for name in names:
    os.kill(os.getpid(), getattr(signal, name))
  time.sleep(0.2)

"""


@pytest.mark.slow
@pytest.mark.usefixtures("as_users_have_it")
@pytest.mark.parametrize(
  ("number", "moment", "message"),
  [
    (signal.SIGINT, "jax", "SIGINT"),
    (signal.SIGTERM, "orbax.checkpoint", "SIGTERM"),
    (signal.SIGHUP, "scae_jax.training.reporting", r"SIGHUP.* step 24\b.*evaluate\.py --workdir"),
    (signal.SIGINT, "scae_jax.page.write", r"SIGINT.* step 24\b.*evaluate\.py --workdir"),
  ],
)
def test_a_signal_while_nothing_trains_is_one_line(home, number, moment, message):
  script = ["-c", SIGNAL_AT_IMPORT, str(int(number)), moment]
  process = start(*script, "--config=toy.py", f"--workdir={home / 'run'}")
  output, _ = process.communicate(timeout=600)
  assert process.returncode == 128 + number, output
  *others, last = output.splitlines()
  assert re.search(message, last), output
  assert not [line for line in others if line and not re.match(OURS, line)]
  if "evaluate" in message:
    assert steps_of(home / "run", "train")[-1] == 24


@pytest.mark.slow
@pytest.mark.usefixtures("as_users_have_it")
def test_a_closed_terminal_saves_the_run(home):
  """Its output has no reader; the run must not fail for that."""
  controller, terminal = os.openpty()
  workdir = home / "run"
  flags = ("--config=toy.py:long", f"--workdir={workdir}", "--config.train.num_steps=1000000")
  process = subprocess.Popen(
    [sys.executable, "-c", IN_A_TERMINAL, str(ROOT / "train.py"), *flags],
    **dict.fromkeys(("stdin", "stdout", "stderr"), terminal),
    start_new_session=True,
  )
  os.close(terminal)
  reader = threading.Thread(target=drain, args=(controller,), daemon=True)
  reader.start()
  try:
    wait_for_lines(process, workdir, 2)
    assert process.poll() is None
  finally:
    os.close(controller)
  reader.join(10)
  assert process.wait(60) == 128 + signal.SIGHUP
  saved = max(int(path.name) for path in (workdir / "checkpoints").iterdir())
  assert saved >= steps_of(workdir, "train")[-1] > 0


def drain(terminal: int) -> None:
  """Reads what is written to a terminal until it is closed."""
  with contextlib.suppress(OSError):
    while os.read(terminal, 4096):
      pass


@pytest.mark.slow
@pytest.mark.usefixtures("as_users_have_it")
def test_ctrl_c_saves_the_run_after_its_reader_has_ended(home):
  workdir = home / "run"
  flags = ("--config=toy.py:long", f"--workdir={workdir}", "--config.train.num_steps=1000000")
  process = start(str(ROOT / "train.py"), *flags)
  assert process.stdout is not None
  wait_for_lines(process, workdir, 2)
  process.stdout.close()
  process.send_signal(signal.SIGINT)
  assert process.wait(60) == 130
  saved = max(int(path.name) for path in (workdir / "checkpoints").iterdir())
  assert saved >= steps_of(workdir, "train")[-1] > 0


@pytest.mark.parametrize(
  ("script", "code", "printed"),
  [
    ('with exit_with_message():\n  send("SIGHUP")\n  time.sleep(60)', 129, ".*SIGHUP"),
    # Under nohup.
    (
      "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
      'with exit_with_message():\n  send("SIGHUP")\n  print("goes on")',
      0,
      "goes on$",
    ),
    # As the process ends.
    (
      'atexit.register(send, "SIGINT", "SIGTERM", "SIGHUP")\n'
      "with exit_with_message(process_ends=True):\n  pass",
      0,
      "$",
    ),
    # In a forked child: as everywhere, and its parent does not hear of it.
    (
      "with exit_with_message():\n"
      "  if child := os.fork():\n"
      "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
      "    time.sleep(0.2)\n"
      '  else:\n    send("SIGTERM")',
      0,
      "-15$",
    ),
    # The innermost hears it, and then the outer one again.
    (
      "with exit_with_message():\n  with on_signal(print):\n    send('SIGTERM')\n  send('SIGTERM')",
      143,
      "15\n.*SIGTERM",
    ),
  ],
)
@pytest.mark.usefixtures("as_users_have_it")
def test_signal_reaches_the_right_handler(monkeypatch, script, code, printed):
  monkeypatch.setenv("PYTHONPATH", str(ROOT))
  monkeypatch.setenv("PYTHONWARNINGS", "ignore::DeprecationWarning")  # of os.fork, since 3.12
  process = start("-c", LISTENING + script)
  output, _ = process.communicate(timeout=600)
  assert process.returncode == code, output
  assert re.match(printed, output), output


def test_a_current_folder_that_was_removed_is_one_line(monkeypatch, tmp_path):
  monkeypatch.setenv("PYTHONPATH", str(ROOT))
  inside = "os.rmdir(os.getcwd())\nwith exit_with_message():\n  print('goes on')"
  (tmp_path / "gone").mkdir()
  monkeypatch.chdir(tmp_path / "gone")
  process = start("-c", LISTENING + inside)
  output, _ = process.communicate(timeout=600)
  assert process.returncode == 2
  assert re.fullmatch(r"error: .*\n", output)


@pytest.mark.parametrize("ends", ["", "  print('more')\n", "  raise SystemExit(3)\n"])
def test_output_to_a_closed_pipe_is_no_error(monkeypatch, ends):
  monkeypatch.setenv("PYTHONPATH", str(ROOT))
  script = (
    "from scae_jax.interrupt import say\n"
    "with exit_with_message(process_ends=True):\n"
    "  sys.stdin.read()\n"
    "  say('to nobody')\n"
    f"{ends}"
  )
  process = subprocess.Popen(
    [sys.executable, "-c", LISTENING + script],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  assert process.stdin
  assert process.stdout
  assert process.stderr
  process.stdout.close()
  process.stdin.close()
  assert process.stderr.read() == ""
  process.stderr.close()
  assert process.wait(60) == (3 if "SystemExit" in ends else 0)


def test_commands_ignore_the_encoding_and_backend_of_the_terminal(monkeypatch):
  monkeypatch.setenv("PYTHONPATH", str(ROOT))
  monkeypatch.setenv("PYTHONIOENCODING", "ascii")
  monkeypatch.setenv("MPLBACKEND", "no_window_here")
  inside = (
    "with exit_with_message(process_ends=True):\n  import matplotlib\n  print('\u65e5 \\udcff')"
  )
  process = start("-c", LISTENING + inside)
  output, _ = process.communicate(timeout=600)
  assert (process.returncode, output) == (0, "\\u65e5 \\udcff\n")


@pytest.mark.slow
def test_a_run_ends_with_the_sweep_that_is_killed(monkeypatch, tmp_path):
  monkeypatch.setenv("PYTHONPATH", str(ROOT))
  log = tmp_path / "log"
  run = "with exit_with_message():\n  print(os.getpid(), flush=True)\n  time.sleep(600)"
  script = (
    "import pathlib, sys\nfrom scae_jax.training.sweep import run_logged\n"
    "run_logged([sys.executable, '-c', sys.argv[1]], pathlib.Path(sys.argv[2]))"
  )
  process = start("-c", script, LISTENING + run, str(log))
  deadline = time.monotonic() + 60
  while not (log.exists() and log.read_text().endswith("\n")):
    assert time.monotonic() < deadline
    time.sleep(0.02)
  process.kill()
  process.communicate()
  run_pid = int(log.read_text())
  try:
    while "SIG" not in log.read_text():
      assert time.monotonic() < deadline, "it goes on alone"
      time.sleep(0.02)
  finally:
    with contextlib.suppress(ProcessLookupError):
      os.kill(run_pid, signal.SIGKILL)


def test_second_signal_ends_a_busy_process_at_once(monkeypatch):
  monkeypatch.setenv("PYTHONPATH", str(ROOT))
  process = start("-c", TWO_SIGNALS)
  assert process.stdout is not None
  assert process.stdout.readline() == "ready\n"
  process.send_signal(signal.SIGINT)
  time.sleep(0.03)
  process.send_signal(signal.SIGINT)  # as `timeout` does, to the process and to its group
  assert "SIGINT" in process.stdout.readline()
  time.sleep(0.5)
  assert process.poll() is None
  process.send_signal(signal.SIGINT)
  output, _ = process.communicate(timeout=600)
  assert process.returncode == 130
  assert "SIGINT" in output
