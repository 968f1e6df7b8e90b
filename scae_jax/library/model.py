"""A trained model, applied to a user's own examples: encode, draw, predict, export."""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from scae_jax.config import Settings
from scae_jax.evaluation.clusters import Clusters
from scae_jax.evaluation.encode import encode_batch, in_batches
from scae_jax.evaluation.free_form import make_inference
from scae_jax.files import given_path
from scae_jax.library.export import export_functions
from scae_jax.library.inputs import ImageInput, PointInput, as_array
from scae_jax.models.system import Encoding, ImageSpec, Numbers, Spec, System
from scae_jax.precision import single_precision
from scae_jax.training.build import make_system
from scae_jax.training.hosts import check_not_forked
from scae_jax.typing import Array, Batch

REFINEMENT_RATE = 0.01  # Adam's learning rate at first; it falls to 0 along a cosine


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
  """A trained model, as `scae_jax.load` opens it.

  Examples go through the model in batches of one size, and the last one is padded, so one compiled
  program serves any number of examples.

  Attributes:
    settings: settings of the run that trained it.
    spec: canvas, channels and classes of its images, or the numbers of its points.
    class_names: name of each label; () for a model of points.
    clusters: k-means clusters by name of the features, the most accurate on the training images
      first; {} if `predict` needs none.
    step: training step of the parameters.
    seed: seed of the training.
    batch_size: number of examples in a pass through the model.
    system: the module and its functions.
    variables: parameters of the module, `{"params": ...}`.
    inputs: checks examples and makes batches of them.
  """

  settings: Settings = dataclasses.field(repr=False)
  spec: Spec
  class_names: tuple[str, ...]
  clusters: Mapping[str, Clusters] = dataclasses.field(repr=False)
  step: int
  seed: int
  batch_size: int
  system: System = dataclasses.field(repr=False)
  variables: Any = dataclasses.field(repr=False)
  inputs: ImageInput | PointInput = dataclasses.field(repr=False)
  _programs: dict[str, Callable[..., Any]] = dataclasses.field(
    default_factory=dict, init=False, repr=False
  )

  def __reduce__(self) -> tuple[Any, ...]:
    """For `pickle` and `copy`: all fields but the system, which `rebuilt` builds anew."""
    fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.init}
    del fields["system"]
    return rebuilt, ({**fields, "variables": jax.device_get(self.variables)},)

  @single_precision
  def encode(
    self,
    examples: Numbers | Sequence[Numbers],
    *,
    resize: bool = False,
    presence: Numbers | None = None,
    refine_steps: int = 0,
  ) -> Encoding:
    """Encodes images or scenes of points: capsules, scores and features that the model infers.

    Args:
      examples: images, uint8 or float in [0, 1], [n, h, w] or [n, h, w, c]; smaller ones are
        centred on the canvas, on black. With `data.ink` they are photographs, which become ink
        here. For a model of points, coordinates [n, p, 2].
      resize: whether to scale images of another size, or a list of images of several sizes, to that
        of the training images: as `data.resize` says if it is set, otherwise by stretching.
      presence: 1 or 0 for each point, [n, p]; None if all are present.
      refine_steps: steps of free-form inference, which optimises each example's posterior for its
        lower bound (`evaluation.free_form`); only for systems with posteriors.

    Returns:
      NumPy arrays with one entry for each example.

    Raises:
      ValueError: the model does not take these examples, or the system has no posteriors.
    """
    check_not_forked()
    point_presence = None if presence is None else as_array(presence)
    arrays = self.inputs.check(examples, point_presence, resize=resize)
    if not isinstance(refine_steps, int | np.integer) or refine_steps < 0:
      raise ValueError(f"refine_steps must be a whole number, 0 or more; it is {refine_steps}.")
    refine = self._refined(refine_steps) if refine_steps else None
    blank = self.spec.blank_batch(self.batch_size)  # labels, which are not used

    def run(arrays: dict[str, np.ndarray], numbers: np.ndarray) -> Encoding:
      batch = {**blank, **self.inputs.batch(arrays, numbers)}
      if refine is not None:
        return refine(self.variables, batch, numbers)
      return encode_batch(self.system, self.variables, batch)

    encoding = self._in_batches(run, arrays)
    # Without the absent points with which `check` has filled up the scenes.
    by_point = {"groups": encoding.groups, "point_winner": encoding.point_winner}
    return encoding.replace(
      **{
        name: array[:, : np.shape(examples)[1]]
        for name, array in by_point.items()
        if array is not None
      }
    )

  @single_precision
  def draw(self, encoding: Encoding, by: str = "", only: int | None = None) -> np.ndarray:
    """Draws images from an encoding or a changed copy of it, `encoding.replace(object_poses=...)`.

    Args:
      encoding: from `encode`. Drawn by objects, each part stands at the pose that its
        object predicts. Its object, its appearance and its pose relative to the object stay those
        of the encoding.
      by: `objects` or `parts`: the capsules whose poses and presences are drawn; "" for the first
        of `system.draws`.
      only: number of the one object or part to draw; None for all.

    Returns:
      Images [n, canvas, canvas, c] in [0, 1].

    Raises:
      ValueError: the model draws no images, or not by these capsules; there is no capsule of this
        number; or an array of the encoding has another shape or length or is not finite.
    """
    check_not_forked()
    draws = self.system.draws
    if not draws:
      raise ValueError(f"the system {self.settings.system!r} draws no images.")
    by = by or next(iter(draws))
    if by not in draws:
      raise ValueError(f"by must be one of {', '.join(draws)}; it is {by!r}.")
    encoding = self._checked(encoding)
    presence = encoding.object_presence if by == "objects" else encoding.part_presence
    count = 0 if presence is None else np.shape(presence)[1]
    if only is not None and only not in range(count):
      raise ValueError(f"only must be from 0 to {count - 1}, one of the {by}; it is {only}.")
    number = jnp.int32(-1 if only is None else only)
    assert isinstance(self.spec, ImageSpec)  # only models of images draw
    canvas = self.spec.canvas

    def draw_batch(variables: Any, encoding: Encoding, number: Array) -> Array:
      return draws[by](variables, encoding, number, canvas)

    program = self._compiled(f"draw by {by}", draw_batch)

    def run(encoding: Encoding, numbers: np.ndarray) -> Array:
      return program(self.variables, encoding[numbers], number)

    return self._in_batches(run, encoding)

  def predict(
    self,
    examples: Numbers | Sequence[Numbers],
    *,
    by: str = "",
    resize: bool = False,
    presence: Numbers | None = None,
  ) -> np.ndarray:
    """Predicts labels, int32 [n], which are indices of `class_names`.

    A system that is trained with labels predicts them directly; for two overlaid images two labels,
    [n, 2]. A system of points predicts the group of each point, [n, p]. Any other system uses the
    k-means clusters of its training images' `Encoding.features`: clusters and labels are matched
    one to one so that most examples agree, and the accuracy is LIN-MATCH.

    Args:
      examples: as in `encode`.
      by: name of the features whose clusters are used; "" for the first of `clusters`, which are
        the most accurate on the training images.
      resize: as in `encode`.
      presence: as in `encode`.

    Raises:
      ValueError: as in `encode`, or there are no such clusters.
    """
    if by and by not in self.clusters:
      raise ValueError(f"by must be one of {list(self.clusters)}; it is {by!r}.")
    encoding = self.encode(examples, resize=resize, presence=presence)
    if encoding.groups is not None:
      return np.asarray(encoding.groups)
    if encoding.scores is not None:
      count = self.spec.num_labels if isinstance(self.spec, ImageSpec) else 1
      ranked = np.argsort(-np.asarray(encoding.scores), axis=1, kind="stable").astype(np.int32)
      return ranked[:, 0] if count == 1 else ranked[:, :count]
    if not self.clusters:
      raise ValueError("this model has no clusters yet; evaluate its run with evaluate.py.")
    by = by or next(iter(self.clusters))
    return self.clusters[by].predict(np.asarray(encoding.features[by]))

  @single_precision
  def export(self, folder: str | os.PathLike[str]) -> None:
    """Writes `encode` and `draw` as StableHLO, which JAX alone runs; see `library.export`."""
    check_not_forked()
    export_functions(given_path(folder), self)

  @functools.cached_property
  def _encoding_shapes(self) -> Encoding:
    """Shapes of the encoding of a batch."""
    return self.system.encoding_shapes(self.variables, self.spec, self.batch_size)

  def _checked(self, encoding: Encoding) -> Encoding:
    """The encoding as NumPy arrays; ValueError unless its fields are those of `encode`."""
    paths, expected = zip(*jax.tree.leaves_with_path(self._encoding_shapes), strict=True)
    leaves = dict(jax.tree.leaves_with_path(encoding, is_leaf=lambda x: isinstance(x, list)))
    if set(leaves) != set(paths):
      raise ValueError(
        "the encoding is not of this model: its fields are others than those of `encode`."
      )
    arrays = []
    for path, shape in zip(paths, expected, strict=True):
      name, array = jax.tree_util.keystr(path, simple=True, separator="."), as_array(leaves[path])
      if jnp.issubdtype(shape.dtype, jnp.floating):  # the user may have given whole numbers
        array = array.astype(np.float32)
      if array.ndim == 0 or array.shape[1:] != shape.shape[1:]:
        sizes = ", ".join(["n", *map(str, shape.shape[1:])])
        raise ValueError(f"{name} must have shape [{sizes}]; it has {list(array.shape)}.")
      if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite.")
      arrays.append(array)
    return jax.tree.unflatten(jax.tree.structure(self._encoding_shapes), arrays)

  def _refined(self, steps: int) -> Callable[..., Encoding]:
    """The program of `encode` with free-form inference, `(variables, batch, numbers) -> Encoding`.

    An example's noise depends on its number.
    """
    free_form = self.system.free_form
    if free_form is None:
      raise ValueError(
        f"the system {self.settings.system!r} has no posteriors; leave out refine_steps."
      )
    optimizer = optax.adam(optax.cosine_decay_schedule(REFINEMENT_RATE, steps))
    infer = make_inference(free_form, optimizer, num_steps=steps, start="encoder", num_samples=1)

    def refine(variables: Any, batch: Batch, numbers: Array) -> Encoding:
      return free_form.encoding(variables, infer(variables, batch, numbers).after.posterior)

    return self._compiled(f"refine {steps}", refine)

  def _compiled(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under jit; the first function of a name is kept and reused."""
    return self._programs.setdefault(name, jax.jit(function))

  def _in_batches(self, run: Callable[[Any, np.ndarray], Any], arrays: Any) -> Any:
    """Joins `run(arrays, numbers)` over a tree of arrays [n, ...], in batches of one size."""
    lengths = {len(leaf) for leaf in jax.tree.leaves(arrays)}
    if len(lengths) != 1:
      raise ValueError(f"expected arrays of one length, got {sorted(lengths)} examples.")
    count = lengths.pop()
    if count == 0:  # of a blank example, the results have the right shapes
      arrays = jax.tree.map(lambda leaf: np.zeros((1, *leaf.shape[1:]), leaf.dtype), arrays)
    results = in_batches(functools.partial(run, arrays), max(count, 1), self.batch_size)
    return jax.tree.map(lambda leaf: leaf[:count], results)


def rebuilt(fields: dict[str, Any]) -> Model:
  """The model with these fields and a newly built system."""
  return Model(system=make_system(fields["settings"], fields["spec"]), **fields)
