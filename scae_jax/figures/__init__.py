"""One function a picture: arrays in, a matplotlib figure out.

`FIGURES` names them all. A model feeds some of them through `System.pictures`, which returns for
each figure that it can feed the arguments by name; the report feeds the others. Shapes, and that
they fit each other, are in the annotations, which `@typed` checks. Pictures have values in [0, 1].
"""

from collections.abc import Callable

from matplotlib.figure import Figure

from scae_jax.figures.constellations import constellations
from scae_jax.figures.coupling import coupling
from scae_jax.figures.curves import equivariance, training_curves, viewpoint
from scae_jax.figures.mosaics import (
  capsule_dimensions,
  object_samples,
  part_identity,
  prior_samples,
)
from scae_jax.figures.reconstructions import (
  class_reconstructions,
  free_form,
  object_reconstructions,
  overlaid_reconstructions,
  reconstructions,
  templates,
)
from scae_jax.figures.statistics import confusion, embedding, presences_by_class, reliability

FIGURES: dict[str, Callable[..., Figure]] = {
  figure.__name__: figure
  for figure in (
    templates,
    reconstructions,
    object_reconstructions,
    prior_samples,
    object_samples,
    part_identity,
    constellations,
    class_reconstructions,
    overlaid_reconstructions,
    capsule_dimensions,
    coupling,
    presences_by_class,
    embedding,
    confusion,
    reliability,
    training_curves,
    equivariance,
    free_form,
    viewpoint,
  )
}
