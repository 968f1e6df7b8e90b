"""Whether parts have an identity: matches between templates, and parts of turned images in colour.

    python -m experiments.identifiability runs/digits results/probabilistic

Writes `identifiability-<workdir>.json`, `.md` and `.png` into the folder, of a run with several
seeds one of each a seed. The number is explained in `scae_jax/evaluation/template_match.py`, the
picture in `scae_jax/figures/part_identity.py`.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from experiments.findings import write_findings
from experiments.one_run import each_seed, image_parser, open_on_images
from scae_jax.data.batches import evaluation_batch
from scae_jax.evaluation.examples import NUM_PICTURED, one_of_each_class
from scae_jax.evaluation.provenance import measured_with
from scae_jax.evaluation.table import markdown
from scae_jax.evaluation.template_match import match_templates
from scae_jax.figures import FIGURES
from scae_jax.models.system import System
from scae_jax.training.errors import RunError, exit_with_message, explained

NEEDED = ("templates", "part_identity")


def arrays_of(system: System, variables: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
  """Arguments of the figures of templates and of parts by identity.

  Raises:
    RunError: the system does not feed them.
  """
  pictures = jax.eval_shape(system.pictures, variables, batch)
  missing = [name for name in NEEDED if name not in pictures]
  if missing:
    raise RunError(
      f"this system feeds no figure {' and '.join(missing)}; name a run of a system whose parts"
      " draw templates."
    )

  @jax.jit
  def draw(variables: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
    drawn = system.pictures(variables, batch)
    return {name: drawn[name] for name in NEEDED}  # nothing else is computed

  return jax.device_get(draw(variables, batch))


def table(matches: Mapping[str, Any]) -> str:
  """Markdown: the number of the templates, then the nearest other of each."""
  below = f"{matches['match_below']:g}"
  whole = [
    ["templates with ink", "mean nearest error", f"with a match below {below}"],
    [
      f"{len(matches['nearest'])} of {matches['templates']}",
      f"{matches['mean_error']:.3f}",
      f"{matches['matched']:.0%}",
    ],
  ]
  each = [["template", "nearest", "relative squared error"]]
  each += [
    [f"{one['template']}", f"{one['by']}", f"{one['error']:.3f}"] for one in matches["nearest"]
  ]
  return f"{markdown(whole)}\n\n{markdown(each)}"


def remarks(record: Mapping[str, Any]) -> list[str]:
  """What is to be said beside the table: what was measured, and on what."""
  return [
    "Nearest affine match between templates, times alpha where they have one: of every template the"
    " least relative squared error of another, at its best affine pose, mirror images included.",
    *record["notes"],
    f"Run {record['workdir']}, step {record['step']:,}, seed {record['seed']}.",
  ]


def main() -> None:
  """Measures, writes, prints and draws."""
  options = image_parser(__doc__).parse_args()
  with exit_with_message(), explained():
    images = open_on_images(options, "no templates", max_examples=0)
    run = images.run
    rows = one_of_each_class(images.examples["label"], NUM_PICTURED)
    shown = {name: jnp.asarray(values[rows]) for name, values in images.examples.items()}
    batch = evaluation_batch(shown, jnp.arange(len(rows)), canvas=images.sizes["canvas"])
    for name, variables, head in each_seed("identifiability", run, options):
      arrays = arrays_of(run.system, variables, batch)
      matches = match_templates(**arrays["templates"])
      record = {**head, **matches, **measured_with()}
      shown_of = f"{run.config.system}, {name.removeprefix('identifiability-')}, step {run.step:,}"
      draw = functools.partial(FIGURES["part_identity"], **arrays["part_identity"], source=shown_of)
      write_findings(options.folder, name, record, [table(matches), *remarks(record)], draw)


if __name__ == "__main__":
  main()
