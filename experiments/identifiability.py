"""Whether parts have an identity: matches between templates, and parts of turned images in colour.

    python -m experiments.identifiability runs/digits results/probabilistic

Writes `identifiability-<workdir>.json`, `.md` and `.png` into the folder, of a run with several
seeds one of each a seed. The number is explained in `scae_jax/evaluation/template_match.py`, the
picture in `scae_jax/figures/part_identity.py`.
"""

import functools
import shlex
import sys
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from experiments.one_run import make_parser, open_on_images, stem_of
from scae_jax.data.batches import evaluation_batch
from scae_jax.evaluation.examples import NUM_PICTURED, one_of_each_class
from scae_jax.evaluation.files import write_json, write_whole
from scae_jax.evaluation.pictures import save_figures
from scae_jax.evaluation.provenance import hardware_and_versions, measured_with
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
  rows = [
    f"| templates with ink | mean nearest error | with a match below {below} |",
    "|---|---|---|",
    f"| {len(matches['nearest'])} of {matches['templates']} | {matches['mean_error']:.3f}"
    f" | {matches['matched']:.0%} |",
    "",
    "| template | nearest | relative squared error |",
    "|---|---|---|",
  ]
  rows += [
    f"| {one['template']} | {one['by']} | {one['error']:.3f} |" for one in matches["nearest"]
  ]
  return "\n".join(rows)


def remarks(record: Mapping[str, Any]) -> str:
  """What is to be said beside the table: what was measured, by which command, on what."""
  lines = [
    "Nearest affine match between templates, times alpha where they have one: of every template the"
    " least relative squared error of another, at its best affine pose, mirror images included.",
    *record["notes"],
    f"Run {record['workdir']}, step {record['step']:,}, seed {record['seed']}. Command:"
    f" `{record['command']}`.",
    hardware_and_versions(record),
    f"Measured {record['date'][:10]}.",
  ]
  return "\n\n".join(lines)


def main() -> None:
  """Measures, writes, prints and draws."""
  parser = make_parser(__doc__)
  parser.add_argument("--split", default=None, help="of the images shown, if not the held-out one")
  options = parser.parse_args()
  with exit_with_message(), explained():
    images = open_on_images(options, "no templates", max_examples=0)
    run = images.run
    rows = one_of_each_class(images.examples["label"], NUM_PICTURED)
    shown = {name: jnp.asarray(values[rows]) for name, values in images.examples.items()}
    batch = evaluation_batch(shown, jnp.arange(len(rows)), canvas=images.canvas)
    for seed, variables in run.variables.items():
      arrays = arrays_of(run.system, variables, batch)
      matches = match_templates(**arrays["templates"])
      name = stem_of("identifiability", run, options.workdir, seed)
      command = shlex.join(["python", "-m", "experiments.identifiability", *sys.argv[1:]])
      source = {"workdir": str(options.workdir), "step": run.step, "seed": seed}
      record = {**source, "command": command, **matches, **measured_with()}
      write_json(options.folder / f"{name}.json", record)
      text = f"{table(matches)}\n\n{remarks(record)}"
      write_whole(options.folder / f"{name}.md", (text + "\n").encode())
      print(text, flush=True)
      shown_of = f"{run.config.system}, {name.removeprefix('identifiability-')}, step {run.step:,}"
      drawer = functools.partial(
        FIGURES["part_identity"], **arrays["part_identity"], source=shown_of
      )
      save_figures(options.folder, {name: drawer})


if __name__ == "__main__":
  main()
