"""The report on a model: `metrics.json`, a table and pictures.

Every kind of model has a scorer in `scorers`; the rest is the same for all, and here.
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
from scae_jax.models.system import System
from scae_jax.typing import Batch
from scae_jax.waiting import waiting

FILE = "metrics.json"


@dataclasses.dataclass(frozen=True)
class Evaluated:
  """A trained model, and what every report needs to know of it."""

  system: System
  variables: Mapping[int, Any]  # by seed
  step: int
  batch_size: int
  max_examples: int = 0  # of each split, always the same; 0 is all
  provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # for `metrics.json`
  history: pathlib.Path | None = None  # the run's `metrics.jsonl`, whose curves are drawn


@dataclasses.dataclass(frozen=True)
class Scored:
  """What a scorer finds of one seed."""

  sources: Mapping[str, Any]  # for `metrics.json`: `scored_on` and, if any, `fitted_on`
  entries: Mapping[str, Any]  # for `metrics.json`, what was found
  notes: tuple[str, ...]  # sentences on what makes a figure less than it seems
  pictured: Batch  # the examples that the model's figures show
  drawers: Mapping[str, Callable[[], Figure]] = dataclasses.field(default_factory=dict)  # more
  clusters: Mapping[str, Clusters] = dataclasses.field(default_factory=dict)  # by kind of features
  class_names: tuple[str, ...] = ()  # of figures that name classes; () gives them numbers


# (variables, seed) -> what was found; made by `scorers`.
Scorer = Callable[[Any, int], Scored]


def write_reports(
  directory: str | pathlib.Path, evaluated: Evaluated, scorer: Scorer
) -> dict[int, dict[str, Any]]:
  """Scores every seed: `metrics.json`, PNG figures and `clusters.json` each, and a table.

  Of several seeds each has a folder `seed-<number>`, and there is one summary. The content of each
  seed's `metrics.json` is returned.

  Nothing changes in the folder until all is computed and drawn. Then the `metrics.json` of an older
  report goes first and the new one comes last, that of the summary at the very last: where there is
  one, the report is whole. If a figure cannot be drawn, the numbers are written without figures,
  with the entry `unfinished`, and the error is raised.

  A folder that cannot be written to raises OSError before anything is computed, a figure that does
  not exist ValueError.
  """
  directory, seeds = pathlib.Path(directory), evaluated.variables
  folders = {seed: directory / f"seed-{seed}" if len(seeds) > 1 else directory for seed in seeds}
  for folder in folders.values():
    write_whole(folder / ".writable", b"")
    (folder / ".writable").unlink()
  reports, parts = {}, {}
  for seed, folder in folders.items():
    own = evaluated.variables[seed]
    scored = scorer(own, seed)
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
      parts[folder / CLUSTERS_FILE] = clusters_json(scored.clusters, evaluated.step, seed)
    try:
      with waiting("computing the model's figures"):
        drawers = model_figures(evaluated.system, own, scored.pictured, scored.class_names)
      drawers |= {**scored.drawers, **curve_figures(evaluated.history, seed)}
      pictures = draw_figures(drawers)
    except Exception as error:
      unfinished = {"unfinished": f"figures: {error}"}
      found = {folders[done]: report | unfinished for done, report in reports.items()}
      write_together({}, {path / FILE: json_bytes(content) for path, content in found.items()})
      raise
    parts |= {folder / name: picture for name, picture in pictures.items()}
  marks = {folders[seed] / FILE: report for seed, report in reports.items()}
  if len(reports) > 1:
    marks[directory / FILE] = summary(reports)
  write_together(parts, {path: json_bytes(content) for path, content in marks.items()})
  print(seeds_text(reports))
  return reports
