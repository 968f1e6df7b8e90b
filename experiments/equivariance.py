"""How the poses of a trained model follow when its input moves: numbers and one figure.

    python -m experiments.equivariance runs/digits results/digits

Writes `equivariance-<workdir>.md`, `.json` and `.png` into the folder, of a run with several seeds
one of each a seed. What is measured, and what it does and does not mean, is said in
`scae_jax/evaluation/equivariance.py`.
"""

import functools
from typing import Any

import numpy as np

from experiments.one_run import make_parser, open_on_images, stem_of
from scae_jax.evaluation.equivariance import SIZES, measure_equivariance
from scae_jax.evaluation.files import write_json, write_whole
from scae_jax.evaluation.pictures import save_figures
from scae_jax.evaluation.provenance import hardware_and_versions, measured_with
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
  columns = ["", "examples", *(f"{kind}: {name}" for kind in kinds for name in names)]
  rows = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
  for family in SIZES:
    for entry in results[family]:
      cells = [f"{family} {entry['size']:g}", f"{entry['examples']:,}"]
      for kind in kinds:
        error, unmoved = entry[kind]["pose_error"], entry[kind]["pose_unmoved"]
        ratio = error / unmoved if unmoved else None
        cells += ["-" if value is None else f"{value:.2f}" for value in (error, unmoved, ratio)]
        cells.append(f"{entry[kind]['presence_change']:.3f}")
      rows.append(f"| {' | '.join(cells)} |")
  return "\n".join(rows)


def main() -> None:
  """Measures, writes, prints and draws."""
  parser = make_parser(__doc__)
  parser.add_argument("--split", default=None, help="if not the held-out one")
  parser.add_argument("--max_examples", type=int, default=1000, help="0 is all")
  options = parser.parse_args()
  with exit_with_message(), explained():
    images = open_on_images(options, "no image to move", options.max_examples)
    run, scored = images.run, images.scored_on
    for seed, variables in run.variables.items():
      results = measure_equivariance(
        run.system,
        variables,
        images.examples["image"],
        canvas=images.canvas,
        batch_size=images.batch_size,
      )
      name = stem_of("equivariance", run, options.workdir, seed)
      source = {"workdir": str(options.workdir), "step": run.step, "seed": seed}
      measured = measured_with()
      write_json(
        options.folder / f"{name}.json", {**source, "scored_on": scored, **results, **measured}
      )
      title = f"Poses of moved images: {scored['dataset']} {scored['split']}, step {run.step:,}"
      text = f"{title}\n\n{table(results)}\n\n{REMARK}\n\n{hardware_and_versions(measured)}\n"
      write_whole(options.folder / f"{name}.md", text.encode())
      print(text, flush=True)
      between = {kind: one["presence_between_examples"] for kind, one in results["present"].items()}
      arguments = (curves(results), between, title)
      save_figures(options.folder, {name: functools.partial(FIGURES["equivariance"], *arguments)})


if __name__ == "__main__":
  main()
