"""Whether parts are identifiable: matches between their templates.

    python -m experiments.identifiability runs/digits results/probabilistic

Writes `identifiability-<workdir>.json` and `.md` into the folder, for each seed if a run has
several. `experiments/template_match.py` explains the measure. Each run's report has
`part_identity.png`, rotated images with every part in its own colour.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from experiments.findings import Findings, ImageRun, measure_images
from experiments.template_match import match_templates
from scae_jax.data.batches import evaluation_batch
from scae_jax.errors import RunError
from scae_jax.evaluation.tables import table


def tables(matches: Mapping[str, Any]) -> str:
  """Markdown: a summary of the matches, then the nearest other template of each."""
  nearest = matches["nearest"]
  summary_columns = {
    "templates with ink": "",
    "mean nearest error": ".3f",
    f"with a match below {matches['match_below']:g}": ".0%",
  }
  inked = f"{len(nearest)} of {matches['templates']}"
  summary = [inked, float(matches["mean_error"]), float(matches["matched"])]
  columns = {"template": "", "nearest": "", "relative squared error": ".3f"}
  rows = [[match["template"], match["by"], match["error"]] for match in nearest]
  return f"{table(summary_columns, [summary])}\n\n{table(columns, rows)}"


def measure(images: ImageRun, variables: Any, head: dict[str, Any]) -> Findings:
  """Measures one seed; RunError if parts draw no templates."""
  first_image = {name: jnp.asarray(values[:1]) for name, values in images.examples.items()}
  batch = evaluation_batch(first_image, jnp.arange(1), canvas=images.sizes["canvas"])
  # Compiles only what the templates need.
  draw_templates = jax.jit(
    lambda variables: images.run.system.pictures(variables, batch).get("templates")
  )
  templates = jax.device_get(draw_templates(variables))
  if templates is None:
    raise RunError("this system draws no templates; name a run of one whose parts do.")
  matches = match_templates(**templates)
  paragraphs = [
    tables(matches),
    "Nearest affine match between templates, times alpha where they have one: of every template the"
    " least relative squared error of another, at its best affine pose, mirror images included.",
    *matches["notes"],
    f"Run {head['workdir']}, step {head['step']:,}, seed {head['seed']}.",
  ]
  return Findings(matches, paragraphs)


def main() -> None:
  """Measures, writes and prints."""
  measure_images("identifiability", __doc__, measure)


if __name__ == "__main__":
  main()
