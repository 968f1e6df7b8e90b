"""Whether a trained model routes: what is on, and whose the parts are, image by image.

    python -m experiments.routing runs/probabilistic-digits results/probabilistic

Writes `routing-<workdir>.json` and `.md` into the folder, of a run with several seeds one of each a
seed. The numbers are explained in `experiments/routing_use.py`.
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
  """The arguments of `measure_routing`; RunError where no parts choose among objects."""
  if system.poses is None:
    raise RunError("this system has no poses; name a run whose parts choose among objects.")
  poses_of = system.poses

  def read(variables: Any, batch: Batch) -> dict[str, Array]:
    drawn = system.pictures(variables, batch).get("reconstructions", {})
    found = poses_of(system.module.apply(variables, batch, train=False))
    if not {"parts", "objects"} <= set(found) or "part_winner" not in drawn:
      raise RunError("this system has no parts that choose among objects.")
    return {
      "part_presence": found["parts"][1],
      "part_winner": drawn["part_winner"],
      "object_presence": found["objects"][1],
      "object_poses": found["objects"][0],
    }

  make_batch = functools.partial(evaluation_batch, canvas=canvas)
  return make_collector(read, make_batch, batch_size)(variables, split)


def affinities(module: nn.Module, variables: Any) -> list[float] | None:
  """Each part's greatest affinity to an object; the dummy's is `dummy_affinity`. None for a model
  without affinities."""
  if not isinstance(module, ProbabilisticCapsules):
    return None

  def greatest(module: ProbabilisticCapsules) -> Array:
    generative: GenerativeCapsules = module.generative
    return jnp.exp(jnp.max(generative.relations()[0].affinity_logits, axis=0))

  return np.asarray(nn.apply(greatest, module)(variables)).tolist()


def table(found: Mapping[str, Any]) -> str:
  """Markdown: parts, then objects that win any."""
  affinities = found["affinities"]
  parts = [["part", "on, %", "commonest owner", "another owner, %"]]
  for number, one in enumerate(found["parts"]):
    owner = "none" if one["commonest"] is None else f"{one['commonest']}"
    others = "-" if one["others"] is None else f"{100 * one['others']:.1f}"
    parts.append([f"{number}", f"{100 * one['on']:.1f}", owner, others])
  if affinities is not None:
    last = ["affinity", *(f"{affinity:.3g}" for affinity in affinities)]
    parts = [[*cells, cell] for cells, cell in zip(parts, last, strict=True)]
  objects = [["object", "on, %", "presence (sd)", "sd of the pose", "parts won"]]
  for number, one in enumerate(found["objects"]):
    if one["wins"] >= 0.01 or one["on"]:
      presence = f"{one['presence']:.3f} ({one['presence_deviation']:.3f})"
      cells = [f"{100 * one['on']:.1f}", presence, f"{one['pose_deviation']:.3f}"]
      objects.append([f"{number}", *cells, f"{one['wins']:.2f}"])
  return f"{markdown(parts)}\n\n{markdown(objects)}"


def measure(images: ImageRun, variables: Any, head: dict[str, Any]) -> Findings:
  """Measures one seed."""
  run, on = images.run, images.scored_on
  found = measure_routing(**infer(run.system, variables, images.examples, **images.sizes))
  found |= {"affinities": affinities(run.system.module, variables)}
  paragraphs = [
    f"Routing: {on['dataset']} {on['split']}, {on['examples']:,} images, run"
    f" {head['workdir']}, step {run.step:,}, seed {head['seed']}",
    f"{found['switched']['parts']} of {len(found['parts'])} parts and"
    f" {found['switched']['objects']} of {len(found['objects'])} objects are on in some images"
    f" and off in others; {found['routed']} parts change owners.",
    table(found),
    "On: a presence above 0.5. Owners: of the images in which the part is on. Objects that"
    " are on in no image and win less than a hundredth of a part are left out.",
  ]
  return Findings({"scored_on": on, **found}, paragraphs)


def main() -> None:
  """Measures, writes and prints."""
  measure_images("routing", __doc__, measure, max_examples=1000)


if __name__ == "__main__":
  main()
