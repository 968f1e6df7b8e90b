"""One function for each figure: arrays in, a matplotlib figure out.

`FIGURES` has them all by name. Some show a model: `System.pictures` returns the arguments of each
figure that the model can fill. The report draws the others. `@typed` checks that shapes are those
of the annotations and fit each other. Pictures have values in [0, 1].
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
