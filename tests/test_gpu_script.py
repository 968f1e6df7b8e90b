"""benchmarks/gpu.sh, verb by verb, with a stand-in for Python that says what it was called with."""

import os
import pathlib
import shutil
import subprocess
import tarfile

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "benchmarks" / "gpu.sh"
VERBS = ("prepare", "bench", "train", "save", "restore", "report", "classify", "viewpoint")
MIB = 1 << 20

# What the stand-in does in place of training: leaves a checkpoint and metrics in its --workdir.
TRAINS = """
case "$*" in train.py*)
  for word in "$@"; do case "$word" in --workdir=*) folder="${word#--workdir=}" ;; esac; done
  mkdir -p "$folder/checkpoints/100" "$folder/evaluation"
  echo metrics >"$folder/metrics.jsonl" ;;
esac
"""


class Checkout:
  """A folder with the script and nothing else of the repository."""

  def __init__(self, root: pathlib.Path):
    self.root, self.out = root, root / "out"
    (root / "benchmarks").mkdir()
    shutil.copy(SCRIPT, root / "benchmarks")
    self.acts("")

  def acts(self, body: str) -> None:
    """Makes the stand-in, which logs its arguments and then does what `body` says."""
    stub = self.root / "python"
    stub.write_text(f'#!/bin/sh\necho "$*" >>"{self.root}/log"\n{body}\n')
    stub.chmod(0o755)

  def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The script's result; $OUT is empty before, as on the machine."""
    shutil.rmtree(self.out, ignore_errors=True)
    (self.root / "log").write_text("")
    inherited = {
      name: value
      for name, value in os.environ.items()
      if not name.startswith(("SCAE_JAX", "JAX_COMPILATION", "GIT_", "WHEELS", "PYTHON"))
    }
    known = {"PYTHON": str(self.root / "python"), "GIT_CEILING_DIRECTORIES": str(self.root.parent)}
    return subprocess.run(
      ["bash", str(self.root / "benchmarks" / "gpu.sh"), *arguments],
      env=inherited | known | environment,
      capture_output=True,
      text=True,
      timeout=60,
    )

  def log(self) -> list[str]:
    """A line a call of the stand-in."""
    return (self.root / "log").read_text().splitlines()

  def packed(self, name: str) -> set[str]:
    """Names of the files, not folders, in the pieces of an archive in $OUT."""
    whole = self.root / "whole.tar.gz"
    whole.write_bytes(b"".join(path.read_bytes() for path in sorted(self.out.glob(f"{name}.tar*"))))
    with tarfile.open(whole) as archive:
      return {member.name for member in archive if member.isfile()}

  def write(self, path: str, content: bytes | str = "") -> pathlib.Path:
    """Writes a file below the folder."""
    file = self.root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


@pytest.fixture
def checkout(tmp_path) -> Checkout:
  return Checkout(tmp_path)


@pytest.mark.parametrize(
  "arguments",
  [
    "",
    "unknown",
    "prepare now",
    "bench out",
    "bench out everything",
    "train a mnist:official",
    "save a",
    "restore",
    "report a",
    "classify a b:c",
    "viewpoint",
  ],
)
def test_what_it_cannot_read_gets_its_usage(checkout, arguments):
  done = checkout.run(*arguments.split())
  assert done.returncode == 2
  assert all(f"#   gpu.sh {verb}" in done.stdout for verb in VERBS)
  assert "set -euo" not in done.stdout
  assert not checkout.log()


def git(folder: pathlib.Path, *arguments: str) -> str:
  who = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
  command = ["git", "-C", str(folder), *who, *arguments]
  return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_prepare_and_the_commit_that_travels(checkout):
  """Without the history, the commit is that of `prepare`; a file that is another makes it dirty."""
  checkout.write("some.py", "x = 1\n")
  git(checkout.root, "init", "-q")
  git(checkout.root, "add", "some.py", "benchmarks/gpu.sh")
  git(checkout.root, "commit", "-qm", "first")
  commit = git(checkout.root, "describe", "--always", "--abbrev=12")
  done = checkout.run("prepare")
  assert done.returncode == 0, done.stderr
  decode, download = checkout.log()
  assert decode == "-"
  assert download.startswith("-m pip download")
  assert download.endswith(
    "-c requirements.txt --python-version 3.12 --implementation cp"
    " --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64"
    " --platform manylinux2014_x86_64 -d .gpu/wheels ml_collections beartype"
  )
  checkout.run("prepare", WHEELS="")
  assert checkout.log() == ["-"]

  shutil.rmtree(checkout.root / ".git")
  checkout.acts(f'echo "$SCAE_JAX_COMMIT" >"{checkout.root}/commit"')
  checkout.run("bench", str(checkout.out), "warp")
  assert (checkout.root / "commit").read_text() == f"{commit}\n"
  checkout.write("some.py", "x = 2\n")
  checkout.run("bench", str(checkout.out), "warp")
  assert (checkout.root / "commit").read_text() == f"{commit}-dirty\n"


def test_prepare_takes_the_python_of_the_environment_made_by_make(checkout):
  shutil.move(checkout.root / "python", checkout.write(".venv/bin/python"))
  done = checkout.run("prepare", PYTHON="", WHEELS="")
  assert done.returncode == 0, done.stderr
  assert checkout.log() == ["-"]
  assert not (checkout.root / ".gpu" / "commit").exists(), "there is no repository"


def test_bench_runs_what_follows_a_failure_and_packs_all(checkout):
  checkout.write(".gpu/wheels/some.whl")
  checkout.acts(
    'case "$*" in *install*) exit ;; *--block=64*) exit 1 ;; esac\n'
    'for word in "$@"; do case "$word" in\n'
    '--out=*) echo "$PYTHONPATH" >"${word#--out=}" ;;\nesac; done'
  )
  done = checkout.run("bench", str(checkout.out), "likelihood", "128")
  assert done.returncode == 1
  install, *rest = checkout.log()
  assert install.endswith("--target runs/.gpu/site .gpu/wheels/some.whl")
  assert [line.split(" --out")[0] for line in rest] == [
    "-m benchmarks.likelihood --block=64",
    "-m benchmarks.likelihood --block=128",
    "-m benchmarks.likelihood --block=256",
    "-m benchmarks.step --batch=128 --steps=100",
    "-m benchmarks.step --batch=128 --steps=100 --whole --model=part_decoder.likelihood=fused",
    "-m benchmarks.step --batch=128 --steps=100 --whole --model=compute_dtype=bfloat16",
    "-m benchmarks.step --batch=128 --steps=100 --whole --model=part_decoder.warp=gather_products",
    "-m benchmarks.step --batch=128 --steps=100 --whole --model=part_decoder.warp=products",
  ]
  names = ["likelihood-gpu-128", "likelihood-gpu-256", "step-gpu-128"]
  names += ["step-gpu-128-fused", "step-gpu-128-bfloat16"]
  names += ["step-gpu-128-gather_products", "step-gpu-128-products"]
  assert checkout.packed("bench") == {f"bench/{name}.json" for name in names}
  assert len(list(checkout.out.iterdir())) == 1
  path = (checkout.root / "runs" / ".gpu" / "bench" / "step-gpu-128.json").read_text().strip()
  assert path == str(checkout.root / "runs" / ".gpu" / "site")
  # Nothing of an earlier call passes for what this one measured.
  checkout.acts('case "$*" in *install*) exit ;; esac; exit 1')
  assert checkout.run("bench", str(checkout.out), "128", "seeds").returncode == 1
  assert checkout.packed("bench") == {f"bench/{name}.json" for name in names[:2]}


def test_train_keeps_runs_apart(checkout):
  checkout.acts(TRAINS)
  for run, flags in (("official", []), ("bf16/a", ["--config.model.compute_dtype=bfloat16"])):
    done = checkout.run("train", run, "mnist:official", str(checkout.out), *flags)
    assert done.returncode == 0, done.stderr
    (line,) = checkout.log()
    assert line.split() == [
      "train.py",
      "--config=configs/mnist.py:official",
      f"--workdir=runs/{run}",
      "--config.train.keep_checkpoints=100",
      *flags,
    ]
    name = run.replace("/", "-")
    assert [path.name for path in checkout.out.iterdir()] == [f"metrics-{name}.jsonl"]
    assert f"runs/{run}: newest checkpoint 100" in done.stdout


@pytest.mark.parametrize(
  ("verb", "saved"),
  [
    ("train", False),
    ("train", True),
    ("classify", True),
    ("viewpoint", False),
    ("viewpoint", True),
  ],
)
def test_time_that_is_up_is_a_success_only_if_something_is_saved(checkout, verb, saved):
  names = [] if verb == "viewpoint" else ["a", "mnist:official"]
  folder = "runs/a" if names else "runs/viewpoint-mnist/cnn"
  # What orbax had not finished is no checkpoint.
  checkout.write(f"{folder}/checkpoints/7.orbax-checkpoint-tmp/file")
  checkout.write(f"{folder}/metrics.jsonl", "metrics\n")
  if saved:
    checkout.write(f"{folder}/checkpoints/7/file")
  checkout.acts("exec sleep 30")
  # Not 1: bash counts whole seconds of the clock, and the next may begin at once.
  done = checkout.run(verb, *names, str(checkout.out), SECONDS_TO_RUN="2")
  assert done.returncode == (0 if saved else 124)
  assert len(checkout.log()) == 1, "a classifier that is not finished is not reported on"
  assert not names or (checkout.out / "metrics-a.jsonl").read_text() == "metrics\n"


# Ignores the signal to save. Longer than the script is given: a test fails that waits for it.
IGNORES = "trap '' TERM\nexec sleep 100"


@pytest.mark.parametrize("saved", [False, True])
def test_a_training_that_does_not_save_is_killed_and_its_metrics_come_back(checkout, saved):
  checkout.write("runs/a/metrics.jsonl", "metrics\n")
  if saved:
    checkout.write("runs/a/checkpoints/7/file")
  checkout.acts(IGNORES)
  times = {"SECONDS_TO_RUN": "2", "SECONDS_TO_KILL": "0.1"}
  done = checkout.run("train", "a", "mnist:official", str(checkout.out), **times)
  assert done.returncode == (0 if saved else 124)
  assert (checkout.out / "metrics-a.jsonl").read_text() == "metrics\n"


def test_a_training_that_is_killed_before_its_time_has_failed(checkout):
  checkout.write("runs/a/checkpoints/7/file")
  checkout.acts("kill -KILL $$")
  assert checkout.run("train", "a", "mnist:official", str(checkout.out)).returncode == 137


def test_a_training_that_fails_brings_its_metrics_and_its_code(checkout):
  checkout.acts(f"{TRAINS}\nexit 3")
  done = checkout.run("train", "a", "mnist:official", str(checkout.out))
  assert done.returncode == 3
  assert (checkout.out / "metrics-a.jsonl").is_file()


@pytest.fixture
def trained(checkout) -> Checkout:
  """A run with checkpoints of steps 9 and 10, and one that orbax had not finished."""
  for name in ("config.json", "data.json", "metrics.jsonl", "report/curve-a.json", "report/other"):
    checkout.write(f"runs/a/{name}", name)
  checkout.write("runs/a/checkpoints/9/state", b"old")
  checkout.write("runs/a/checkpoints/10/state", b"new")
  checkout.write("runs/a/checkpoints/11.orbax-checkpoint-tmp/state", b"half")
  return checkout


SAVED = {"config.json", "data.json", "metrics.jsonl", "report/curve-a.json"}


def test_what_is_saved_is_restored_on_another_machine(trained):
  before = os.urandom(16 * MIB)  # more than a piece holds
  trained.write("runs/a/checkpoints/10/state", before)
  done = trained.run("save", "a", str(trained.out))
  assert done.returncode == 0, done.stderr
  assert "steps 10, 16 MiB" in done.stdout
  pieces = sorted(trained.out.iterdir())
  assert [path.name for path in pieces] == ["save-a.tar.gz.aa", "save-a.tar.gz.ab"]
  assert all(path.stat().st_size < 16 * MIB for path in pieces)
  assert trained.packed("save-a") == SAVED | {"checkpoints/10/state"}

  done = trained.run("restore", "a")
  assert (done.returncode, done.stdout) == (0, "runs/a is there, with step 10\n")
  shutil.rmtree(trained.root / "runs")
  assert trained.run("restore", "a").returncode == 1  # nothing was carried

  saved = trained.root / ".gpu" / "saved"
  saved.mkdir(parents=True)
  whole = (trained.root / "whole.tar.gz").read_bytes()
  (saved / "save-a.tar.gz.aa").write_bytes(whole[: 15 * MIB])
  assert trained.run("restore", "a").returncode != 0
  assert not (trained.root / "runs" / "a").exists(), "half a run would be trained anew"
  (saved / "save-a.tar.gz.ab").write_bytes(whole[15 * MIB :])
  done = trained.run("restore", "a")
  assert (done.returncode, done.stdout) == (0, "runs/a is restored, with step 10\n")
  assert (trained.root / "runs/a/checkpoints/10/state").read_bytes() == before
  assert (trained.root / "runs/a/report/curve-a.json").is_file()


def test_save_takes_more_checkpoints_and_refuses_what_would_not_come_back(trained):
  assert trained.run("save", "a", str(trained.out), "2").returncode == 0
  assert trained.packed("save-a") == SAVED | {f"checkpoints/{step}/state" for step in (9, 10)}
  done = trained.run("save", "a", str(trained.out), MOST_MIB="0")
  assert done.returncode == 1
  assert "more than 0 MiB do not come back" in done.stderr
  assert not list(trained.out.iterdir())
  done = trained.run("save", "b", str(trained.out))
  assert done.returncode == 1
  assert "runs/b has no checkpoint" in done.stderr


REPORTED = """
case "$*" in
evaluate.py*) mkdir -p runs/a/evaluation; echo >runs/a/evaluation/metrics.json ;;
*export*) mkdir -p runs/a/report/pretrained; echo >runs/a/report/pretrained/params.npz ;;
*summarize*) mkdir -p runs/a/report/table; echo >runs/a/report/table/table.md ;;
*curve*) echo >runs/a/report/curve-a.json ;;
esac
"""
COMMANDS = [
  "evaluate.py --workdir=runs/a",
  "-m experiments.export runs/a runs/a/report/pretrained --dtype=float16",
  "-m experiments.summarize runs/a/report/table runs/a",
  "-m experiments.curve runs/a runs/a/report --max_examples=10000",
]
FOUND = {
  "evaluation/metrics.json",
  "report/evaluated",
  "report/pretrained/params.npz",
  "report/table/table.md",
  "report/curve-a.json",
}


def test_report_is_in_one_archive_and_ends_with_the_curve(checkout):
  checkout.write("runs/a/checkpoints/100/state")
  checkout.acts(REPORTED)
  done = checkout.run("report", "a", str(checkout.out), "--steps=100")
  assert done.returncode == 0, done.stderr
  assert checkout.log() == [*COMMANDS[:3], f"{COMMANDS[3]} --steps=100"]
  assert [path.name for path in checkout.out.iterdir()] == ["report-a.tar.gz.aa"]
  assert checkout.packed("report-a") == FOUND
  # Again: what was evaluated at that step is not evaluated twice.
  assert checkout.run("report", "a", str(checkout.out)).returncode == 0
  assert checkout.log() == COMMANDS[1:]
  checkout.write("runs/a/checkpoints/200/state")
  assert checkout.run("report", "a", str(checkout.out)).returncode == 0
  assert checkout.log() == COMMANDS


def test_report_of_a_finished_training_does_not_evaluate_again(checkout):
  checkout.acts(TRAINS + REPORTED)
  assert checkout.run("train", "a", "mnist:official", str(checkout.out)).returncode == 0
  assert checkout.run("report", "a", str(checkout.out)).returncode == 0
  assert checkout.log() == COMMANDS[1:]


@pytest.mark.parametrize(("known", "code"), [(True, 0), (False, 124)])
def test_a_curve_whose_time_is_up_goes_on_at_the_next_call(checkout, known, code):
  checkout.write("runs/a/checkpoints/100/state")
  if known:
    checkout.write("runs/a/report/curve-a.json")
  checkout.acts(f'case "$*" in *curve*) exec sleep 30 ;; esac\n{REPORTED}')
  done = checkout.run("report", "a", str(checkout.out), SECONDS_TO_RUN="3")
  assert done.returncode == code
  assert checkout.packed("report-a") == (FOUND if known else FOUND - {"report/curve-a.json"})


def test_a_part_of_the_report_that_fails_costs_no_other(checkout):
  checkout.write("runs/a/checkpoints/100/state")
  checkout.acts(f'case "$*" in evaluate*|*export*) exit 1 ;; esac\n{REPORTED}')
  assert checkout.run("report", "a", str(checkout.out)).returncode == 1
  assert checkout.log() == COMMANDS
  assert checkout.packed("report-a") == {"report/table/table.md", "report/curve-a.json"}
  assert checkout.run("report", "b", str(checkout.out)).returncode == 1
  assert not (checkout.root / "runs" / "b").exists()


def test_a_part_of_the_report_that_is_killed_costs_only_what_comes_after_it(checkout):
  checkout.write("runs/a/checkpoints/100/state")
  checkout.acts(f'case "$*" in *export*) {IGNORES} ;; esac\n{REPORTED}')
  times = {"SECONDS_TO_RUN": "3", "SECONDS_TO_KILL": "0.1"}
  done = checkout.run("report", "a", str(checkout.out), **times)
  assert done.returncode == 124
  assert checkout.log() == COMMANDS[:2]
  assert checkout.packed("report-a") == {"evaluation/metrics.json", "report/evaluated"}


def test_a_finished_classifier_is_scored_on_the_affine_set(checkout):
  checkout.acts(f'{TRAINS}\ncase "$*" in evaluate*) echo >runs/a/evaluation/file ;; esac')
  done = checkout.run("classify", "a", "mnist:capsnet", str(checkout.out), "--config.train.seed=1")
  assert done.returncode == 0, done.stderr
  assert checkout.log() == [
    "train.py --config=configs/mnist.py:capsnet --workdir=runs/a --config.train.seed=1",
    "evaluate.py --workdir=runs/a --dataset=affine_mnist",
  ]
  assert checkout.packed("evaluation-a") == {"evaluation/file"}


def test_nothing_is_started_when_no_time_is_left(checkout):
  """`timeout 0` would have no limit at all."""
  done = checkout.run("bench", str(checkout.out), "warp", SECONDS_TO_RUN="0")
  assert done.returncode == 1
  assert "no time is left" in done.stderr
  assert not checkout.log()
