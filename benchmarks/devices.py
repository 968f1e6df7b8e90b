"""Time of a training step of configs/mnist.py:official, split over one device and over several.

    python -m benchmarks.devices --devices=1,2 --out=results/benchmarks/devices-cpu.json

On a CPU the devices are parts of it, forced on XLA, each number in a process of its own: that shows
what splitting costs, not what more hardware brings. `--only=N` prints the row of N devices.
"""

import argparse
import json
import os
import subprocess
import sys

from benchmarks.measuring import ROOT, Row, each_step, failing_alone, flags, milliseconds, report
from benchmarks.step import noise, official, whole_step


def measure(num_devices: int, batch: int, steps: int, rounds: int) -> Row:
  """Milliseconds a step, in this process."""
  config = official(batch=batch, steps=steps)
  run, _ = whole_step(*config, noise(*config), num_devices=num_devices)
  return each_step(milliseconds({"step": run}, rounds)["step"], steps)


def measure_apart(num_devices: int, options: argparse.Namespace) -> Row:
  """The same in another process, whose CPU is split into that number of devices."""
  command = [sys.executable, "-m", "benchmarks.devices", f"--only={num_devices}"]
  command += [f"--{name}={getattr(options, name)}" for name in ("batch", "steps", "rounds")]
  flag = f"--xla_force_host_platform_device_count={num_devices}"
  environment = os.environ | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flag}"}
  done = subprocess.run(
    command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True
  )
  return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
  """Times and reports."""
  options = flags(__doc__, devices="1,2,4", batch=128, steps=5, rounds=3, out="", only=0)
  if options.only:
    print(json.dumps(measure(options.only, options.batch, options.steps, options.rounds)))
    return
  counts = [int(number) for number in options.devices.split(",")]
  rows: dict[str, Row] = {}
  for count in counts:
    with failing_alone(rows, f"devices: {count}"):
      rows[f"devices: {count}"] = measure_apart(count, options)
  sizes = {"config": "mnist:official", "batch": options.batch, "steps a dispatch": options.steps}
  report("training step by devices", sizes, rows, options.out)


if __name__ == "__main__":
  main()
