"""Every test runs with four CPU devices, strict broadcasting and checked key use.

Three variables of the environment choose how the tests are compiled:
- `XLA_FLAGS` is added to the flags below, as `XLA_FLAGS=--xla_cpu_max_isa=SSE4_2` for the
  instructions of another processor.
- `TEST_COMPILATION=default` compiles as users do, at two to three times the duration; `quick`, or
  nothing, does not optimise.
- `JAX_COMPILATION_CACHE_DIR` keeps what is compiled for the next time, which then takes a third
  less; otherwise it is removed at the end.
"""

import importlib.metadata
import os
import tempfile

if os.environ.setdefault("TEST_COMPILATION", "quick") not in ("quick", "default"):
  raise ValueError(
    f"TEST_COMPILATION is {os.environ['TEST_COMPILATION']!r}; expected quick or default"
  )
os.environ["JAX_PLATFORMS"] = "cpu"
# Kept under a name of its own: workers and processes that tests start inherit what is set here.
os.environ.setdefault("TEST_XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4 "
if os.environ["TEST_COMPILATION"] == "quick":
  # Compiling is most of the suite's time, running next to nothing: so code is not optimised.
  os.environ["XLA_FLAGS"] += "--xla_backend_optimization_level=0 "
  os.environ["XLA_FLAGS"] += "--xla_llvm_disable_expensive_passes=true "
  # A step of the tiny SCAE compiles in 7.4 s with these emitters, in 2.1 to 2.8 s without them, an
  # eighth sooner in one piece. jaxlib 0.12 has no other emitters, and ends at an unknown flag.
  if importlib.metadata.version("jaxlib").startswith("0.10."):
    os.environ["XLA_FLAGS"] += "--xla_cpu_use_fusion_emitters=false "
    os.environ["XLA_FLAGS"] += "--xla_cpu_parallel_codegen_split_count=1 "
os.environ["XLA_FLAGS"] += os.environ["TEST_XLA_FLAGS"]
os.environ.setdefault("MPLBACKEND", "Agg")
# What several tests compile is compiled once, by whichever worker or process comes first. Whoever
# reads this first makes the folder, and removes it in the end.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
  os.environ["TEST_CACHE_OF"] = str(os.getpid())
  os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="compiled-")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
# Workers share the cores; threads of scikit-learn that wait for each other in circles do not.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import gc
import pathlib
import shutil
import signal

import jax
import pytest

# Tracing makes objects by the million that stay. To look through them for circles as often as
# Python does takes 7 % of the time of a file of models, and more where a worker has run others.
gc.set_threshold(100_000, 20, 100)

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)
# Ten frames for each operation are a tenth of the time of tracing and lowering.
jax.config.update("jax_traceback_in_locations_limit", 0)
# Devices are made once: before a test sets other flags for the processes that it starts.
jax.devices()

ROOT = pathlib.Path(__file__).resolve().parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
  """Files with slow tests come first: at the end, one worker would run while the others wait."""
  slow = {item.path for item in items if item.get_closest_marker("slow")}
  items.sort(key=lambda item: item.path not in slow)


def pytest_unconfigure() -> None:
  if os.environ.get("TEST_CACHE_OF") == str(os.getpid()):
    shutil.rmtree(os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def earlier_objects_stay():
  """`gc.collect` skips objects of earlier modules; it runs after an unreadable checkpoint."""
  gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def never_waiting():
  """Slow machines print no lines about waiting."""
  from scae_jax import waiting

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(waiting, "PATIENCE", 3600)
    yield


@pytest.fixture
def home(tmp_path, monkeypatch) -> pathlib.Path:
  """The current folder, with the toy's config in toy.py."""
  from tests.toy_system import CONFIG_FILE

  (tmp_path / "toy.py").write_text(CONFIG_FILE)
  monkeypatch.chdir(tmp_path)
  return tmp_path


@pytest.fixture
def not_drawn(monkeypatch) -> list:
  """Functions that draw the figures of each report, by name, instead of pictures."""
  drawers = []

  def draw_figures(figures):
    drawers.append({figure.name: figure.draw for figure in figures})
    return {}

  monkeypatch.setattr("scae_jax.evaluation.report.draw_figures", draw_figures)
  return drawers


@pytest.fixture(scope="module")
def built_once():
  """A module loads and traces each config once."""
  from reliability.workdirs import built_once

  with built_once():
    yield


@pytest.fixture(scope="module")
def compiled_once(built_once):
  """A module compiles the programs of each config once; they hold no state of a run."""
  from scae_jax.training import loop
  from scae_jax.training.step import Program

  compile_program, kept = Program.compile, {}

  def program(settings, system, feed, mesh):
    if (key := (repr(settings), mesh.size)) not in kept:
      kept[key] = Program(settings, system, feed, mesh)
    return kept[key]

  def compile_new(self, state):
    if self._compiled is None:
      compile_program(self, state)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(loop, "Program", program)
    patch.setattr(Program, "compile", compile_new)
    yield


@pytest.fixture(scope="module")
def one_device_always():
  """All runs of a module have one device: splitting a program over four costs time."""
  from scae_jax.training import hosts, loop

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(loop, "make_mesh", lambda: hosts.make_mesh(jax.devices()[:1]))
    yield


@pytest.fixture
def one_device(monkeypatch):
  """A run has one device, in a module whose other tests have four."""
  from scae_jax.training import hosts, loop

  monkeypatch.setattr(loop, "make_mesh", lambda: hosts.make_mesh(jax.devices()[:1]))


@pytest.fixture
def as_users_have_it(monkeypatch):
  """Processes that tests start have one device, PYTHONPATH and the default for SIGHUP."""
  from tests.runs import ONE_DEVICE

  monkeypatch.setenv("XLA_FLAGS", ONE_DEVICE)
  monkeypatch.setenv("PYTHONPATH", str(ROOT))
  handler = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup lets them ignore
  yield
  signal.signal(signal.SIGHUP, handler)


@pytest.fixture(scope="session")
def tfds_dir() -> str:
  """Folder with real prepared data sets: `TFDS_DATA_DIR`, or shared/tfds beside the checkout."""
  candidates = [os.environ.get("TFDS_DATA_DIR"), ROOT.parent / "shared" / "tfds"]
  for candidate in candidates:
    if candidate and (pathlib.Path(candidate) / "mnist").is_dir():
      return str(candidate)
  pytest.skip("no prepared TFDS data: set TFDS_DATA_DIR to a folder that has mnist")
