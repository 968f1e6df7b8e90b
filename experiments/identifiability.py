"""Whether parts have an identity: matches between templates, and parts of rotated images in colour.

    python -m experiments.identifiability runs/digits results/probabilistic

Writes `identifiability-<workdir>.json`, `.md` and `.png` into the folder, of a run with several
seeds one of each a seed. The number is explained in `scae_jax/evaluation/template_match.py`, the
picture in `scae_jax/figures/templates.py`.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from experiments.findings import Findings, ImageRun, measure_images
from scae_jax.data.batches import evaluation_batch
from scae_jax.evaluation.comparison import markdown
from scae_jax.evaluation.examples import NUM_PICTURED, one_of_each_class
from scae_jax.evaluation.template_match import match_templates
from scae_jax.figures import FIGURES
from scae_jax.models.system import System
from scae_jax.training.errors import RunError

NEEDED = ("templates", "part_identity")


def arrays_of(system: System, variables: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
  """Arguments of the figures of templates and of parts by identity; RunError if there are none."""
  drawn = jax.jit(system.pictures)(variables, batch)
  if missing := [name for name in NEEDED if name not in drawn]:
    raise RunError(
      f"this system feeds no figure {' and '.join(missing)}; name a run of a system whose parts"
      " draw templates."
    )
  return jax.device_get({name: drawn[name] for name in NEEDED})


def table(matches: Mapping[str, Any]) -> str:
  """Markdown: the number of the templates, then the nearest other of each."""
  nearest = matches["nearest"]
  head = ["templates with ink", "mean nearest error"]
  head.append(f"with a match below {matches['match_below']:g}")
  inked = f"{len(nearest)} of {matches['templates']}"
  whole = [inked, f"{matches['mean_error']:.3f}", f"{matches['matched']:.0%}"]
  each = [[f"{one['template']}", f"{one['by']}", f"{one['error']:.3f}"] for one in nearest]
  of_each = ["template", "nearest", "relative squared error"]
  return f"{markdown([head, whole])}\n\n{markdown([of_each, *each])}"


def measure(images: ImageRun, variables: Any, head: dict[str, Any], name: str) -> Findings:
  """Measures one seed."""
  run = images.run
  rows = one_of_each_class(images.examples["label"], NUM_PICTURED)
  shown = {name: jnp.asarray(values[rows]) for name, values in images.examples.items()}
  batch = evaluation_batch(shown, jnp.arange(len(rows)), canvas=images.sizes["canvas"])
  arrays = arrays_of(run.system, variables, batch)
  matches = match_templates(**arrays["templates"])
  paragraphs = [
    table(matches),
    "Nearest affine match between templates, times alpha where they have one: of every template the"
    " least relative squared error of another, at its best affine pose, mirror images included.",
    *matches["notes"],
    f"Run {head['workdir']}, step {head['step']:,}, seed {head['seed']}.",
  ]
  shown_of = f"{run.config.system}, {name.removeprefix('identifiability-')}, step {run.step:,}"
  draw = functools.partial(FIGURES["part_identity"], **arrays["part_identity"], source=shown_of)
  return Findings(matches, paragraphs, draw)


def main() -> None:
  """Measures, writes and prints."""
  measure_images("identifiability", __doc__, "no templates", measure)


if __name__ == "__main__":
  main()
