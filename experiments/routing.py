"""Whether a trained model routes: what is on, and whose the parts are, image by image.

    python -m experiments.routing runs/probabilistic-digits results/probabilistic

Writes `routing-<workdir>.json` and `.md` into the folder, of a run with several seeds one of each a
seed. The numbers are explained in `scae_jax/evaluation/routing_use.py`.
"""

import shlex
import sys
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from experiments.one_run import make_parser, open_on_images, stem_of
from scae_jax.data.batches import evaluation_batch
from scae_jax.evaluation.examples import full_batches
from scae_jax.evaluation.files import write_json, write_whole
from scae_jax.evaluation.provenance import hardware_and_versions, measured_with
from scae_jax.evaluation.routing_use import measure_routing
from scae_jax.models.generative_capsules import GenerativeCapsules
from scae_jax.models.probabilistic_capsules import ProbabilisticCapsules
from scae_jax.models.system import System
from scae_jax.training.errors import RunError, exit_with_message, explained
from scae_jax.typing import Array


def infer(
  system: System, variables: Any, split: Mapping[str, np.ndarray], *, canvas: int, batch_size: int
) -> dict[str, np.ndarray]:
  """The arguments of `measure_routing` for all examples of a split.

  Raises:
    RunError: the system has no parts that choose among objects.
  """
  if system.poses is None:
    raise RunError("this system has no poses; name a run whose parts choose among objects.")
  poses_of = system.poses

  def forward(variables: Any, split: Mapping[str, Array], rows: Array) -> dict[str, Array]:
    batch = evaluation_batch(split, rows, canvas=canvas)
    drawn = system.pictures(variables, batch).get("reconstructions", {})
    found = poses_of(system.module.apply(variables, batch, train=False))
    if not {"parts", "objects"} <= set(found) or "part_winner" not in drawn:
      raise RunError("this system has no parts that choose among objects.")
    object_poses, object_presence = found["objects"]
    return {
      "part_presence": found["parts"][1],
      "part_winner": drawn["part_winner"],
      "object_presence": object_presence,
      "object_poses": object_poses,
    }

  forward = jax.jit(forward)
  arrays = {name: jnp.asarray(values) for name, values in split.items()}
  count = len(split["label"])
  batches = [
    jax.device_get(forward(variables, arrays, rows)) for rows in full_batches(count, batch_size)
  ]
  return {name: np.concatenate([one[name] for one in batches])[:count] for name in batches[0]}


def affinities(module: nn.Module, variables: Any) -> list[float] | None:
  """Of every part the greatest affinity of an object, where the dummy's is `dummy_affinity`; None
  of a model without."""
  if not isinstance(module, ProbabilisticCapsules):
    return None

  def greatest(module: ProbabilisticCapsules) -> Array:
    generative: GenerativeCapsules = module.generative
    return jnp.exp(jnp.max(generative.relations()[0].affinity_logits, axis=0))

  return np.asarray(nn.apply(greatest, module)(variables)).tolist()


def table(found: Mapping[str, Any]) -> str:
  """Markdown: parts, then objects that win any."""
  with_affinity = found["affinities"] is not None
  lines = [
    f"{found['switched']['parts']} of {len(found['parts'])} parts and"
    f" {found['switched']['objects']} of {len(found['objects'])} objects are on in some images and"
    f" off in others; {found['routed']} parts change owners.",
    "",
    "| part | on, % | commonest owner | another owner, % |"
    + (" affinity |" if with_affinity else ""),
    "|---" * (5 if with_affinity else 4) + "|",
  ]
  for number, one in enumerate(found["parts"]):
    owner = "none" if one["commonest"] is None else one["commonest"]
    others = "-" if one["others"] is None else f"{100 * one['others']:.1f}"
    line = f"| {number} | {100 * one['on']:.1f} | {owner} | {others} |"
    lines.append(line + (f" {found['affinities'][number]:.3g} |" if with_affinity else ""))
  lines += [
    "",
    "| object | on, % | presence (sd) | sd of the pose | parts won |",
    "|---|---|---|---|---|",
  ]
  for number, one in enumerate(found["objects"]):
    if one["wins"] >= 0.01 or one["on"]:
      lines.append(
        f"| {number} | {100 * one['on']:.1f} | {one['presence']:.3f}"
        f" ({one['presence_deviation']:.3f}) | {one['pose_deviation']:.3f} | {one['wins']:.2f} |"
      )
  return "\n".join(lines)


def main() -> None:
  """Measures, writes and prints."""
  parser = make_parser(__doc__)
  parser.add_argument("--split", default=None, help="if not the held-out one")
  parser.add_argument("--max_examples", type=int, default=1000, help="0 is all")
  options = parser.parse_args()
  with exit_with_message(), explained():
    images = open_on_images(options, "no parts to route", options.max_examples)
    run, on = images.run, images.scored_on
    sizes = {"canvas": images.canvas, "batch_size": images.batch_size}
    for seed, variables in run.variables.items():
      found = measure_routing(**infer(run.system, variables, images.examples, **sizes))
      record = {
        "workdir": str(options.workdir),
        "step": run.step,
        "seed": seed,
        "scored_on": on,
        "command": shlex.join(["python", "-m", "experiments.routing", *sys.argv[1:]]),
        **found,
        "affinities": affinities(run.system.module, variables),
        **measured_with(),
      }
      stem = stem_of("routing", run, options.workdir, seed)
      write_json(options.folder / f"{stem}.json", record)
      text = "\n\n".join(
        [
          f"Routing: {on['dataset']} {on['split']}, {on['examples']:,} images, run"
          f" {options.workdir}, step {run.step:,}, seed {seed}",
          table(record),
          "On: a presence above 0.5. Owners: of the images in which the part is on. Objects that"
          " are on in no image and win less than a hundredth of a part are left out.",
          f"Command: `{record['command']}`.",
          hardware_and_versions(record),
          f"Measured {record['date'][:10]}.",
        ]
      )
      write_whole(options.folder / f"{stem}.md", (text + "\n").encode())
      print(text, flush=True)


if __name__ == "__main__":
  main()
