"""The figures of a report, drawn and saved one by one."""

import functools
import io
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure
from sklearn.manifold import TSNE

from scae_jax.evaluation.checks import check_features
from scae_jax.evaluation.classification import (
  Classification,
  PairClassification,
  by_confidence,
)
from scae_jax.evaluation.files import write_whole
from scae_jax.evaluation.history import read_history
from scae_jax.evaluation.scores import Labelled, Scores
from scae_jax.figures import FIGURES
from scae_jax.models.system import System
from scae_jax.typing import Batch

MAX_EMBEDDED = 1500
MIN_EMBEDDED = 5  # fewer points have no neighbourhood to keep
PERPLEXITY = 30.0
# Of the figures that models feed, those that name classes.
OF_CLASSES = ("coupling",)


def model_figures(
  system: System, variables: Any, batch: Batch, class_names: tuple[str, ...] = ()
) -> Iterator[tuple[str, Callable[[], Figure]]]:
  """Names and drawers of the figures that the model feeds.

  Args:
    system: the model.
    variables: what its module applies.
    batch: the examples to show.
    class_names: of the figures whose capsules are classes; () gives them numbers.

  Raises:
    ValueError: a figure that does not exist.
  """
  fed = jax.device_get(jax.jit(system.pictures)(variables, batch))
  unknown = sorted(set(fed) - set(FIGURES))
  if unknown:
    raise ValueError(
      f"`System.pictures` feeds {', '.join(unknown)}, but the figures are {', '.join(FIGURES)}."
    )
  for name, arrays in fed.items():
    options = {"class_names": class_names} if name in OF_CLASSES else {}
    yield name, functools.partial(FIGURES[name], **arrays, **options)


def feature_figures(
  name: str, test: Labelled, scores: Scores, class_names: tuple[str, ...], *, seed: int
) -> Iterator[tuple[str, Callable[[], Figure]]]:
  """Names and drawers of the figures of one set of features; names end in the features' own."""
  title = name.replace("_", " ")
  matched = f"LIN-MATCH {scores.entries['lin_match']:.1%}: {title}"
  yield (
    f"presences_by_class-{name}",
    lambda: FIGURES["presences_by_class"](test.features, test.labels, class_names, title),
  )
  yield (
    f"confusion-{name}",
    lambda: FIGURES["confusion"](scores.confusion, class_names, matched, "label of the cluster"),
  )
  if len(test.labels) >= MIN_EMBEDDED:
    shown = slice(MAX_EMBEDDED)
    yield (
      f"embedding-{name}",
      lambda: FIGURES["embedding"](
        embed(test.features[shown], seed), test.labels[shown], class_names, f"t-SNE of {title}"
      ),
    )


def answer_figures(
  answers: Classification | PairClassification, class_names: tuple[str, ...]
) -> Iterator[tuple[str, Callable[[], Figure]]]:
  """Names and drawers of the figures of a classifier's answers, each one of a pair counted."""
  accuracy = float(np.mean(answers.is_right))
  calibration = f"Expected calibration error {answers.calibration_error:.2%}"
  bins = by_confidence(answers.confidence.reshape(-1), answers.is_right.reshape(-1))
  yield (
    "confusion",
    lambda: FIGURES["confusion"](answers.confusion, class_names, f"Accuracy {accuracy:.2%}"),
  )
  yield (
    "reliability",
    lambda: FIGURES["reliability"](*bins, calibration),
  )


def curve_figures(
  history: str | pathlib.Path | None, seed: int
) -> Iterator[tuple[str, Callable[[], Figure]]]:
  """Name and drawer of the curves of one seed, if there is a history with numbers."""
  if history is not None and pathlib.Path(history).is_file():
    steps, values = read_history(pathlib.Path(history), seed)
    if values:
      yield "training_curves", lambda: FIGURES["training_curves"](steps, values)


def embed(features: np.ndarray, seed: int) -> np.ndarray:
  """Places examples in the plane by t-SNE, so that neighbours stay neighbours.

  Args:
    features: [n, d], n at least 5.
    seed: of the placement.

  Returns:
    float32 [n, 2].
  """
  check_features("to embed", features)
  # Principal components give a start that keeps clusters in place, where there are two that vary.
  varies = features.shape[1] >= 2 and bool(np.ptp(features, axis=0).any())
  tsne = TSNE(
    perplexity=min(PERPLEXITY, (len(features) - 1) / 3),
    init="pca" if varies else "random",
    random_state=seed,
  )
  return tsne.fit_transform(features)


def save_figures(
  directory: pathlib.Path, drawers: Mapping[str, Callable[[], Figure]]
) -> list[pathlib.Path]:
  """Draws each figure into `<directory>/<name>.png`, whole or not at all; returns the paths."""
  paths = []
  for name, draw in drawers.items():
    buffer = io.BytesIO()
    draw().savefig(buffer, format="png")
    path = directory / f"{name}.png"
    write_whole(path, buffer.getvalue())
    paths.append(path)
  return paths
