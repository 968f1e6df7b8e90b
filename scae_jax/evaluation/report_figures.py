"""The figures of a report: their data, and how they are drawn and saved."""

import io
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import matplotlib
import matplotlib.figure
import matplotlib.style
import numpy as np
from sklearn.manifold import TSNE

from scae_jax.evaluation.classification import Classification, by_confidence
from scae_jax.evaluation.examples import choose
from scae_jax.evaluation.history import read_history
from scae_jax.evaluation.items import Figure
from scae_jax.figures import FIGURES
from scae_jax.figures.style import STYLE
from scae_jax.files import write_whole
from scae_jax.models.system import System
from scae_jax.waiting import waiting

MAX_EMBEDDED = 1500
MIN_EMBEDDED = 5  # fewer points have no neighbourhood to keep
PERPLEXITY = 30.0


def read_pictures(
  system: System, variables: Any, batch: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
  """The arguments of the model's own figures of a batch; ValueError for unknown figures."""
  # It runs once. Without optimisation it compiles in half the time: ten seconds less on a CPU.
  options = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
  pictures = jax.device_get(jax.jit(system.pictures, compiler_options=options)(variables, batch))
  if unknown := sorted(set(pictures) - set(FIGURES)):
    raise ValueError(
      f"`System.pictures` feeds {', '.join(unknown)}, but the figures are {', '.join(FIGURES)}."
    )
  return pictures


def read_curves(history: pathlib.Path | None, seed: int) -> dict[str, Any]:
  """The arguments of `training_curves` of one seed; {} without a history with numbers."""
  if history is None or not history.is_file():
    return {}
  steps, values = read_history(history, seed)
  return {"steps": steps, "values": values} if values else {}


def feature_figures(
  seed: int,
  name: str,
  activations: np.ndarray,
  labels: np.ndarray,
  entries: Mapping[str, Any],
  class_names: tuple[str, ...],
) -> Iterator[Figure]:
  """The figures of one kind of features [n, d] of the scored examples.

  `entries` are those of the features in `metrics.json`.
  """
  title = name.replace("_", " ")
  by_label = {"labels": labels, "class_names": class_names}
  yield Figure(
    seed,
    f"presences_by_class-{name}",
    FIGURES["presences_by_class"],
    {"features": activations, **by_label, "title": title},
  )
  yield Figure(
    seed,
    f"confusion-{name}",
    FIGURES["confusion"],
    {
      "matrix": np.asarray(entries["confusion"]),
      "class_names": class_names,
      "title": f"LIN-MATCH {entries['lin_match']:.1%}: {title}",
      "columns": "label of the cluster",
    },
  )
  if len(labels) >= MIN_EMBEDDED:
    options = {"features": activations, **by_label, "title": f"t-SNE of {title}", "seed": seed}
    yield Figure(seed, f"embedding-{name}", draw_embedding, options)


def answer_figures(
  seed: int, answers: Classification, class_names: tuple[str, ...]
) -> Iterator[Figure]:
  """The figures of a classifier's answers; both answers to a pair count."""
  title = f"Accuracy {np.mean(answers.is_right):.2%}"
  confusion = {"matrix": answers.confusion, "class_names": class_names, "title": title}
  yield Figure(seed, "confusion", FIGURES["confusion"], confusion)
  bins = by_confidence(answers.confidence.reshape(-1), answers.is_right.reshape(-1))
  title = f"Expected calibration error {answers.calibration_error:.2%}"
  reliability = dict(zip(("count", "confidence", "accuracy"), bins, strict=True))
  yield Figure(seed, "reliability", FIGURES["reliability"], reliability | {"title": title})


def draw_embedding(
  features: np.ndarray, labels: np.ndarray, class_names: Sequence[str], title: str, seed: int
) -> matplotlib.figure.Figure:
  """Draws a map of at most `MAX_EMBEDDED` examples with features [n, d] and labels int [n]."""
  rows = choose(len(labels), MAX_EMBEDDED)
  return FIGURES["embedding"](embed(features[rows], seed), labels[rows], class_names, title)


def embed(features: np.ndarray, seed: int, perplexity: float = PERPLEXITY) -> np.ndarray:
  """Places examples [n, d], two at least, in the plane by t-SNE: float32 [n, 2]."""
  # Starting from principal components keeps clusters in place; they need features that vary.
  has_variance = features.shape[1] >= 2 and bool(np.ptp(features, axis=0).any())
  tsne = TSNE(
    perplexity=min(perplexity, (len(features) - 1) / 3),
    init="pca" if has_variance else "random",
    random_state=seed,
  )
  return tsne.fit_transform(features)


def draw_figures(figures: Sequence[Figure]) -> dict[str, bytes]:
  """Every figure as a PNG, by the name of its file."""
  with waiting("drawing figures", len(figures)) as advance:
    pictures = {}
    for figure in figures:
      pictures[f"{figure.name}.png"] = png(figure.draw)
      advance(1)
  return pictures


def png(draw: Callable[[], matplotlib.figure.Figure]) -> bytes:
  """A figure as a PNG, drawn in the style of all figures.

  Of the user's settings of Matplotlib only the fonts apply; others could make figures fail, as
  `text.usetex` without LaTeX, or unreadable, as a dark background.
  """
  buffer = io.BytesIO()
  fonts = {key: value for key, value in matplotlib.rcParams.items() if key.startswith("font.")}
  with matplotlib.style.context(["default", fonts | STYLE]):
    draw().savefig(buffer, format="png")
  return buffer.getvalue()


def save_figure(path: pathlib.Path, draw: Callable[[], matplotlib.figure.Figure]) -> None:
  """Draws a figure and writes it atomically."""
  write_whole(path, png(draw))
