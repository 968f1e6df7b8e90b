"""The page of each system: its HTML file, its JavaScript modules and the arrays that it contains.

The JavaScript of a system, `system.js` in imports, computes the same as the Python functions of the
same names.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from scae_jax.config import value_at
from scae_jax.library.model import Model
from scae_jax.models.system import Encoding

# JavaScript modules of all pages; each comes after those that it imports.
MATHEMATICS = ("geometry", "mixtures", "layers")
VIEW = ("weights", "pictures", "choose", "page")
NOISY = ("part_encoder", "object_decoder")  # stages that may have noise in evaluation
Needs = Mapping[str, Any]  # values of config keys


@dataclasses.dataclass(frozen=True)
class SystemPage:
  """The page of a system."""

  title: str  # the kind of model, after "Inside"
  paper: str  # the source, for the footer
  body: str  # the HTML file that shows the encoding
  mathematics: tuple[str, ...]  # JavaScript modules that compute, in order
  view: tuple[str, ...]  # JavaScript modules that display, in order
  drawer: str  # prefix of the parameters that drawing needs
  # `model section -> {config key: value}`: the values without which JavaScript cannot draw.
  to_draw: Callable[[Mapping[str, Any]], Needs]
  to_encode: Needs  # further values, without which JavaScript cannot encode
  # `(variables, encoding) -> {name: [n, ...]}`: arrays that `found_in` of the JavaScript reads.
  carry: Callable[[Any, Encoding], Mapping[str, Any]]


def page_of_system(model: Model) -> SystemPage:
  """The page of a model's system; ValueError if the JavaScript does not compute this model."""
  name = model.settings.system
  check_system(name)
  for key, needed, value in _unmet(model, SYSTEMS[name].to_draw(model.settings.model)):
    raise ValueError(f"the page needs config.{key} to be {needed!r}; this run has {value!r}.")
  return SYSTEMS[name]


def check_system(name: str) -> None:
  """Raises ValueError for a system without a page."""
  if name not in SYSTEMS:
    raise ValueError(f"the page shows runs of {', '.join(SYSTEMS)}; this is one of {name!r}.")


def no_encoder(model: Model) -> str:
  """Why the page of a model cannot have the encoder in JavaScript; "" if it can."""
  for key, needed, value in _unmet(model, page_of_system(model).to_encode):
    return f"an encoder in JavaScript needs config.{key} to be {needed!r}, and it is {value!r}"
  return ""


def _unmet(model: Model, needs: Needs) -> Iterator[tuple[str, Any, Any]]:
  """Yields `(key, needed value, actual value)` for every need that the model does not meet."""
  for key, needed in needs.items():
    if (value := value_at(model.settings.config, key)) != needed:
      yield key, needed, value


def _scae_arrays(variables: Any, encoding: Encoding) -> dict[str, Any]:
  winner = np.asarray(encoding.details["winner"])
  n, m = np.indices(winner.shape)
  return {
    **_capsules(encoding),
    "winner": winner,
    "inner": encoding.details["object_part"][n, winner, m],
    "vote_presence": encoding.details["vote_presence"][n, winner, m],
    "colours": encoding.details["colours"],
  }


def _probabilistic_needs(model: Mapping[str, Any]) -> Needs:
  # If the poses of absent parts are summed out, densities need standard deviations, which the page
  # does not infer.
  are_summed_out = model["poses"] == "gaussian" and "off_poses" in model
  off_poses = {"model.off_poses": "broad"} if are_summed_out else {}
  return {"model.capsules": tuple(model["capsules"])[:2], **off_poses}


def _probabilistic_arrays(variables: Any, encoding: Encoding) -> dict[str, Any]:
  offsets = np.asarray(variables["params"]["generative"]["offset_1"])
  winner = np.asarray(encoding.details["owner_0"])
  is_won = winner < len(offsets)
  inner = (np.eye(2, 3) + offsets)[np.where(is_won, winner, 0), np.arange(winner.shape[1])]
  presence = is_won * np.asarray(encoding.part_presence)
  return {**_capsules(encoding), "winner": winner, "inner": inner, "vote_presence": presence}


def _capsules(encoding: Encoding) -> dict[str, Any]:
  names = ("part_poses", "part_presence", "object_poses", "object_presence", "posterior_mass")
  return {name: getattr(encoding, name) for name in names}


SYSTEMS = {
  "scae": SystemPage(
    title="a capsule autoencoder",
    paper="Kosiorek, Sabour, Teh and Hinton, Stacked Capsule Autoencoders, 2019, arXiv 1906.06818.",
    body="parts.html",
    mathematics=(*MATHEMATICS, "scae", "encoding"),
    view=(*VIEW, "handles", "parts"),
    drawer="part_decoder/",
    to_draw=lambda _: {"model.target": "image"},
    to_encode={
      "model.compute_dtype": "float32",
      **{f"model.{stage}.noise_in_evaluation": False for stage in NOISY},
    },
    carry=_scae_arrays,
  ),
  "probabilistic": SystemPage(
    title="probabilistic capsules",
    paper="Smith et al., Capsule Networks - A Probabilistic Perspective, 2020, arXiv 2004.03553.",
    body="parts.html",
    mathematics=(*MATHEMATICS, "probabilistic", "encoding"),
    view=(*VIEW, "handles", "parts"),
    drawer="generative/",
    to_draw=_probabilistic_needs,
    to_encode={},
    carry=_probabilistic_arrays,
  ),
  "capsnet": SystemPage(
    title="a CapsNet",
    paper="Sabour, Frosst and Hinton, Dynamic Routing Between Capsules, 2017, arXiv 1710.09829.",
    body="vectors.html",
    mathematics=(*MATHEMATICS, "capsnet"),
    view=(*VIEW, "vectors"),
    drawer="decoder/",
    to_draw=lambda _: {"data.overlay": False},
    to_encode={},
    carry=lambda variables, encoding: {"object_poses": encoding.object_poses},
  ),
}
