"""Hashes of a short training of each system. A refactoring must not change them.

    python -m reliability.fingerprints

Run it before and after the change, with the same versions on the same processor, and compare the
lines. Each system trains its small config for twenty steps on one CPU device.
"""

import hashlib
import pathlib
import tempfile

import jax

from reliability.configs import base_configs
from reliability.runs import metrics_of, numbers
from scae_jax.training.loop import train

NUM_STEPS = 20


def main() -> None:
  """Prints a line for each system: the hash of its parameters and that of its metrics."""
  for name, config in base_configs().items():
    cadence = ("steps_per_dispatch", "log_every", "eval_every", "checkpoint_every")
    values = {"num_steps": NUM_STEPS, "batch_size": 8, **dict.fromkeys(cadence, NUM_STEPS // 2)}
    config.update_from_flattened_dict({f"train.{key}": value for key, value in values.items()})
    with tempfile.TemporaryDirectory() as folder:
      run = train(config, pathlib.Path(folder) / "run")
      metrics = repr(metrics_of(pathlib.Path(folder) / "run"))
    parameters = b"".join(leaf.tobytes() for leaf in numbers(run.variables))
    sizes = sum(leaf.size for leaf in jax.tree.leaves(run.variables))
    print(
      f"{name:16} {sizes:8} parameters {_short(parameters)}  metrics {_short(metrics.encode())}"
    )


def _short(content: bytes) -> str:
  return hashlib.sha256(content).hexdigest()[:16]


if __name__ == "__main__":
  main()
