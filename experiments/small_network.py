"""What a small network reads of the class from an SCAE: from its mass, its objects and its parts.

    python -m experiments.small_network mnist runs/findings

A linear classifier (LIN-PRED) sees less than is there, and k-means (LIN-MATCH) less still. What a
network with one hidden layer reads is closer to what the capsules know. Writes
`small-network.json` into the folder.
"""

import argparse
import pathlib
import warnings
from collections.abc import Mapping

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import scae_jax
from experiments.findings import command_line, write_record
from scae_jax.data.sources import load_dataset
from scae_jax.errors import as_run_errors, exit_with_message
from scae_jax.evaluation.examples import choose
from scae_jax.models.system import Encoding


def inputs(encoding: Encoding) -> dict[str, np.ndarray]:
  """What is read, each [n, d]: mass, presences of objects, and poses with presences.

  ValueError for a system that has no parts or no posterior mass.
  """
  fields = {
    "posterior mass": [encoding.posterior_mass],
    "presences of objects": [encoding.object_presence],
    "poses and presences of objects": [encoding.object_poses, encoding.object_presence],
    "poses and presences of parts": [encoding.part_poses, encoding.part_presence],
  }
  result = {}
  for name, arrays in fields.items():
    flat = []
    for array in arrays:
      if array is None:
        raise ValueError(f"the model has no {name}; expected an SCAE.")
      flat.append(np.reshape(array, (len(array), -1)))
    result[name] = np.concatenate(flat, axis=1)
  return result


def accuracies(
  train: Mapping[str, np.ndarray],
  train_labels: np.ndarray,
  test: Mapping[str, np.ndarray],
  test_labels: np.ndarray,
  seed: int = 0,
) -> dict[str, float]:
  """Accuracy on the test examples of a network fitted to each of the training inputs, 30 epochs."""
  result = {}
  for name, features in train.items():
    network = MLPClassifier((128,), max_iter=30, early_stopping=True, random_state=seed)
    with warnings.catch_warnings():  # that training has not converged after these epochs
      warnings.simplefilter("ignore", ConvergenceWarning)
      fitted = make_pipeline(StandardScaler(), network).fit(features, train_labels)
    result[name] = float(fitted.score(test[name], test_labels))
  return result


def main() -> None:
  """Reads from the model on the command line; prints and writes the accuracies."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("model", help="a pretrained name or a workdir")
  parser.add_argument("folder", type=pathlib.Path)
  parser.add_argument("--data_set", default="mnist", help="a name as of data.name")
  parser.add_argument("--data_dir", default="", help="where the data set is, if elsewhere")
  parser.add_argument(
    "--max_examples", type=int, default=20_000, help="training images to fit to; 0 for all"
  )
  parser.add_argument("--seed", type=int, default=0, help="of the network")
  options = parser.parse_args()
  with exit_with_message(), as_run_errors():
    model = scae_jax.load(options.model)
    splits = load_dataset(options.data_set, options.data_dir).splits
    train, test = splits["train"], splits["test"]
    train = train.take(choose(len(train.labels), options.max_examples))
    record = {
      "command": command_line("small_network"),
      "model": options.model,
      "fitted_examples": len(train.labels),
      "examples": len(test.labels),
      "accuracy": accuracies(
        inputs(model.encode(train.images)),
        train.labels,
        inputs(model.encode(test.images)),
        test.labels,
        options.seed,
      ),
    }
    write_record(options.folder / "small-network.json", record)
    for name, accuracy in record["accuracy"].items():
      print(f"{name}: {100 * accuracy:.1f} %")


if __name__ == "__main__":
  main()
