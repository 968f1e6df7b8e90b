"""How the page shows runs of each system: its files, its modules, and the arrays that it carries.

The JavaScript of a system, `system.js` in imports, computes what Python functions of the same
names compute.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from scae_jax.config import value_at
from scae_jax.library.model import Model
from scae_jax.models.system import Encoding

# JavaScript that all pages have, each after what it imports.
MATHEMATICS = ("geometry", "mixtures", "layers")
VIEW = ("weights", "pictures", "choose", "page")
NOISY = ("part_encoder", "object_decoder")  # stages that may keep their noise on in evaluation
Needs = Mapping[str, Any]  # values of config keys


@dataclasses.dataclass(frozen=True)
class Shown:
  """The page of a system."""

  title: str  # what the page is inside of
  paper: str  # the source, for the footer
  body: str  # the HTML file that shows what is found
  mathematics: tuple[str, ...]  # modules that compute, in order
  view: tuple[str, ...]  # modules that show, in order
  drawer: str  # prefix of the parameters that drawing needs
  # Of the config's model section: what drawing needs, and what encoding needs besides.
  to_draw: Callable[[Mapping[str, Any]], Needs]
  to_encode: Needs
  # Of variables and what was found, {name: [n, ...]}, which the module's `found_in` reads.
  carry: Callable[[Any, Encoding], Mapping[str, Any]]


def shown(model: Model) -> Shown:
  """How a model is shown; ValueError of one that the JavaScript does not compute."""
  name = model.settings.system
  check_system(name)
  for key, needed, given in _unmet(model, SYSTEMS[name].to_draw(model.settings.model)):
    raise ValueError(f"the page needs config.{key} to be {needed!r}; this run has {given!r}.")
  return SYSTEMS[name]


def check_system(name: str) -> None:
  """Raises ValueError of a system that has no page."""
  if name not in SYSTEMS:
    raise ValueError(f"the page shows runs of {', '.join(SYSTEMS)}; this is one of {name!r}.")


def no_encoder(model: Model) -> str:
  """Why the page of a model that is shown cannot have its encoder; "" where it can."""
  for key, needed, given in _unmet(model, shown(model).to_encode):
    return f"an encoder in JavaScript needs config.{key} to be {needed!r}, and it is {given!r}"
  return ""


def _unmet(model: Model, needs: Needs) -> Iterator[tuple[str, Any, Any]]:
  """Keys whose values are not what is needed, with both values."""
  for key, needed in needs.items():
    if (given := value_at(model.settings.config, key)) != needed:
      yield key, needed, given


def _scae_found(variables: Any, found: Encoding) -> dict[str, Any]:
  winner = np.asarray(found.details["winner"])
  n, m = np.indices(winner.shape)
  return {
    **_capsules(found),
    "winner": winner,
    "inner": found.details["object_part"][n, winner, m],
    "vote_presence": found.details["vote_presence"][n, winner, m],
    "colours": found.details["colours"],
  }


def _probabilistic_draws(model: Mapping[str, Any]) -> Needs:
  # Densities of poses that are summed out need standard deviations, which the page does not infer.
  are_summed_out = model["poses"] == "gaussian" and "off_poses" in model
  off_poses = {"model.off_poses": "broad"} if are_summed_out else {}
  return {"model.capsules": tuple(model["capsules"])[:2], **off_poses}


def _probabilistic_found(variables: Any, found: Encoding) -> dict[str, Any]:
  offsets = np.asarray(variables["params"]["generative"]["offset_1"])
  winner = np.asarray(found.details["owner_0"])
  is_won = winner < len(offsets)
  inner = (np.eye(2, 3) + offsets)[np.where(is_won, winner, 0), np.arange(winner.shape[1])]
  presence = is_won * np.asarray(found.part_presence)
  return {**_capsules(found), "winner": winner, "inner": inner, "vote_presence": presence}


def _capsules(found: Encoding) -> dict[str, Any]:
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
    to_draw=lambda _: {"model.target": "image"},
    to_encode={
      "model.compute_dtype": "float32",
      **{f"model.{stage}.noise_in_evaluation": False for stage in NOISY},
    },
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
    to_encode={},
    carry=_probabilistic_found,
  ),
  "capsnet": Shown(
    title="a CapsNet",
    paper="Sabour, Frosst and Hinton, Dynamic Routing Between Capsules, 2017, arXiv 1710.09829.",
    body="vectors.html",
    mathematics=(*MATHEMATICS, "capsnet"),
    view=(*VIEW, "vectors"),
    drawer="decoder/",
    to_draw=lambda _: {"data.overlay": False},
    to_encode={},
    carry=lambda variables, found: {"object_poses": found.object_poses},
  ),
}
