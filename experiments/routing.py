"""Whether a trained model routes: which capsules are on, and which object wins each part, by image.

    python -m experiments.routing runs/probabilistic-digits results/probabilistic

Writes `routing-<workdir>.json` and `.md` into the folder, for each seed if a run has several.
`experiments/routing_use.py` explains the numbers.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from experiments.findings import Findings, ImageRun, measure_images
from experiments.routing_use import measure_routing
from scae_jax.data.batches import evaluation_batch
from scae_jax.errors import RunError
from scae_jax.evaluation.collect import make_collector
from scae_jax.evaluation.comparison import markdown
from scae_jax.models.probabilistic.autoencoder import ProbabilisticCapsules
from scae_jax.models.probabilistic.generative_model import GenerativeCapsules
from scae_jax.models.system import System
from scae_jax.typing import Array, Batch


def infer(
  system: System, variables: Any, split: Mapping[str, np.ndarray], *, canvas: int, batch_size: int
) -> dict[str, Any]:
  """The arguments of `measure_routing`; RunError if no parts choose among objects."""
  if system.poses is None:
    raise RunError("this system has no poses; name a run whose parts choose among objects.")
  poses_of = system.poses

  def read(variables: Any, batch: Batch) -> dict[str, Array]:
    reconstructions = system.pictures(variables, batch).get("reconstructions", {})
    poses = poses_of(system.module.apply(variables, batch, train=False))
    if not {"parts", "objects"} <= set(poses) or "part_winner" not in reconstructions:
      raise RunError("this system has no parts that choose among objects.")
    return {
      "part_presence": poses["parts"][1],
      "part_winner": reconstructions["part_winner"],
      "object_presence": poses["objects"][1],
      "object_poses": poses["objects"][0],
    }

  make_batch = functools.partial(evaluation_batch, canvas=canvas)
  return make_collector(read, make_batch, batch_size)(variables, split)


def affinities(module: nn.Module, variables: Any) -> list[float] | None:
  """Each part's greatest affinity to an object; None for a model without affinities.

  The affinity of the dummy object is `dummy_affinity`.
  """
  if not isinstance(module, ProbabilisticCapsules):
    return None

  def greatest(module: ProbabilisticCapsules) -> Array:
    generative: GenerativeCapsules = module.generative
    return jnp.exp(jnp.max(generative.relations()[0].affinity_logits, axis=0))

  return np.asarray(nn.apply(greatest, module)(variables)).tolist()


def table(routing: Mapping[str, Any]) -> str:
  """Markdown: a table of parts, then one of the objects that win any."""
  affinities = routing["affinities"]
  parts = [["part", "on, %", "commonest owner", "another owner, %"]]
  for number, part in enumerate(routing["parts"]):
    owner = "none" if part["commonest"] is None else f"{part['commonest']}"
    others = "-" if part["others"] is None else f"{100 * part['others']:.1f}"
    parts.append([f"{number}", f"{100 * part['on']:.1f}", owner, others])
  if affinities is not None:
    last = ["affinity", *(f"{affinity:.3g}" for affinity in affinities)]
    parts = [[*cells, cell] for cells, cell in zip(parts, last, strict=True)]
  objects = [["object", "on, %", "presence (sd)", "sd of the pose", "parts won"]]
  for number, capsule in enumerate(routing["objects"]):
    if capsule["wins"] >= 0.01 or capsule["on"]:
      presence = f"{capsule['presence']:.3f} ({capsule['presence_deviation']:.3f})"
      cells = [f"{100 * capsule['on']:.1f}", presence, f"{capsule['pose_deviation']:.3f}"]
      objects.append([f"{number}", *cells, f"{capsule['wins']:.2f}"])
  return f"{markdown(parts)}\n\n{markdown(objects)}"


def measure(images: ImageRun, variables: Any, head: dict[str, Any]) -> Findings:
  """Measures one seed."""
  run, scored_on = images.run, images.scored_on
  routing = measure_routing(**infer(run.system, variables, images.examples, **images.sizes))
  routing |= {"affinities": affinities(run.system.module, variables)}
  paragraphs = [
    f"Routing: {scored_on['dataset']} {scored_on['split']}, {scored_on['examples']:,} images, run"
    f" {head['workdir']}, step {run.step:,}, seed {head['seed']}",
    f"{routing['switched']['parts']} of {len(routing['parts'])} parts and"
    f" {routing['switched']['objects']} of {len(routing['objects'])} objects are on in some images"
    f" and off in others; {routing['routed']} parts change owners.",
    table(routing),
    "On: a presence above 0.5. Owners: of the images in which the part is on. Objects that"
    " are on in no image and win less than a hundredth of a part are left out.",
  ]
  return Findings({"scored_on": scored_on, **routing}, paragraphs)


def main() -> None:
  """Measures, writes and prints."""
  measure_images("routing", __doc__, measure, max_examples=1000)


if __name__ == "__main__":
  main()
