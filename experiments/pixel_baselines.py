"""Clusters and linear classifiers of an image set without a model: of pixels, and of their edges.

    python -m experiments.pixel_baselines results/digits --config=configs/digits.py

Images are those that the config trains on, before any augmentation. Edges are those that the parts
of configs/svhn.py:paper draw (`normalized_sobel`). Everything is fitted to at most 10,000 training
images and scored on the split that is held out; k-means takes the best of 10 starts. Writes
`baselines-<data set>.json` into the folder, with `-ink` for `data.ink`.
"""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.findings import command_line, write_record
from scae_jax.config import parse_command_line, plain_parser
from scae_jax.data.dataset import Dataset
from scae_jax.data.options import DataOptions
from scae_jax.data.sources import load_data
from scae_jax.errors import RunError, as_run_errors, exit_with_message
from scae_jax.evaluation.examples import describe_scored, load_split
from scae_jax.evaluation.probes import fit_clusters, fit_probe
from scae_jax.evaluation.scores import (
  MAX_PIXEL_EXAMPLES,
  PIXEL_STARTS,
  cluster_entries,
  pixel_features,
  probe_entries,
)
from scae_jax.evaluation.tables import table
from scae_jax.math.filters import normalized_sobel


def edges(images: np.ndarray) -> np.ndarray:
  """Sobel edges of images uint8 [n, h, w, c] as features in [0, 1], float32 [n, h w c]."""
  filtered = jax.jit(jax.vmap(normalized_sobel))(jnp.float32(images) / 255)
  return np.asarray(filtered).reshape(len(images), -1)


def baselines(dataset: Dataset, split: str) -> dict[str, Any]:
  """LIN-MATCH and LIN-PRED of each kind of features, fitted to `train` and scored on a split."""
  train, test = load_split(dataset, "train", MAX_PIXEL_EXAMPLES), load_split(dataset, split, 0)
  kinds = {
    "pixels": pixel_features(train, test),
    "Sobel edges": [(edges(examples["image"]), examples["label"]) for examples in (train, test)],
  }
  entries = {}
  for name, (fitted, scored) in kinds.items():
    options = {"num_classes": dataset.num_classes, "name": name}
    clusters = fit_clusters(*fitted, seed=0, num_starts=PIXEL_STARTS, **options)
    probe = fit_probe(*fitted, **options)
    entries[name] = cluster_entries(clusters, scored) | probe_entries(probe, scored)
  return entries


def main() -> None:
  """Fits, writes and prints."""
  parser = plain_parser(__doc__)
  parser.add_argument("folder", type=pathlib.Path)
  parser.add_argument(
    "--config", default="configs/digits.py", help="FILE[:PRESET]; flags for its keys as in train.py"
  )
  parser.add_argument("--split", default="", help="of the images, if not the held-out one")
  options, flags = parser.parse_known_args()
  with exit_with_message(), as_run_errors():
    command = parse_command_line([f"--config={options.config}", *flags], default_config="")
    data = command.settings.data
    if not isinstance(data, DataOptions):
      raise RunError("generated scenes have no images; give a --config of images.")
    dataset, _ = load_data(data)
    assert isinstance(dataset, Dataset)
    split = options.split or dataset.held_out
    entries = baselines(dataset, split)
    scored_on = describe_scored(dataset, split, len(dataset.splits[split].labels))
    scored_on.pop("path", None)  # records have no path of a machine; the command has it
    record = {
      "command": command_line("pixel_baselines"),
      "scored_on": scored_on,
      "features": entries,
    }
    write_record(options.folder / f"baselines-{dataset.name}{'-ink' * data.ink}.json", record)
    rows = [
      [name, *(100 * entry[key] for key in ("lin_match", "lin_pred"))]
      for name, entry in entries.items()
    ]
    print(table({"": "", "LIN-MATCH": ".1f", "LIN-PRED": ".1f"}, rows))


if __name__ == "__main__":
  main()
