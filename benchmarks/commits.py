"""Time of a training step at this commit and at another, as train.py runs it.

    python -m benchmarks.commits ae9cc33 --config=configs/mnist.py:modern --steps=200 --rounds=3 \\
      --out=results/benchmarks/commits-modern.json

Both are checked out into a temporary folder and train in turns, each time in a process of its own,
for three dispatches of `--steps` steps. Of each process the last two count: the first has the time
of compilation. The CPU is shared out as train.py does it at that commit.
"""

import pathlib
import subprocess
import sys
import tempfile
import time

from benchmarks.measuring import ROOT, Row, commit, failing_alone, report
from scae_jax.config import plain_parser
from scae_jax.training.log import read_lines

DISPATCHES = 3
PATIENCE = 1800.0  # seconds for one training


def train(
  checkout: pathlib.Path, workdir: pathlib.Path, flags: list[str], steps: int
) -> list[float]:
  """Milliseconds a step, one number a dispatch. The training is killed before its report."""
  command = [sys.executable, "train.py", f"--workdir={workdir}", *flags]
  changes = {
    "num_steps": DISPATCHES * steps + 1,  # what is left over keeps the report from being written
    "log_every": steps,
    "steps_per_dispatch": steps,
    "eval_every": 0,
    "checkpoint_every": 0,
  }
  command += [f"--config.train.{key}={value}" for key, value in changes.items()]
  log = workdir.with_suffix(".log")
  with log.open("w") as file:
    process = subprocess.Popen(command, cwd=checkout, stderr=file)
  started, seconds = time.monotonic(), []
  try:
    while len(seconds) < DISPATCHES:
      if process.poll() is not None and process.returncode:
        raise RuntimeError(log.read_text()[-500:])
      if time.monotonic() - started > PATIENCE:
        raise TimeoutError(f"no {DISPATCHES} dispatches in {PATIENCE:.0f} seconds")
      time.sleep(0.2)
      seconds = times_of(workdir / "metrics.jsonl", steps)
  finally:
    process.kill()
    process.wait()
  return [1000 * time_taken for time_taken in seconds[1:DISPATCHES]]


def times_of(path: pathlib.Path, steps: int) -> list[float]:
  """Seconds a step of the whole dispatches in a file of metrics."""
  rows = read_lines(path) if path.exists() else []
  whole = [row for row in rows if row["split"] == "train" and row["step"] % steps == 0]
  return [1 / row["timing"]["steps_per_second"] for row in whole]


def main() -> None:
  """Times and reports."""
  parser = plain_parser(__doc__)
  parser.add_argument("other", help="a commit, such as ae9cc33; with --change_here, HEAD too")
  parser.add_argument("--config", default="configs/digits.py")
  parser.add_argument("--change", default="", help="KEY=VALUE[;KEY=VALUE] of the config, both")
  parser.add_argument("--change_here", default="", help="the same, of this commit alone")
  parser.add_argument("--steps", type=int, default=100, help="of a dispatch")
  parser.add_argument("--rounds", type=int, default=3)
  parser.add_argument("--out", default="")
  options = parser.parse_args()
  both, here = (
    [f"--config.{change}" for change in changes.split(";") if change]
    for changes in (options.change, options.change_here)
  )
  if commit().endswith("-dirty"):
    parser.error("commit first: what is timed here is HEAD, not the files")
  flags = {options.other: both, f"{commit()}, here": both + here}
  rows: dict[str, Row] = {name: [] for name in flags}
  with tempfile.TemporaryDirectory() as folder:
    trees = {name: pathlib.Path(folder, f"tree{i}") for i, name in enumerate(flags)}
    for tree, revision in zip(trees.values(), (options.other, "HEAD"), strict=True):
      git("worktree", "add", "--detach", str(tree), revision)
    try:
      for turn in range(options.rounds):
        for name, tree in trees.items():
          row = rows[name]
          if not isinstance(row, str):
            with failing_alone(rows, name):
              workdir = pathlib.Path(folder, f"run-{tree.name}-{turn}")
              row += train(
                tree, workdir, [f"--config={options.config}", *flags[name]], options.steps
              )
    finally:
      for tree in trees.values():
        git("worktree", "remove", "--force", str(tree))
  sizes = {"config": options.config, "change": options.change, "here": options.change_here}
  sizes |= {"steps a dispatch": options.steps}
  report("training step", {key: value for key, value in sizes.items() if value}, rows, options.out)


def git(*arguments: str) -> None:
  """Runs git in this repository, quietly."""
  subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True)


if __name__ == "__main__":
  main()
