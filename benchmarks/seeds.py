"""Time of a training step of configs/mnist.py:official with several seeds at once.

    python -m benchmarks.seeds --batch=128 --out=results/benchmarks/seeds-cpu.json

Each number of seeds is the shipped dispatch, timed by itself; a step is one update of every seed.
"""

import argparse

from benchmarks.measuring import Row, each_step, failing_alone, milliseconds, report
from benchmarks.step import official, whole_step


def main() -> None:
  """Times and reports."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--batch", type=int, default=128)
  parser.add_argument("--seeds", default="1,2,5,8", help="at once, each in its turn")
  parser.add_argument("--steps", type=int, default=10, help="of a dispatch")
  parser.add_argument("--rounds", type=int, default=3)
  parser.add_argument("--out", default="")
  options = parser.parse_args()
  sizes = {"config": "mnist:official", "batch": options.batch, "steps a dispatch": options.steps}
  rows: dict[str, Row] = {}
  for seeds in [int(number) for number in options.seeds.split(",")]:
    # One after the other, so that only one of them is held in memory.
    name = f"seeds at once: {seeds}"
    with failing_alone(rows, name):
      run, counts = whole_step(*official(batch=options.batch, steps=options.steps, seeds=seeds))
      whole = milliseconds({name: run}, options.rounds)[name]
      rows[name] = each_step(whole, options.steps)
      sizes |= {f"{count}, {seeds} seeds": value for count, value in counts.items()}
  report("training step by seeds", sizes, rows, options.out)


if __name__ == "__main__":
  main()
