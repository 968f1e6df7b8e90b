"""How the poses of a trained model follow motions of its input: numbers and one figure.

    python -m experiments.equivariance runs/digits results/digits

Writes `equivariance-<workdir>.md`, `.json` and `.png` into the folder, for each seed if a run has
several. `scae_jax/evaluation/equivariance.py` explains the measures and their limits.
"""

import functools
from typing import Any

from experiments.findings import Findings, ImageRun, measure_images
from scae_jax.evaluation.equivariance import (
  SIZES,
  measure_displacements,
  measure_equivariance,
)
from scae_jax.evaluation.tables import table
from scae_jax.figures import FIGURES

REMARK = (
  "Error: distance of the pose found from the ideal one, pixels. Unmoved: that of a pose that does"
  " not move. Their ratio is 0 where poses follow perfectly."
)


DISPLACED = (
  "Digit: label of the winning object, named by the images that it wins where nothing moves. Parts"
  " moved exactly: their poses alone are moved, as found in the image that is not moved."
)


def table_of(results: dict[str, Any]) -> str:
  """Markdown: a row for each motion; for each kind of capsule errors, ratio, presence change."""
  kinds = list(results["present"])
  formats = {"error, pixels": ".2f", "unmoved": ".2f", "ratio": ".2f", "presence change": ".3f"}
  columns = {"": "", "examples": ""}
  columns |= {f"{kind}: {name}": form for kind in kinds for name, form in formats.items()}
  rows = []
  for family in SIZES:
    for entry in results[family]:
      cells = [f"{family} {entry['size']:g}", entry["examples"]]
      for kind in kinds:
        error, unmoved = entry[kind]["pose_error"], entry[kind]["pose_unmoved"]
        ratio = error / unmoved if unmoved else None
        cells += [error, unmoved, ratio, entry[kind]["presence_change"]]
      rows.append(cells)
  return table(columns, rows)


def displacements_table(results: dict[str, Any]) -> str:
  """Markdown: a row for each displacement: the winning object's digit, and the parts' places."""
  columns = {"pixels": "", "image moved: digit, %": ".1f", "parts' places: error, pixels": ".1f"}
  columns |= {"examples": "", "parts moved exactly: digit, %": ".1f"}
  images = {entry["size"]: entry for entry in results["images"]}
  rows = []
  for parts in results["parts"]:
    image_cells = [None, None, None]  # of images that do not fit on the canvas any more
    if image := images.get(parts["size"]):
      image_cells = [100 * image["accuracy"], image["place_error"], image["examples"]]
    rows.append([parts["size"], *image_cells, 100 * parts["accuracy"]])
  return table(columns, rows)


def measure(images: ImageRun, variables: Any, head: dict[str, Any]) -> Findings:
  """Measures one seed."""
  run, scored_on = images.run, images.scored_on
  results = measure_equivariance(run.system, variables, images.examples["image"], **images.sizes)
  title = (
    f"Poses of moved images: {scored_on['dataset']} {scored_on['split']}, step {head['step']:,}"
  )
  draw = functools.partial(FIGURES["equivariance"], results, title)
  paragraphs = [title, table_of(results), REMARK]
  if run.system.encode_moved is not None:
    results["displacements"] = measure_displacements(
      run.system, variables, images.examples, **images.sizes
    )
    paragraphs += [displacements_table(results["displacements"]), DISPLACED]
  return Findings({"scored_on": scored_on, **results}, paragraphs, draw)


def main() -> None:
  """Measures, writes and prints."""
  measure_images("equivariance", __doc__, measure, max_examples=1000)


if __name__ == "__main__":
  main()
