"""The figures of a report, drawn and saved one by one."""

import functools
import io
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import matplotlib.style
import numpy as np
from matplotlib.figure import Figure
from sklearn.manifold import TSNE

from scae_jax.evaluation.classification import Classification, by_confidence
from scae_jax.evaluation.examples import choose
from scae_jax.evaluation.history import read_history
from scae_jax.evaluation.scores import Scores
from scae_jax.figures import FIGURES
from scae_jax.figures.style import STYLE
from scae_jax.files import write_whole
from scae_jax.models.system import System
from scae_jax.typing import Batch
from scae_jax.waiting import waiting

MAX_EMBEDDED = 1500
MIN_EMBEDDED = 5  # fewer points have no neighbourhood to keep
PERPLEXITY = 30.0
# Figures of `System.pictures` that write class names.
WITH_CLASS_NAMES = ("coupling",)
Drawers = dict[str, Callable[[], Figure]]  # by name of the file, without its ending


def model_figures(
  system: System, variables: Any, batch: Batch, class_names: tuple[str, ...] = ()
) -> Drawers:
  """The model's own figures of a batch; `class_names` are for capsules that stand for classes."""
  # It runs once. Without optimisation it compiles in half the time: ten seconds less on a CPU.
  options = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
  draw = jax.jit(system.pictures, compiler_options=options)
  figure_arguments = jax.device_get(draw(variables, batch))
  unknown = sorted(set(figure_arguments) - set(FIGURES))
  if unknown:
    raise ValueError(
      f"`System.pictures` feeds {', '.join(unknown)}, but the figures are {', '.join(FIGURES)}."
    )
  names = {"class_names": class_names}
  return {
    name: functools.partial(FIGURES[name], **arrays, **(names if name in WITH_CLASS_NAMES else {}))
    for name, arrays in figure_arguments.items()
  }


def feature_figures(
  name: str,
  features: np.ndarray,
  labels: np.ndarray,
  scores: Scores,
  class_names: tuple[str, ...],
  *,
  seed: int,
) -> Drawers:
  """The figures of one kind of features [n, d] of the scored examples."""
  title = name.replace("_", " ")
  confusion_title = f"LIN-MATCH {scores.entries['lin_match']:.1%}: {title}"
  confusion = np.asarray(scores.entries["confusion"])
  embedded_rows = choose(len(labels), MAX_EMBEDDED)
  drawers: Drawers = {
    f"presences_by_class-{name}": lambda: FIGURES["presences_by_class"](
      features, labels, class_names, title
    ),
    f"confusion-{name}": lambda: FIGURES["confusion"](
      confusion, class_names, confusion_title, "label of the cluster"
    ),
  }
  if len(labels) >= MIN_EMBEDDED:
    drawers[f"embedding-{name}"] = lambda: FIGURES["embedding"](
      embed(features[embedded_rows], seed), labels[embedded_rows], class_names, f"t-SNE of {title}"
    )
  return drawers


def answer_figures(answers: Classification, class_names: tuple[str, ...]) -> Drawers:
  """The figures of a classifier's answers; both answers to a pair count."""
  accuracy = f"Accuracy {np.mean(answers.is_right):.2%}"
  calibration = f"Expected calibration error {answers.calibration_error:.2%}"
  bins = by_confidence(answers.confidence.reshape(-1), answers.is_right.reshape(-1))
  return {
    "confusion": lambda: FIGURES["confusion"](answers.confusion, class_names, accuracy),
    "reliability": lambda: FIGURES["reliability"](*bins, calibration),
  }


def curve_figures(history: pathlib.Path | None, seed: int) -> Drawers:
  """The curves of one seed's training, if there is a history with numbers."""
  if history is None or not history.is_file():
    return {}
  steps, values = read_history(history, seed)
  return {"training_curves": lambda: FIGURES["training_curves"](steps, values)} if values else {}


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


def draw_figures(drawers: Mapping[str, Callable[[], Figure]]) -> dict[str, bytes]:
  """Every figure as a PNG, by the name of its file.

  Of the user's settings of Matplotlib only the fonts apply; others could make figures fail, as
  `text.usetex` without LaTeX, or unreadable, as a dark background.
  """
  fonts = {key: value for key, value in matplotlib.rcParams.items() if key.startswith("font.")}
  pictures = {}
  with waiting("drawing figures", len(drawers)) as advance:
    for name, draw in drawers.items():
      buffer = io.BytesIO()
      with matplotlib.style.context(["default", fonts | STYLE]):
        draw().savefig(buffer, format="png")
      pictures[f"{name}.png"] = buffer.getvalue()
      advance(1)
  return pictures


def save_figures(directory: pathlib.Path, drawers: Mapping[str, Callable[[], Figure]]) -> None:
  """Draws figures and writes each atomically to `<directory>/<name>.png`."""
  for name, content in draw_figures(drawers).items():
    write_whole(directory / name, content)
