"""Test images that several models name wrongly: are errors those of a run, or of the images?

    python -m experiments.same_errors runs/findings mnist runs/mnist-views runs/mnist-quick_views

Each model names the images by its clusters. Writes `same-errors.json` and `same-errors.png`, the
images that all models name wrongly, into the folder.
"""

import argparse
import itertools
import pathlib
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import scae_jax
from experiments.findings import command_line, write_record
from scae_jax.data.sources import load_dataset
from scae_jax.errors import as_run_errors, exit_with_message

COLUMNS = 22


def shared_errors(named: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
  """Errors of each model and those that they share, by their names [models, n] and the truth [n].

  Returns:
    `wrong`, the number of images that each model names wrongly; `by_pair`, that both of two models
    do; `by_all`, the indices of those that all do; `same_name`, the number of these that all give
    the same name; `majority`, the accuracy of the most frequent name (the least if equally many).
  """
  is_wrong = named != truth
  by_all = np.flatnonzero(is_wrong.all(axis=0))
  pairs = itertools.combinations(range(len(named)), 2)
  majority = [np.bincount(names).argmax() for names in named.T]
  return {
    "wrong": is_wrong.sum(axis=1).tolist(),
    "by_pair": {f"{i}, {j}": int((is_wrong[i] & is_wrong[j]).sum()) for i, j in pairs},
    "by_all": by_all.tolist(),
    "same_name": int((named[:, by_all] == named[0, by_all]).all(axis=0).sum()),
    "majority": float(np.mean(majority == truth)),
  }


def draw_images(images: np.ndarray) -> Figure:
  """Images [n, h, w, c] in rows of 22."""
  rows = -(-max(len(images), 1) // COLUMNS)
  figure = Figure(figsize=(11, 0.52 * rows))
  axes = figure.subplots(rows, COLUMNS, squeeze=False)
  for ax in axes.flat:
    ax.axis("off")
  for ax, image in zip(axes.flat, images, strict=False):
    ax.imshow(image.squeeze(), cmap="gray")
  figure.tight_layout(pad=0.2)
  return figure


def main() -> None:
  """Compares the models on the command line; prints and writes what they share."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("folder", type=pathlib.Path)
  parser.add_argument("models", nargs="+", help="pretrained names or workdirs, two or more")
  parser.add_argument("--data_set", default="mnist", help="a name as of data.name")
  parser.add_argument("--data_dir", default="", help="where the data set is, if elsewhere")
  options = parser.parse_args()
  if len(options.models) < 2:
    parser.error("models: expected two or more.")
  with exit_with_message(), as_run_errors():
    test = load_dataset(options.data_set, options.data_dir).splits["test"]
    named = np.stack([scae_jax.load(name).predict(test.images) for name in options.models])
    shared = shared_errors(named, test.labels)
    head = {"command": command_line("same_errors"), "models": options.models}
    write_record(options.folder / "same-errors.json", head | shared)
    common = sorted(shared["by_all"], key=lambda i: (test.labels[i], named[0, i]))
    draw_images(test.images[common]).savefig(options.folder / "same-errors.png", dpi=80)
    print(f"wrong: {shared['wrong']}; by all {len(common)}, {shared['same_name']} by one name")
    print(f"the majority is right for {100 * shared['majority']:.1f} %")


if __name__ == "__main__":
  main()
