"""One function a picture: arrays in, a matplotlib figure out.

`FIGURES` names them all. A model feeds some of them through `System.pictures`, which returns for
each figure that it can feed the arguments by name; the report feeds the others. Shapes, and that
they fit each other, are in the annotations, which `@typed` checks. Pictures have values in [0, 1].
"""

from collections.abc import Callable

from matplotlib.figure import Figure

from scae_jax.figures import constellations, coupling, curves, mosaics, reconstructions, statistics

FIGURES: dict[str, Callable[..., Figure]] = {
  figure.__name__: figure
  for figure in (
    reconstructions.templates,
    reconstructions.reconstructions,
    reconstructions.object_reconstructions,
    mosaics.prior_samples,
    mosaics.object_samples,
    mosaics.part_identity,
    constellations.constellations,
    reconstructions.class_reconstructions,
    reconstructions.overlaid_reconstructions,
    mosaics.capsule_dimensions,
    coupling.coupling,
    statistics.presences_by_class,
    statistics.embedding,
    statistics.confusion,
    statistics.reliability,
    curves.training_curves,
    curves.equivariance,
    reconstructions.free_form,
    curves.viewpoint,
  )
}
