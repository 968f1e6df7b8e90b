"""Time of a training step of configs/mnist.py:official with several seeds at once.

    python -m benchmarks.seeds --batch=128 --out=results/benchmarks/seeds-cpu.json

Each number of seeds is the shipped dispatch, with a device for each core as in train.py; they take
turns. A step is one update of every seed.
"""

import jax

from benchmarks.measuring import Row, each_step, failing_alone, flags, milliseconds, report
from benchmarks.step import noise, official, whole_step
from scae_jax.training.mesh import use_all_cores


def main() -> None:
  """Times and reports."""
  options = flags(__doc__, batch=128, seeds="1,2,5,8", steps=10, rounds=3, out="")
  use_all_cores(options.batch, views=1)
  sizes = {"config": "mnist:official", "batch": options.batch, "steps a dispatch": options.steps}
  rows: dict[str, Row] = {}
  dispatches = {}
  for seeds in [int(number) for number in options.seeds.split(",")]:
    name = f"seeds at once: {seeds}"
    with failing_alone(rows, name):
      config = official(batch=options.batch, steps=options.steps, seeds=seeds)
      dispatches[name], counts = whole_step(*config, noise(*config), num_devices=jax.device_count())
      sizes |= {f"{count}, {seeds} seeds": value for count, value in counts.items()}
  for name, whole in milliseconds(dispatches, options.rounds).items():
    rows[name] = each_step(whole, options.steps)
  report("training step by seeds", sizes, rows, options.out)


if __name__ == "__main__":
  main()
