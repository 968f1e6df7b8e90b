"""How the poses of a trained model follow when its input moves: numbers and one figure.

    python -m experiments.equivariance runs/digits results/digits

Writes `equivariance-<workdir>.md`, `.json` and `.png` into the folder, of a run with several seeds
one of each a seed. What is measured, and what it does and does not mean, is said in
`scae_jax/evaluation/equivariance.py`.
"""

import functools
from typing import Any

import numpy as np

from experiments.findings import write_findings
from experiments.one_run import each_seed, image_parser, open_on_images
from scae_jax.evaluation.equivariance import SIZES, measure_equivariance
from scae_jax.evaluation.provenance import measured_with
from scae_jax.evaluation.table import markdown
from scae_jax.figures import FIGURES
from scae_jax.training.errors import exit_with_message, explained

REMARK = (
  "Error: distance of the pose found from the ideal one, pixels. Unmoved: that of a pose that does"
  " not move. Their ratio is 0 where poses follow perfectly."
)


def curves(results: dict[str, Any]) -> dict[str, dict[str, np.ndarray]]:
  """What was measured as arrays for the figure; families without any size are left out."""
  found = {}
  for family in SIZES:
    if entries := results[family]:
      found[family] = {"size": np.array([entry["size"] for entry in entries])}
      for kind in results["present"]:
        for name, key in (("error", "pose_error"), ("unmoved", "pose_unmoved")):
          found[family][f"{kind}/{name}"] = _column(entries, kind, key)
        found[family][f"{kind}/presence_change"] = _column(entries, kind, "presence_change")
  return found


def _column(entries: list[dict[str, Any]], kind: str, key: str) -> np.ndarray:
  return np.array([entry[kind][key] for entry in entries], float)  # None becomes NaN


def table(results: dict[str, Any]) -> str:
  """Markdown: one row a motion, for each kind its errors, their ratio and the presence change."""
  kinds = list(results["present"])
  names = ("error, pixels", "unmoved", "ratio", "presence change")
  rows = [["", "examples", *(f"{kind}: {name}" for kind in kinds for name in names)]]
  for family in SIZES:
    for entry in results[family]:
      cells = [f"{family} {entry['size']:g}", f"{entry['examples']:,}"]
      for kind in kinds:
        error, unmoved = entry[kind]["pose_error"], entry[kind]["pose_unmoved"]
        ratio = error / unmoved if unmoved else None
        cells += ["-" if value is None else f"{value:.2f}" for value in (error, unmoved, ratio)]
        cells.append(f"{entry[kind]['presence_change']:.3f}")
      rows.append(cells)
  return markdown(rows)


def main() -> None:
  """Measures, writes, prints and draws."""
  parser = image_parser(__doc__)
  parser.add_argument("--max_examples", type=int, default=1000, help="0 is all")
  options = parser.parse_args()
  with exit_with_message(), explained():
    images = open_on_images(options, "no image to move", options.max_examples)
    run, on = images.run, images.scored_on
    title = f"Poses of moved images: {on['dataset']} {on['split']}, step {run.step:,}"
    for name, variables, head in each_seed("equivariance", run, options):
      results = measure_equivariance(
        run.system, variables, images.examples["image"], **images.sizes
      )
      between = {kind: one["presence_between_examples"] for kind, one in results["present"].items()}
      draw = functools.partial(FIGURES["equivariance"], curves(results), between, title)
      record = {**head, "scored_on": on, **results, **measured_with()}
      write_findings(options.folder, name, record, [title, table(results), REMARK], draw)


if __name__ == "__main__":
  main()
