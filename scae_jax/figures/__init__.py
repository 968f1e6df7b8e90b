"""One function a picture: arrays in, a matplotlib figure out.

`FIGURES` names them all. A model feeds some of them through `System.pictures`, which returns for
each figure that it can feed the arguments by name; the report feeds the others.
"""

from collections.abc import Callable

from matplotlib.figure import Figure

from scae_jax.figures.constellations import constellations
from scae_jax.figures.curves import training_curves
from scae_jax.figures.embedding import embedding
from scae_jax.figures.equivariance import equivariance
from scae_jax.figures.reconstructions import object_reconstructions, reconstructions
from scae_jax.figures.statistics import confusion, presences_by_class
from scae_jax.figures.templates import templates

FIGURES: dict[str, Callable[..., Figure]] = {
  "templates": templates,
  "reconstructions": reconstructions,
  "object_reconstructions": object_reconstructions,
  "constellations": constellations,
  "presences_by_class": presences_by_class,
  "embedding": embedding,
  "confusion": confusion,
  "training_curves": training_curves,
  "equivariance": equivariance,
}
