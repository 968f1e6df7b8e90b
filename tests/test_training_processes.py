"""Runs on several devices, and in two processes with the CPU's collectives."""

import dataclasses
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from reliability.configs import base_configs
from scae_jax.config import read_settings
from scae_jax.errors import RunError
from scae_jax.sections import Processes
from scae_jax.training import hosts, loop
from scae_jax.training import start as start_module
from scae_jax.training.build import make_system
from scae_jax.training.hosts import check_agreement, make_mesh
from scae_jax.training.loop import train
from scae_jax.training.optimizer import make_optimizer
from scae_jax.training.run import open_run
from scae_jax.training.state import make_state
from scae_jax.training.step import update
from scae_jax.training.workdir import load_settings
from tests.runs import ROOT, metrics, stop_after
from tests.toy_system import toy_config, toy_data

pytestmark = pytest.mark.usefixtures("compiled_once")

STARTED: list[subprocess.Popen] = []
CADENCE = {"train__steps_per_dispatch": 2, "train__log_every": 2}
CONFIG_FILE = f"""
from tests.toy_system import toy_config

CADENCE = {CADENCE}


def get_config(preset=""):
  if preset == "short":
    return toy_config(**CADENCE)
  rarely = {{"train__eval_every": 0, "train__checkpoint_every": 16}}
  return toy_config(train__num_steps=2000, **rarely, **CADENCE)
"""


# train.py with a report of one line, and a process that is gone is missed sooner.
SCRIPT = """
import sys, types
from scae_jax.training import hosts
hosts.HEARTBEAT_TIMEOUT = 10  # seconds
reporting = types.ModuleType("scae_jax.training.reporting")
reporting.report_run = lambda run, workdir: print("reported step", run.step, "in", workdir)
sys.modules[reporting.__name__] = reporting
import train
train.main(sys.argv[1:])
"""
# Before that: process 1 is asked to stop at step 10, and the same command is given again.
STOPPED_ONCE = """
import os, signal, time
import jax
from scae_jax.training import loop
from scae_jax.errors import Interrupted
from scae_jax.training.step import Program
run_steps, train_once = Program.run, loop.train

def run(self, state, step):
  if step == 10 and jax.process_index() == 1:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)
  return run_steps(self, state, step)

def train_twice(*arguments):
  try:
    train_once(*arguments)
  except Interrupted as stopped:
    print(stopped, flush=True)
  return train_once(*arguments)

Program.run, loop.train = run, train_twice
"""


def start(folder: pathlib.Path, preset: str, before: str = "") -> list[subprocess.Popen]:
  """Both processes of a run, two devices each; their output goes to `<folder>/log<process>`."""
  (folder / "toy.py").write_text(CONFIG_FILE)
  with socket.socket() as free:
    free.bind(("localhost", 0))
    port = free.getsockname()[1]
  command = [sys.executable, "-c", before + SCRIPT, f"--config={folder / 'toy.py'}:{preset}"]
  command += [f"--workdir={folder / 'run'}", f"--coordinator=localhost:{port}"]
  environment = os.environ | {
    "PYTHONPATH": str(ROOT),
    "XLA_FLAGS": os.environ["XLA_FLAGS"].replace("device_count=4", "device_count=2"),
    "JAX_COMPILATION_CACHE_DIR": str(folder.parent / "compiled"),  # of all tests of this worker
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
  }
  for i in range(2):
    process_flags = ["--num_processes=2", f"--process_id={i}"]
    with (folder / f"log{i}").open("w") as log:
      STARTED.append(
        subprocess.Popen(
          [*command, *process_flags], env=environment, stdout=log, stderr=subprocess.STDOUT
        )
      )
  return STARTED[-2:]


@pytest.fixture(autouse=True)
def ended():
  """Kills the processes of a test that fails."""
  yield
  while STARTED:
    STARTED.pop().kill()


def log_of(folder: pathlib.Path, process: int) -> str:
  return (folder / f"log{process}").read_text()


def wait_for_checkpoint(step: int, folder: pathlib.Path, process: subprocess.Popen) -> None:
  """Waits for a checkpoint of this step or a later one."""
  deadline, checkpoints = time.monotonic() + 600, folder / "run" / "checkpoints"
  while process.poll() is None:
    names = [path.name for path in checkpoints.glob("*")]
    if any(name.isdigit() and int(name) >= step for name in names):
      return
    assert time.monotonic() < deadline
    time.sleep(0.02)


def assert_close_runs(workdir: pathlib.Path, expected: pathlib.Path) -> None:
  """The same losses to 1e-5: sums over four devices are taken in another order."""
  for line, other in zip(metrics(workdir), metrics(expected), strict=True):
    assert (line["step"], line["split"]) == (other["step"], other["split"])
    for name, value in (*other["terms"].items(), ("total", other["total"])):
      actual = line["total"] if name == "total" else line["terms"][name]
      np.testing.assert_allclose(actual, value, rtol=1e-5, atol=1e-7, err_msg=f"{name} {line}")


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> pathlib.Path:
  workdir = tmp_path_factory.mktemp("alone")
  train(toy_config(**CADENCE), workdir)
  return workdir


@pytest.mark.slow
def test_two_processes_train_as_one(alone, tmp_path):
  """One host is asked to stop between two checkpoints: both stop after the same step."""
  codes = [process.wait(600) for process in start(tmp_path, "short", STOPPED_ONCE)]
  assert codes == [0, 0], log_of(tmp_path, 0) + log_of(tmp_path, 1)
  assert_close_runs(tmp_path / "run", alone)
  run = open_run(tmp_path / "run")  # what four devices of two processes wrote, read by one
  assert run.step == 24
  for process in (0, 1):
    assert re.search(r"\b12 of 24\b", log_of(tmp_path, process))
  first, second = log_of(tmp_path, 0), log_of(tmp_path, 1)
  assert re.search(r"step 12\b(?! of|/)", first)
  # Process 0 alone talks and reports.
  for fact in ("step 24/24", f"reported step 24 in {tmp_path / 'run'}"):  # of SCRIPT, above
    assert fact in first
    assert fact not in second


@pytest.mark.slow
def test_process_that_dies_ends_the_run_and_another_resumes(tmp_path, capfd):
  first, second = start(tmp_path, "long")
  wait_for_checkpoint(16, tmp_path, first)
  assert first.poll() is None, log_of(tmp_path, 0)  # it is the other's death that ends it
  second.kill()
  code, killed = first.wait(600), second.wait(600)
  assert killed == -9
  # A collective operation fails; or the heartbeat or Gloo, the CPU's transport, aborts (-6).
  assert code in (1, -6), log_of(tmp_path, 0)
  if code == 1:
    assert re.search(r"\b0 of 2\b", log_of(tmp_path, 0))
  # On the four devices of this process, which go on where the last checkpoint stands.
  step = open_run(tmp_path / "run").step
  assert step >= 16
  settings = load_settings(tmp_path / "run")
  stop_after(3, settings, tmp_path / "run", rf"\b{step + 6}\D+2000\b")
  assert re.search(rf"step {step}\b(?! of|/)", capfd.readouterr().err)


@pytest.mark.parametrize("devices", [(1, 4), (4, 1)])
def test_checkpoint_goes_on_with_another_number_of_devices(devices, alone, tmp_path, monkeypatch):
  before, after = (make_mesh(jax.devices()[:number]) for number in devices)
  monkeypatch.setattr(loop, "make_mesh", lambda: before)
  stop_after(6, toy_config(**CADENCE), tmp_path, r"\b12\D+24\b")
  monkeypatch.setattr(loop, "make_mesh", lambda: after)
  train(toy_config(**CADENCE), tmp_path)
  assert_close_runs(tmp_path, alone)


@pytest.mark.parametrize("name", ["probabilistic", "cnn"])
def test_models_with_noise_do_not_depend_on_the_devices(name):
  """For the SCAE: test_scae_training.py."""
  config = base_configs()[name]
  if name == "cnn":
    config.model.dropout = 0.5
  else:  # networks that compile sooner
    config.model.object_inference.num_layers = 0
    config.model.part_inference.update({"widths": (4,), "strides": (2,)})
  settings = read_settings(config)
  data = toy_data(side=20)
  system, optimizer = make_system(settings, data), make_optimizer(settings.optimizer)
  images = jax.random.uniform(jax.random.key(1), (8, 20, 20, 1))
  batch = {"image": images, "label": jnp.arange(8)}

  state = make_state(settings, system, data, make_mesh(jax.devices()[:1]))
  state = jax.device_get(dataclasses.replace(state, rng=jnp.zeros(2)))

  def step(num_devices: int):
    mesh = make_mesh(jax.devices()[:num_devices])
    run = jax.jit(lambda state: update(system, optimizer, state, batch, jax.random.key(2), mesh))
    after, metrics = run(state)
    return jax.device_get((metrics, after.opt_state))

  single, shared = step(1), step(4)
  rounding = 1e-6 * single[0]["grad_norm"]
  for on_one, on_four in zip(jax.tree.leaves(single), jax.tree.leaves(shared), strict=True):
    np.testing.assert_allclose(on_four, on_one, rtol=1e-4, atol=rounding)


def test_processes_must_have_the_same_config_and_data(monkeypatch, tmp_path):
  """Agreement is checked of the same text, and of another one in process 1."""
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  gathered = hosts.multihost_utils
  monkeypatch.setattr(gathered, "process_allgather", lambda sent: np.array([sent, sent]))
  check_agreement("config", "anything")
  monkeypatch.setattr(gathered, "process_allgather", lambda sent: np.array([sent, sent + 1]))
  with pytest.raises(RunError, match=r"config.*process 1\b"):
    check_agreement("config", "anything")
  monkeypatch.undo()
  compared = {}

  def differ(name, text):
    compared[name] = text
    if name == "data set":
      raise RunError(name)

  monkeypatch.setattr(start_module, "check_agreement", differ)
  with pytest.raises(RunError, match="data set"):
    train(toy_config(**CADENCE), tmp_path / "run")
  assert json.loads(compared["config"])["train"]["seed"] == 0
  assert json.loads(compared["data set"])["name"] == "digits"
  assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
  ("values", "message"),
  [
    (("localhost", 2, 0), "--coordinator.*host:port.*'localhost'"),
    ((":1234", 2, 0), "--coordinator.*host:port"),
    (("host:port", 2, 0), "--coordinator.*host:port"),
    (("host:1234", 2, 2), "--process_id.* 2 and 2"),
    (("host:1234", 2, -1), "--process_id.* 2 and -1"),
  ],
)
def test_processes_that_cannot_meet_are_refused(values, message):
  with pytest.raises(RunError, match=message):
    Processes(*values)
