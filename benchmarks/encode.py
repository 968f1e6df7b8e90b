"""Time to encode images with a pretrained model, and of a training step's forward pass on them.

    python -m benchmarks.encode --model=mnist --out=results/benchmarks/encode-cpu.json

`encode` is `Model.encode` from NumPy to NumPy, in its batches of 64. The forward pass is the module
in training, with its losses and without gradients, in batches of 64 on images that are placed
already; it stays on the device.
"""

from typing import Any

import jax
import numpy as np

import scae_jax
from benchmarks.measuring import flags, milliseconds, report
from scae_jax.data.options import DataOptions
from scae_jax.data.sources import load_dataset
from scae_jax.typing import Batch


def main() -> None:
  """Times and reports."""
  options = flags(__doc__, model="mnist", images=10_000, rounds=3, out="")
  model = scae_jax.load(options.model)
  data = model.settings.data
  assert isinstance(data, DataOptions)
  images = load_dataset(data.name).splits["test"].images[: options.images]
  images = images[: len(images) // model.batch_size * model.batch_size]

  blank = model.spec.blank_batch(model.batch_size)
  starts = range(0, len(images), model.batch_size)
  batches: list[Batch] = [
    {**blank, **model.inputs.batch({"image": images}, np.arange(i, i + model.batch_size))}
    for i in starts
  ]

  @jax.jit
  def forward(variables: Any, batch: Batch, key: Any) -> Any:
    output = model.system.module.apply(variables, batch, train=True, rngs={"noise": key})
    return model.system.loss_terms(output, batch, 0)

  key = jax.random.key(0)
  rows = milliseconds(
    {
      "encode": lambda: model.encode(images),
      "forward pass": lambda: [forward(model.variables, batch, key) for batch in batches],
    },
    options.rounds,
  )
  for name, row in rows.items():
    if not isinstance(row, str):
      print(f"{name}: {len(images) / np.median(row) * 1e3:.0f} images a second")
  settings = {"model": options.model, "images": len(images), "batch": model.batch_size}
  report("Encoding", settings, rows, options.out)


if __name__ == "__main__":
  main()
