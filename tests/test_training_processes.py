"""A run in two processes on this host, with the CPU's collectives, against one in this process."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from scae_jax.training import loop, processes
from scae_jax.training.build import open_run
from scae_jax.training.errors import Interrupted, RunError
from scae_jax.training.loop import train
from scae_jax.training.mesh import make_mesh
from scae_jax.training.processes import Processes, all_or_none, check_agreement, largest
from tests.test_training_loop import compilation_cache, metrics, stop_after
from tests.toy_system import toy_config

__all__ = ["compilation_cache"]  # a fixture: runs of one config compile once

ROOT = pathlib.Path(__file__).resolve().parent.parent
STARTED: list[subprocess.Popen] = []
CADENCE = {"train__steps_per_dispatch": 2, "train__log_every": 2}
CONFIG_FILE = """
from tests.toy_system import toy_config

CADENCE = {"train__steps_per_dispatch": 2, "train__log_every": 2}


def get_config(preset=""):
  if preset == "short":
    return toy_config(**CADENCE)
  rarely = {"train__eval_every": 0, "train__checkpoint_every": 60}
  return toy_config(train__num_steps=2000, **rarely, **CADENCE)
"""


# train.py, but what reports is not even imported, which takes longer than all else, and a process
# that is gone is missed sooner.
WITHOUT_REPORT = """
import sys, types
from scae_jax.training import processes
processes.HEARTBEAT_TIMEOUT = 10  # seconds
reporting = types.ModuleType("scae_jax.training.reporting")
reporting.report_run = None
sys.modules[reporting.__name__] = reporting
import train
train.main(sys.argv[1:])
"""


def start(folder: pathlib.Path, preset: str, *, report: bool) -> list[subprocess.Popen]:
  """Both processes of a run, two devices each; what they say goes to `<folder>/log<process>`."""
  (folder / "toy.py").write_text(CONFIG_FILE)
  with socket.socket() as free:
    free.bind(("localhost", 0))
    port = free.getsockname()[1]
  script = [str(ROOT / "train.py")] if report else ["-c", WITHOUT_REPORT]
  command = [sys.executable, *script, f"--config={folder / 'toy.py'}:{preset}"]
  command += [f"--workdir={folder / 'run'}", f"--coordinator=localhost:{port}"]
  environment = os.environ | {
    "PYTHONPATH": str(ROOT),
    "XLA_FLAGS": os.environ["XLA_FLAGS"].replace("device_count=4", "device_count=2"),
    "JAX_COMPILATION_CACHE_DIR": str(folder.parent / "compiled"),  # of all tests of this worker
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
  }
  for i in range(2):
    own = ["--num_processes=2", f"--process_id={i}"]
    with (folder / f"log{i}").open("w") as log:
      STARTED.append(
        subprocess.Popen([*command, *own], env=environment, stdout=log, stderr=subprocess.STDOUT)
      )
  return STARTED[-2:]


def finish(started: list[subprocess.Popen]) -> list[int]:
  return [process.wait(timeout=600) for process in started]


@pytest.fixture(autouse=True)
def ended():
  """No process of a test that fails runs on."""
  yield
  while STARTED:
    STARTED.pop().kill()


def said(folder: pathlib.Path, process: int) -> str:
  return (folder / f"log{process}").read_text()


def assert_close_runs(workdir: pathlib.Path, expected: pathlib.Path) -> None:
  """The same losses to 1e-5: sums over four devices are taken in another order."""
  for line, other in zip(metrics(workdir), metrics(expected), strict=True):
    assert (line["step"], line["split"]) == (other["step"], other["split"])
    for name, value in (*other["terms"].items(), ("total", other["total"])):
      own = line["total"] if name == "total" else line["terms"][name]
      np.testing.assert_allclose(own, value, rtol=1e-5, atol=1e-7, err_msg=f"{name} {line}")


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> pathlib.Path:
  """The run on the four devices of this process."""
  workdir = tmp_path_factory.mktemp("alone")
  train(toy_config(**CADENCE), workdir)
  return workdir


@pytest.mark.slow
def test_two_processes_train_as_one(alone, tmp_path):
  codes = finish(start(tmp_path, "short", report=True))
  assert codes == [0, 0], said(tmp_path, 0) + said(tmp_path, 1)
  assert_close_runs(tmp_path / "run", alone)
  run = open_run(tmp_path / "run")  # what four devices of two processes wrote, read by one
  assert run.step == 24
  assert (tmp_path / "run" / "evaluation" / "metrics.json").is_file()
  assert "step 24/24" in said(tmp_path, 0)
  assert "step" not in said(tmp_path, 1)  # process 0 alone talks


@pytest.mark.slow
def test_process_that_dies_ends_the_run_and_a_restart_resumes(tmp_path):
  first, second = start(tmp_path, "long", report=False)
  deadline = time.monotonic() + 600
  while "step 90/" not in said(tmp_path, 0) and first.poll() is None:
    assert time.monotonic() < deadline
    time.sleep(0.05)
  assert first.poll() is None, said(tmp_path, 0)  # it is the other's death that ends it
  second.kill()
  code, killed = finish([first, second])
  assert killed == -9
  # A collective operation that fails; or the heartbeat, where the death falls into a checkpoint; or
  # Gloo, the CPU's transport, which aborts where it falls between two of its messages.
  messages = {
    1: ("process 0 of 2 can no longer work with the others",),
    -6: ("another task died", "gloo::EnforceNotMet"),
  }
  assert any(message in said(tmp_path, 0) for message in messages[code])
  step = open_run(tmp_path / "run").step
  assert step >= 60
  first, second = start(tmp_path, "long", report=False)
  while f"step {step + 40}/" not in said(tmp_path, 0) and first.poll() is None:
    assert time.monotonic() < deadline
    time.sleep(0.05)
  second.terminate()  # one host is asked to stop, both do, after the same step
  assert finish([first, second]) == [143, 143], said(tmp_path, 0)
  assert f"resuming at step {step}" in said(tmp_path, 0)
  stopped = open_run(tmp_path / "run").step
  assert f"step {stopped} of 2000 is saved" in said(tmp_path, 0)
  assert f"step {stopped} of 2000 is saved" in said(tmp_path, 1)


@pytest.mark.parametrize("devices", [(1, 4), (4, 1)])
def test_checkpoint_goes_on_with_another_number_of_devices(devices, alone, tmp_path, monkeypatch):
  for number, num_dispatches in zip(devices, (6, 0), strict=True):
    with monkeypatch.context() as patch:
      patch.setattr(loop, "make_mesh", lambda number=number: make_mesh(jax.devices()[:number]))
      if num_dispatches:
        stop_after(patch, num_dispatches)
        with pytest.raises(Interrupted, match="step 12 of 24"):
          train(toy_config(**CADENCE), tmp_path)
      else:
        train(toy_config(**CADENCE), tmp_path)
  assert_close_runs(tmp_path, alone)


def test_processes_must_have_the_same_config_and_data(monkeypatch, tmp_path):
  """The other process has given another text, or the same."""
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  gathered = processes.multihost_utils
  monkeypatch.setattr(gathered, "process_allgather", lambda own: np.array([own, own]))
  check_agreement("config", "anything")
  monkeypatch.setattr(gathered, "process_allgather", lambda own: np.array([own, own + 1]))
  with pytest.raises(RunError, match="have the same config; that of process 1 differs"):
    check_agreement("config", "anything")
  monkeypatch.undo()
  compared = {}

  def differ(what, text):
    compared[what] = text
    if what == "data set":
      raise RunError("differs")

  monkeypatch.setattr(loop, "check_agreement", differ)
  with pytest.raises(RunError, match="differs"):
    train(toy_config(**CADENCE), tmp_path / "run")
  assert json.loads(compared["config"])["train"]["seed"] == 0
  assert json.loads(compared["data set"])["name"] == "digits"
  assert not (tmp_path / "run").exists()


def test_one_process_agrees_with_itself():
  check_agreement("config", "anything")
  assert largest(3) == 3
  with pytest.raises(RunError, match="own trouble"), all_or_none("do it"):
    raise RunError("own trouble")


@pytest.mark.parametrize(
  ("values", "message"),
  [
    (("localhost", 2, 0), "--coordinator must be host:port; it is 'localhost'"),
    ((":1234", 2, 0), "--coordinator must be host:port"),
    (("host:port", 2, 0), "--coordinator must be host:port"),
    (("host:1234", 0, 0), "needs --num_processes and.*they are 0 and 0"),
    (("host:1234", 2, 2), "from 0 to one less; they are 2 and 2"),
    (("host:1234", 2, -1), "they are 2 and -1"),
  ],
)
def test_processes_that_cannot_meet_are_refused(values, message):
  with pytest.raises(RunError, match=message):
    Processes(*values)
