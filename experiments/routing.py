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
from scae_jax.evaluation.encode import encode_dataset
from scae_jax.evaluation.tables import table
from scae_jax.models.probabilistic.autoencoder import ProbabilisticCapsules
from scae_jax.models.probabilistic.generative_model import GenerativeCapsules
from scae_jax.models.system import System
from scae_jax.typing import Array


def infer(
  system: System, variables: Any, split: Mapping[str, np.ndarray], *, canvas: int, batch_size: int
) -> dict[str, Any]:
  """The arguments of `measure_routing`; RunError if no parts choose among objects."""
  make_batch = functools.partial(evaluation_batch, canvas=canvas)
  encoding = encode_dataset(system, variables, split, make_batch, batch_size=batch_size)
  names = ("part_presence", "part_winner", "object_presence", "object_poses")
  arrays = {name: getattr(encoding, name) for name in names}
  if any(array is None for array in arrays.values()):
    raise RunError("this system has no parts that choose among objects; name a run of one.")
  return arrays


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


def tables(routing: Mapping[str, Any]) -> str:
  """Markdown: a table of parts, then one of the objects that win any."""
  affinities = routing["affinities"]
  columns = {"part": "", "on, %": ".1f", "commonest owner": "", "another owner, %": ".1f"}
  parts = []
  for number, part in enumerate(routing["parts"]):
    owner = "none" if part["commonest"] is None else part["commonest"]
    others = "-" if part["others"] is None else 100 * part["others"]
    parts.append([number, 100 * part["on"], owner, others])
  if affinities is not None:
    columns["affinity"] = ".3g"
    parts = [[*cells, affinity] for cells, affinity in zip(parts, affinities, strict=True)]
  object_columns = {
    "object": "",
    "on, %": ".1f",
    "presence (sd)": "",
    "sd of the pose": ".3f",
    "parts won": ".2f",
  }
  objects = []
  for number, capsule in enumerate(routing["objects"]):
    if capsule["wins"] >= 0.01 or capsule["on"]:
      presence = f"{capsule['presence']:.3f} ({capsule['presence_deviation']:.3f})"
      on = 100 * capsule["on"]
      objects.append([number, on, presence, capsule["pose_deviation"], capsule["wins"]])
  return f"{table(columns, parts)}\n\n{table(object_columns, objects)}"


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
    tables(routing),
    "On: a presence above 0.5. Owners: of the images in which the part is on. Objects that"
    " are on in no image and win less than a hundredth of a part are left out.",
  ]
  return Findings({"scored_on": scored_on, **routing}, paragraphs)


def main() -> None:
  """Measures, writes and prints."""
  measure_images("routing", __doc__, measure, max_examples=1000)


if __name__ == "__main__":
  main()
