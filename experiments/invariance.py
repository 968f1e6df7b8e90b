"""What the objects of a trained model follow beside the class: changes of an image, and properties.

    python -m experiments.invariance runs/digits results/digits

Two questions. Does an image that is moved, blurred, brightened or negated have the objects that it
had? And what does the winning object, that with the largest posterior mass, tell: the class, or how
bright and how sharp the image is? Two views of an image (`config.data.two_views`) can only remove
what differs between them. Images are changed as the model gets them, after `config.data.ink`.

Writes `invariance-<workdir>.md` and `.json` into the folder, for each seed if a run has several.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.ndimage import gaussian_filter
from sklearn.metrics import mutual_info_score

from experiments.equivariance import moved_images
from experiments.findings import Findings, ImageRun, measure_images
from scae_jax.data.batches import evaluation_batch
from scae_jax.errors import RunError
from scae_jax.evaluation.encode import encode_dataset
from scae_jax.evaluation.moved_parts import motions
from scae_jax.evaluation.tables import table

NUM_RANGES = 4  # into which images are divided at the quartiles of brightness and of sharpness
LEGEND = (
  "Same winner: the object with the largest mass is the same as before. Correlation of an object's"
  " share of the mass before and after the change, mean over objects whose share varies. Mutual"
  " information of the winning object, and of the class, with the class and with four ranges of the"
  " mean brightness and of the sharpness (mean difference of neighbouring pixels), in nats."
)

Change = Callable[[np.ndarray, int], np.ndarray]  # images uint8 [n, h, w, c], canvas -> the same


def _moved(family: str, size: float) -> Change:
  motion = motions(family, size)[0]
  return lambda images, canvas: moved_images(images, motion, canvas)[0]


def _brightness(exponent: float) -> Change:
  return lambda images, _: np.round(255 * (images / 255) ** exponent).astype(np.uint8)


def _blur(sigma: float) -> Change:
  return lambda images, _: np.round(
    gaussian_filter(images.astype(np.float64), (0, sigma, sigma, 0), mode="nearest")
  ).astype(np.uint8)


CHANGES: dict[str, Change] = {
  "nothing": lambda images, _: images,
  "shifted by 2 pixels": _moved("translation", 2),
  "turned by 15 degrees": _moved("rotation", 15),
  "scaled by 0.8": _moved("scaling", 0.8),
  "brighter, to the power of 0.6": _brightness(0.6),
  "darker, to the power of 1.6": _brightness(1.6),
  "blurred by 1 pixel": _blur(1),
  "blurred by 2 pixels": _blur(2),
  "negative": lambda images, _: 255 - images,
}


def properties(images: np.ndarray) -> dict[str, np.ndarray]:
  """Mean brightness and sharpness of images uint8 [n, h, w, c]: the number of its range, [n]."""
  pixels = images.astype(np.float64)
  differences = [np.abs(np.diff(pixels, axis=axis)).mean(axis=(1, 2, 3)) for axis in (1, 2)]
  values = {"brightness": pixels.mean(axis=(1, 2, 3)), "sharpness": np.sum(differences, axis=0)}
  inner = np.arange(1, NUM_RANGES) / NUM_RANGES
  return {name: np.digitize(v, np.quantile(v, inner)) for name, v in values.items()}


def agreement(before: np.ndarray, after: np.ndarray) -> dict[str, float | None]:
  """How much shares of the mass [n, k] agree: `same_winner` and the mean `correlation`.

  The correlation is None where no share varies.
  """
  correlations = [
    np.corrcoef(first, second)[0, 1]
    for first, second in zip(before.T, after.T, strict=True)
    if np.ptp(first) > 0 and np.ptp(second) > 0
  ]
  return {
    "same_winner": float((before.argmax(axis=1) == after.argmax(axis=1)).mean()),
    "correlation": float(np.mean(correlations)) if correlations else None,
  }


def measure_invariance(
  shares_of: Callable[[np.ndarray], np.ndarray],
  images: np.ndarray,
  labels: np.ndarray,
  canvas: int,
) -> dict[str, Any]:
  """Measures every change and property.

  `shares_of` returns the shares of the mass [n, k] of images uint8 [n, h, w, c] of any size up to
  the canvas. Labels are int [n]. Returns entries by `changes`, see `agreement`, and by
  `information`, nats, of the winner with the `class` and each of `properties`;
  `class_information` is that of the class.
  """
  before = shares_of(images)
  winner = before.argmax(axis=1)
  values = {"class": labels, **properties(images)}

  def information_with(number: np.ndarray) -> dict[str, float]:
    return {name: float(mutual_info_score(number, values[name])) for name in values}

  return {
    "changes": {
      name: agreement(before, shares_of(change(images, canvas))) for name, change in CHANGES.items()
    },
    "information": information_with(winner),
    "class_information": information_with(labels),
  }


def table_of(results: Mapping[str, Any]) -> str:
  """Markdown: a row for each change."""
  rows = [
    [name, 100 * entry["same_winner"], entry["correlation"]]
    for name, entry in results["changes"].items()
  ]
  return table({"image": "", "same winner, %": ".1f", "correlation": ".2f"}, rows)


def measure(images: ImageRun, variables: Any, head: dict[str, Any]) -> Findings:
  """Measures one seed."""
  run, scored_on = images.run, images.scored_on
  make_batch = functools.partial(evaluation_batch, canvas=images.sizes["canvas"])
  labels = images.examples["label"]

  def shares_of(pictures: np.ndarray) -> np.ndarray:
    examples = {"image": pictures, "label": labels}
    encoding = encode_dataset(
      run.system, variables, examples, make_batch, batch_size=images.sizes["batch_size"]
    )
    if encoding.posterior_mass is None:
      raise RunError("this system has no posterior mass of objects; name a run of another.")
    mass = np.asarray(encoding.posterior_mass)
    return mass / np.maximum(mass.sum(axis=1, keepdims=True), 1e-9)

  results = measure_invariance(shares_of, images.examples["image"], labels, images.sizes["canvas"])
  rows = [
    [name, *results[key].values()]
    for name, key in (("the winning object", "information"), ("the class", "class_information"))
  ]
  title = f"Objects of changed images: {scored_on['dataset']} {scored_on['split']}"
  paragraphs = [
    f"{title}, step {head['step']:,}",
    table_of(results),
    table({"mutual information, nats": "", **dict.fromkeys(results["information"], ".2f")}, rows),
    LEGEND,
  ]
  return Findings({"scored_on": scored_on, **results}, paragraphs)


def main() -> None:
  """Measures, writes and prints."""
  measure_images("invariance", __doc__, measure, max_examples=2000)


if __name__ == "__main__":
  main()
