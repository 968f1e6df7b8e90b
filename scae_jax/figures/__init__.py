"""One function a picture: arrays in, a matplotlib figure out.

`FIGURES` names them all. A model feeds some of them through `System.pictures`, which returns for
each figure that it can feed the arguments by name; the report feeds the others.
"""

from collections.abc import Callable

from matplotlib.figure import Figure

from scae_jax.figures.capsule_dimensions import capsule_dimensions
from scae_jax.figures.class_reconstructions import class_reconstructions, overlaid_reconstructions
from scae_jax.figures.constellations import constellations
from scae_jax.figures.coupling import coupling
from scae_jax.figures.curves import training_curves
from scae_jax.figures.embedding import embedding
from scae_jax.figures.equivariance import equivariance
from scae_jax.figures.free_form import free_form
from scae_jax.figures.part_identity import part_identity
from scae_jax.figures.reconstructions import object_reconstructions, reconstructions
from scae_jax.figures.reliability import reliability
from scae_jax.figures.samples import object_samples, prior_samples
from scae_jax.figures.statistics import confusion, presences_by_class
from scae_jax.figures.templates import templates
from scae_jax.figures.viewpoint import viewpoint

FIGURES: dict[str, Callable[..., Figure]] = {
  "templates": templates,
  "reconstructions": reconstructions,
  "object_reconstructions": object_reconstructions,
  "prior_samples": prior_samples,
  "object_samples": object_samples,
  "part_identity": part_identity,
  "constellations": constellations,
  "class_reconstructions": class_reconstructions,
  "overlaid_reconstructions": overlaid_reconstructions,
  "capsule_dimensions": capsule_dimensions,
  "coupling": coupling,
  "presences_by_class": presences_by_class,
  "embedding": embedding,
  "confusion": confusion,
  "reliability": reliability,
  "training_curves": training_curves,
  "equivariance": equivariance,
  "free_form": free_form,
  "viewpoint": viewpoint,
}
