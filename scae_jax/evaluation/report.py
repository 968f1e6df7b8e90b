"""The report on a model: `metrics.json`, a table and pictures.

`evaluators` yield what stands in it; what is here is the same for all kinds of models.
"""

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from scae_jax.evaluation.comparison import seeds_text, summary
from scae_jax.evaluation.examples import choose
from scae_jax.evaluation.items import Entry, Figure, File, Item, Pictured
from scae_jax.evaluation.provenance import measured_with
from scae_jax.evaluation.report_figures import draw_figures, read_curves, read_pictures
from scae_jax.figures import FIGURES
from scae_jax.files import json_bytes, write_together, write_whole
from scae_jax.interrupt import say
from scae_jax.models.system import System
from scae_jax.waiting import waiting

FILE = "metrics.json"


@dataclasses.dataclass(frozen=True)
class Evaluated:
  """A trained model, and how it is evaluated; ValueError for a negative limit."""

  system: System
  variables: Mapping[int, Any]  # by seed
  step: int
  batch_size: int
  max_examples: int = 0  # of each split, the same ones in every run; 0 is all
  provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # for `metrics.json`
  history: pathlib.Path | None = None  # the run's `metrics.jsonl`, whose curves are drawn

  def __post_init__(self) -> None:
    choose(0, self.max_examples)  # fails now rather than after the work


def write_reports(
  directory: str | pathlib.Path, evaluated: Evaluated, items: Iterable[Item]
) -> dict[int, dict[str, Any]]:
  """Writes `metrics.json`, PNG figures and other files of every seed, and prints a table.

  `items` are what an evaluator yields. Several seeds have a folder `seed-<number>` each, and a
  common summary. Returns the content of each seed's `metrics.json`.

  The folder changes only after everything is computed and drawn. The `metrics.json` of an older
  report is removed first and the new one is written last, that of the summary after all others: a
  `metrics.json` means that the report is complete. If a figure cannot be drawn, the numbers are
  written without figures, with the entry `unfinished`, and the error is raised.

  A folder that cannot be written to raises OSError before anything is computed; a figure that does
  not exist raises ValueError.
  """
  directory, seeds = pathlib.Path(directory), evaluated.variables
  folders = {seed: directory / f"seed-{seed}" if len(seeds) > 1 else directory for seed in seeds}
  for folder in folders.values():
    write_whole(folder / ".writable", b"")
    (folder / ".writable").unlink()
  entries: dict[int, dict[str, Any]] = {seed: {} for seed in seeds}
  files: dict[pathlib.Path, bytes] = {}
  drawn: list[Figure | Pictured] = []
  for item in items:
    if isinstance(item, Entry):
      entries[item.seed][item.key] = item.value
    elif isinstance(item, File):
      files[folders[item.seed] / item.name] = item.content
    else:
      drawn.append(item)
  reports = {
    seed: {
      **entries[seed],
      "max_examples": evaluated.max_examples,
      "step": int(evaluated.step),
      "seed": int(seed),
      **measured_with(),
      "provenance": dict(evaluated.provenance),
    }
    for seed in seeds
  }
  metrics_files = {folders[seed] / FILE: report for seed, report in reports.items()}
  try:
    for seed, folder in folders.items():
      figures = _figures_of(evaluated, seed, [item for item in drawn if item.seed == seed])
      files |= {folder / name: content for name, content in draw_figures(figures).items()}
  except Exception as error:
    unfinished = {"unfinished": f"figures: {error}"}
    partial = {path: json_bytes(report | unfinished) for path, report in metrics_files.items()}
    write_together({}, partial)
    raise
  if len(reports) > 1:
    metrics_files[directory / FILE] = summary(reports)
  write_together(files, {path: json_bytes(content) for path, content in metrics_files.items()})
  say(seeds_text(reports))
  return reports


def _figures_of(
  evaluated: Evaluated, seed: int, items: Iterable[Figure | Pictured]
) -> list[Figure]:
  """The figures of one seed: those of items, the model's own, and the curves of its training."""
  figures = []
  for item in items:
    if isinstance(item, Figure):
      figures.append(item)
      continue
    with waiting("computing the model's figures"):
      pictures = read_pictures(evaluated.system, evaluated.variables[seed], item.batch)
    for name, arguments in pictures.items():
      names = {"class_names": item.class_names} if name == "coupling" else {}
      figures.append(Figure(seed, name, FIGURES[name], arguments | names))
  if curves := read_curves(evaluated.history, seed):
    figures.append(Figure(seed, "training_curves", FIGURES["training_curves"], curves))
  return figures
