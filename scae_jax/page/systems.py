"""How the page shows runs of each system: its files, its modules, and the arrays that it carries.

The JavaScript of a system, `system.js` in imports, computes what Python functions of the same
names compute.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from scae_jax.library.model import Model
from scae_jax.models.system import Found

# JavaScript that all pages have, each after what it imports.
MATHEMATICS = ("geometry", "mixtures", "layers")
VIEW = ("weights", "pictures", "choose", "page")
NOISY = ("part_encoder", "object_decoder")  # stages that may keep their noise on in evaluation
Needs = Mapping[str, tuple[Any, Any]]


@dataclasses.dataclass(frozen=True)
class Shown:
  """The page of a system."""

  title: str  # what the page is inside of
  paper: str  # the source, for the footer
  body: str  # the HTML file that shows what is found
  mathematics: tuple[str, ...]  # modules that compute, in order
  view: tuple[str, ...]  # modules that show, in order
  drawer: str  # prefix of the parameters that drawing needs
  # Of a config, {key: (needed, given)}: what drawing needs, and what encoding needs besides.
  to_draw: Callable[[Mapping[str, Any]], Needs]
  to_encode: Callable[[Mapping[str, Any]], Needs]
  # Of variables and what was found, {name: [n, ...]}, which the module's `found_in` reads.
  carry: Callable[[Any, Found], Mapping[str, Any]]


def shown(model: Model) -> Shown:
  """How a model is shown; ValueError of one that the JavaScript does not compute."""
  name = model.settings.system
  if name not in SYSTEMS:
    raise ValueError(f"the page shows runs of {', '.join(SYSTEMS)}; this is one of {name!r}.")
  for key, (needed, given) in SYSTEMS[name].to_draw(model.settings.config.to_dict()).items():
    if given != needed:
      raise ValueError(f"the page needs config.{key} to be {needed!r}; this run has {given!r}.")
  return SYSTEMS[name]


def no_encoder(model: Model) -> str:
  """Why the page of a model that is shown cannot have its encoder; "" where it can."""
  needs = shown(model).to_encode(model.settings.config.to_dict())
  for key, (needed, given) in needs.items():
    if given != needed:
      return f"an encoder in JavaScript needs config.{key} to be {needed!r}, and it is {given!r}"
  return ""


def _scae_encodes(config: Mapping[str, Any]) -> Needs:
  model = config["model"]
  noise = {
    f"model.{stage}.noise_in_evaluation": (False, model[stage]["noise_in_evaluation"])
    for stage in NOISY
  }
  return {"model.compute_dtype": ("float32", model["compute_dtype"]), **noise}


def _scae_found(variables: Any, found: Found) -> dict[str, Any]:
  winner = np.asarray(found.details["winner"])
  n, m = np.indices(winner.shape)
  return {
    **_capsules(found),
    "winner": winner,
    "inner": found.details["object_part"][n, winner, m],
    "vote_presence": found.details["vote_presence"][n, winner, m],
    "colours": found.details["colours"],
  }


def _probabilistic_draws(config: Mapping[str, Any]) -> Needs:
  model = config["model"]
  layers = tuple(model["capsules"])
  # Densities of poses that are summed out need standard deviations, which the page does not infer.
  off_poses = "broad" if model["poses"] == "gaussian" else model["off_poses"]
  return {
    "model.capsules": (layers[:2], layers),
    "model.off_poses": (off_poses, model["off_poses"]),
  }


def _probabilistic_found(variables: Any, found: Found) -> dict[str, Any]:
  offsets = np.asarray(variables["params"]["generative"]["offset_1"])
  winner = np.asarray(found.details["owner_0"])
  is_won = winner < len(offsets)
  inner = (np.eye(2, 3) + offsets)[np.where(is_won, winner, 0), np.arange(winner.shape[1])]
  presence = is_won * np.asarray(found.part_presence)
  return {**_capsules(found), "winner": winner, "inner": inner, "vote_presence": presence}


def _capsules(found: Found) -> dict[str, Any]:
  names = ("part_poses", "part_presence", "object_poses", "object_presence", "posterior_mass")
  return {name: getattr(found, name) for name in names}


SYSTEMS = {
  "scae": Shown(
    title="a capsule autoencoder",
    paper="Kosiorek, Sabour, Teh and Hinton, Stacked Capsule Autoencoders, 2019, arXiv 1906.06818.",
    body="parts.html",
    mathematics=(*MATHEMATICS, "scae", "found"),
    view=(*VIEW, "handles", "parts"),
    drawer="part_decoder/",
    to_draw=lambda config: {"model.target": ("image", config["model"]["target"])},
    to_encode=_scae_encodes,
    carry=_scae_found,
  ),
  "probabilistic": Shown(
    title="probabilistic capsules",
    paper="Smith et al., Capsule Networks - A Probabilistic Perspective, 2020, arXiv 2004.03553.",
    body="parts.html",
    mathematics=(*MATHEMATICS, "probabilistic", "found"),
    view=(*VIEW, "handles", "parts"),
    drawer="generative/",
    to_draw=_probabilistic_draws,
    to_encode=lambda config: {},
    carry=_probabilistic_found,
  ),
  "capsnet": Shown(
    title="a CapsNet",
    paper="Sabour, Frosst and Hinton, Dynamic Routing Between Capsules, 2017, arXiv 1710.09829.",
    body="vectors.html",
    mathematics=(*MATHEMATICS, "capsnet"),
    view=(*VIEW, "vectors"),
    drawer="decoder/",
    to_draw=lambda config: {"data.overlay": (False, config["data"]["overlay"])},
    to_encode=lambda config: {},
    carry=lambda variables, found: {"object_poses": found.object_poses},
  ),
}
