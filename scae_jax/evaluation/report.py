"""The report on a model: `metrics.json`, a table and pictures.

Each kind of model has a scorer in `scorers`; what is here is the same for all.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from matplotlib.figure import Figure

from scae_jax.evaluation.clusters import FILE as CLUSTERS_FILE
from scae_jax.evaluation.clusters import Clusters, clusters_json
from scae_jax.evaluation.comparison import seeds_text, summary
from scae_jax.evaluation.provenance import measured_with
from scae_jax.evaluation.report_figures import curve_figures, draw_figures, model_figures
from scae_jax.files import json_bytes, write_together, write_whole
from scae_jax.interrupt import say
from scae_jax.models.system import System
from scae_jax.typing import Batch
from scae_jax.waiting import waiting

FILE = "metrics.json"


@dataclasses.dataclass(frozen=True)
class Evaluated:
  """A trained model, and how it is evaluated."""

  system: System
  variables: Mapping[int, Any]  # by seed
  step: int
  batch_size: int
  max_examples: int = 0  # of each split, the same ones in every run; 0 is all
  provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # for `metrics.json`
  history: pathlib.Path | None = None  # the run's `metrics.jsonl`, whose curves are drawn


@dataclasses.dataclass(frozen=True)
class Scored:
  """Scores of one seed, and the figures that go with them."""

  sources: Mapping[str, Any]  # for `metrics.json`: `scored_on` and, if any, `fitted_on`
  entries: Mapping[str, Any]  # for `metrics.json`: the scores
  notes: tuple[str, ...]  # sentences that qualify the scores
  pictured: Batch  # the examples that the model's figures show
  # Figures besides the model's own.
  drawers: Mapping[str, Callable[[], Figure]] = dataclasses.field(default_factory=dict)
  clusters: Mapping[str, Clusters] = dataclasses.field(default_factory=dict)  # by kind of features
  class_names: tuple[str, ...] = ()  # for the model's figures; () stands for numbers


# (variables, seed) -> scores; made by `scorers`.
Scorer = Callable[[Any, int], Scored]


def write_reports(
  directory: str | pathlib.Path, evaluated: Evaluated, scorer: Scorer
) -> dict[int, dict[str, Any]]:
  """Scores every seed; writes `metrics.json`, PNG figures and `clusters.json`, and prints a table.

  Several seeds have a folder `seed-<number>` each, and a common summary. Returns the content of
  each seed's `metrics.json`.

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
  reports, files = {}, {}
  for seed, folder in folders.items():
    seed_variables = evaluated.variables[seed]
    scored = scorer(seed_variables, seed)
    reports[seed] = {
      **scored.sources,
      "max_examples": evaluated.max_examples,
      "step": int(evaluated.step),
      "seed": int(seed),
      **scored.entries,
      "notes": list(scored.notes),
      **measured_with(),
      "provenance": dict(evaluated.provenance),
    }
    if scored.clusters:
      files[folder / CLUSTERS_FILE] = clusters_json(scored.clusters, evaluated.step, seed)
    try:
      with waiting("computing the model's figures"):
        drawers = model_figures(
          evaluated.system, seed_variables, scored.pictured, scored.class_names
        )
      drawers |= {**scored.drawers, **curve_figures(evaluated.history, seed)}
      pictures = draw_figures(drawers)
    except Exception as error:
      unfinished = {"unfinished": f"figures: {error}"}
      partial = {folders[s] / FILE: report | unfinished for s, report in reports.items()}
      write_together({}, {path: json_bytes(content) for path, content in partial.items()})
      raise
    files |= {folder / name: picture for name, picture in pictures.items()}
  metrics_files = {folders[seed] / FILE: report for seed, report in reports.items()}
  if len(reports) > 1:
    metrics_files[directory / FILE] = summary(reports)
  write_together(files, {path: json_bytes(content) for path, content in metrics_files.items()})
  say(seeds_text(reports))
  return reports
