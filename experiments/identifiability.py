"""Whether parts have an identity: matches between their templates.

    python -m experiments.identifiability runs/digits results/probabilistic

Writes `identifiability-<workdir>.json` and `.md` into the folder, of a run with several seeds one
of each a seed. The number is explained in `experiments/template_match.py`. Each run's
report has `part_identity.png`, rotated images with every part in a colour of its own.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from experiments.findings import Findings, ImageRun, measure_images
from experiments.template_match import match_templates
from scae_jax.data.batches import evaluation_batch
from scae_jax.errors import RunError
from scae_jax.evaluation.comparison import markdown


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


def measure(images: ImageRun, variables: Any, head: dict[str, Any]) -> Findings:
  """Measures one seed; RunError if parts draw no templates."""
  shown = {name: jnp.asarray(values[:1]) for name, values in images.examples.items()}
  batch = evaluation_batch(shown, jnp.arange(1), canvas=images.sizes["canvas"])
  # Compiled is what the templates need alone.
  drawn = jax.jit(lambda variables: images.run.system.pictures(variables, batch).get("templates"))
  templates = jax.device_get(drawn(variables))
  if templates is None:
    raise RunError("this system draws no templates; name a run of one whose parts do.")
  matches = match_templates(**templates)
  paragraphs = [
    table(matches),
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
