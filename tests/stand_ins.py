"""Systems, data sets and runs that stand in for trained ones; commands and figures under test."""

import json
import pathlib
import sys
from typing import Any

import numpy as np
import pytest
from flax import linen as nn
from matplotlib.backends.backend_agg import FigureCanvasAgg

from experiments import findings
from scae_jax.config import read_settings
from scae_jax.data.dataset import Dataset, Split
from scae_jax.models.system import Encoding, System
from scae_jax.training.run import Run
from tests.toy_system import toy_config

STEP = 7  # of the run that a command finds


class Pixels(nn.Module):
  """Gives the image back."""

  @nn.compact
  def __call__(self, batch, *, train):
    return batch["image"]


def stub(module: nn.Module | None = None, **fields: Any) -> System:
  """A system without terms, metrics, features or pictures, but for the given fields."""
  nothing: dict[str, Any] = {
    "loss_terms": lambda output, batch, step: {},
    "loss_weights": {},
    "loss_schedule": {},
    "metrics": lambda output, batch: {},
    "encoding": lambda output: Encoding(),
  }
  return System(**{"module": module or Pixels(), **nothing, **fields})


def labelled(name: str, images: np.ndarray, labels: np.ndarray, names: str = "abc") -> Dataset:
  """A data set whose two splits have the same examples; `names` has a letter for each class."""
  split = Split(images, labels.astype(np.int32))
  return Dataset(name, tuple(names), {"train": split, "test": split})


def noise(count: int) -> Dataset:
  """Images [count, 16, 16, 1] of noise, of three classes in turn."""
  images = np.random.RandomState(0).randint(0, 255, (count, 16, 16, 1), np.uint8)
  return labelled("noise", images, np.arange(count) % 3)


def open_for_commands(
  patch: pytest.MonkeyPatch, system, dataset, variables, config: Any = None
) -> Run:
  """Commands open this run, of step 7, from any workdir; variables are by seed."""
  config = config or toy_config(data__canvas=18)
  run = Run(read_settings(config), system, dataset, variables, STEP, is_latest=True)
  patch.setattr(findings, "load_settings", lambda workdir, changes: config)
  patch.setattr(findings, "keep_compiled", lambda folder: None)
  patch.setattr(findings, "open_run", lambda *arguments: run)
  return run


def call(patch: pytest.MonkeyPatch, command: Any, *arguments: object) -> None:
  """Runs a command of experiments/ in this process."""
  patch.setattr(sys, "argv", [command.__name__.rpartition(".")[2], *map(str, arguments)])
  command.main()


def refused(capsys, function: Any, *arguments: object) -> str:
  """The stderr of a function that ends with exit code 2."""
  with pytest.raises(SystemExit) as stopped:
    function(*arguments)
  assert stopped.value.code == 2
  return capsys.readouterr().err


def refusal(capsys, patch: pytest.MonkeyPatch, command: Any, *arguments: object) -> str:
  """The stderr of a command of experiments/ that ends with exit code 2."""
  return refused(capsys, call, patch, command, *arguments)


def source_of(examples: dict[str, Any]) -> dict[str, Any]:
  """Data set, split and number of examples, as `describe_scored` records them."""
  assert len(examples["fingerprint"]) == 16
  return {key: examples[key] for key in ("dataset", "split", "examples")}


def written(capsys, folder: pathlib.Path, stem: str) -> tuple[dict[str, Any], str]:
  """Record and text that a command has written; it has printed the text too."""
  text = (folder / f"{stem}.md").read_text()
  assert text in capsys.readouterr().out
  return json.loads((folder / f"{stem}.json").read_text()), text


def drawn(figure):
  """Images of a figure, by row and column of the grid."""
  cells = {}
  for axes in figure.axes:
    if axes.get_images():
      spec = axes.get_subplotspec()
      cells[spec.rowspan.start, spec.colspan.start] = np.asarray(axes.get_images()[0].get_array())
  return cells


def rendered(figure):
  """Pixels as saved, float [height, width, 3]. Drawing shows all warnings."""
  canvas = FigureCanvasAgg(figure)
  canvas.draw()
  return np.asarray(canvas.buffer_rgba())[..., :3] / 255


def texts(artists) -> list[str]:
  """The texts of artists."""
  return [artist.get_text() for artist in artists]


def turn(degrees: float) -> np.ndarray:
  """The pose [2, 3] that turns counter-clockwise: y runs down."""
  cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
  return np.array([[cos, sin, 0], [-sin, cos, 0]])
