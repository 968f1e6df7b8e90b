"""A trained model on examples of one's own: encode, draw, predict, export."""

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
from scae_jax.evaluation.free_form import make_inference
from scae_jax.files import given_path
from scae_jax.library.export import export_functions
from scae_jax.library.inputs import ImageInput, PointInput
from scae_jax.models.system import Encoding, ImageSpec, Numbers, Spec, System
from scae_jax.precision import single_precision
from scae_jax.training.hosts import check_not_forked
from scae_jax.training.run import make_system
from scae_jax.typing import Array, Batch

REFINEMENT_RATE = 0.01  # Adam's, falling to 0 under a cosine


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
  """A trained model, as `scae_jax.load` opens it.

  Examples pass in batches of one size, the last one filled up, so that one compiled program serves
  any number of them.

  Attributes:
    settings: of the run that trained it.
    spec: canvas, channels and classes, or points.
    class_names: what labels stand for; () of points.
    clusters: of each kind of features, the most accurate on the training images first; {} where
      `predict` needs none.
    step: of the training.
    seed: of the training.
    batch_size: examples a pass.
    system: the model and what it can say.
    variables: of its module.
    inputs: what it takes.
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
    """For `pickle` and `copy`: the fields without the system, which `rebuilt` makes anew."""
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
    """What the model finds in images, or in scenes of points.

    Args:
      examples: images, uint8 or float in [0, 1], [n, h, w] or [n, h, w, c]; those smaller than the
        canvas lie in its middle, on black. Of a model of points, coordinates [n, p, 2].
      resize: whether images of another size, or of several in a list, are brought to that of the
        training images: as `data.resize` brought these there, else stretched.
      presence: of points, [n, p], 1 or 0; None: all are there.
      refine_steps: of free-form inference, which moves each example's posterior uphill on its bound
        (`evaluation.free_form`); for systems with posteriors.

    Returns:
      Arrays of NumPy, one entry an example each.

    Raises:
      ValueError: examples that the model does not take, or a system without posteriors.
    """
    check_not_forked()
    known = None if presence is None else np.asarray(presence)
    arrays = self.inputs.check(examples, known, resize=resize)
    if refine_steps < 0:
      raise ValueError(f"refine_steps must be 0 or more; it is {refine_steps}.")
    find = self._refined(refine_steps) if refine_steps else self._compiled("find", self._find)

    def run(chunk: dict[str, np.ndarray], start: int) -> Encoding:
      return find(self.variables, self.inputs.place(chunk), start)

    found = self._in_batches(run, arrays)
    if found.groups is not None:
      found = found.replace(groups=found.groups[:, : np.shape(examples)[1]])
    return found

  @single_precision
  def draw(self, found: Encoding, by: str = "", only: int | None = None) -> np.ndarray:
    """Images from what was found, or from a changed copy: `found.replace(object_poses=...)`.

    Args:
      found: of `encode`. Drawn by objects, a part stands where its object says; which object it
        belongs to, how it looks and its pose in object coordinates stay as they were found.
      by: `objects` or `parts`, whose poses and presences are drawn; "" for `system.draws`' first.
      only: number of one object or part that is drawn alone; None for all.

    Returns:
      [n, canvas, canvas, c], in [0, 1].

    Raises:
      ValueError: the model draws no images or not by these, there is no such capsule, or arrays
        that are not as `encode` gives them: of other shapes or lengths, or not finite.
    """
    check_not_forked()
    draws = self.system.draws
    if not draws:
      raise ValueError(f"the system {self.settings.system!r} draws no images.")
    by = by or next(iter(draws))
    if by not in draws:
      raise ValueError(f"by must be one of {', '.join(draws)}; it is {by!r}.")
    found = self._as_found(found)
    presence = found.object_presence if by == "objects" else found.part_presence
    count = 0 if presence is None else np.shape(presence)[1]
    if only is not None and only not in range(count):
      raise ValueError(f"only must be from 0 to {count - 1}, one of the {by}; it is {only}.")
    number = jnp.int32(-1 if only is None else only)
    assert isinstance(self.spec, ImageSpec)  # of all that draw
    canvas = self.spec.canvas

    def one(variables: Any, found: Encoding, number: Array) -> Array:
      return draws[by](variables, found, number, canvas)

    program = self._compiled(f"draw by {by}", one)
    return self._in_batches(
      lambda chunk, _: program(self.variables, jax.tree.map(jnp.asarray, chunk), number), found
    )

  def predict(
    self,
    examples: Numbers | Sequence[Numbers],
    *,
    by: str = "",
    resize: bool = False,
    presence: Numbers | None = None,
  ) -> np.ndarray:
    """Labels, int32 [n]: numbers into `class_names`.

    A system that is trained with labels answers by itself, of two overlaid images with two labels,
    [n, 2]. One of points gives groups [n, p]. Any other is named by clusters of its training
    images: k-means of `Encoding.features`, each cluster named by the label that most examples
    have, one label a cluster; the accuracy is LIN-MATCH.

    Args:
      examples: as of `encode`.
      by: which features' clusters; "" for those that name the training images best, `clusters`'
        first.
      resize: as of `encode`.
      presence: likewise.

    Raises:
      ValueError: as of `encode`; or there are no such clusters.
    """
    if by and by not in self.clusters:
      raise ValueError(f"by must be one of {list(self.clusters)}; it is {by!r}.")
    found = self.encode(examples, resize=resize, presence=presence)
    if found.groups is not None:
      return np.asarray(found.groups)
    if found.scores is not None:
      count = self.spec.num_labels if isinstance(self.spec, ImageSpec) else 1
      answers = np.argsort(-np.asarray(found.scores), axis=1, kind="stable").astype(np.int32)
      return answers[:, 0] if count == 1 else answers[:, :count]
    if not self.clusters:
      raise ValueError("no clusters were named for this model; evaluate its run with evaluate.py.")
    by = by or next(iter(self.clusters))
    return self.clusters[by].predict(np.asarray(found.features[by]))

  @single_precision
  def export(self, folder: str | os.PathLike[str]) -> None:
    """Writes `encode` and `draw` as StableHLO that needs JAX alone; see `library.export`."""
    check_not_forked()
    export_functions(given_path(folder), self)

  @functools.cached_property
  def _found_shapes(self) -> Encoding:
    """Shapes of what `encode` finds in a batch."""
    blank = self.spec.blank_batch(self.batch_size)
    return jax.eval_shape(self.system.encode, self.variables, blank)

  def _as_found(self, found: Encoding) -> Encoding:
    """The arrays on the host; ValueError unless their shapes are as `encode` gives them."""
    paths, expected = zip(*jax.tree.leaves_with_path(self._found_shapes), strict=True)
    given = dict(jax.tree.leaves_with_path(found, is_leaf=lambda x: isinstance(x, list)))
    if set(given) != set(paths):
      raise ValueError("found must be of this model's encode, or a changed copy of it.")
    arrays = []
    for path, shape in zip(paths, expected, strict=True):
      name, array = jax.tree_util.keystr(path, simple=True, separator="."), np.asarray(given[path])
      if jnp.issubdtype(shape.dtype, jnp.floating):  # for whole numbers too
        array = array.astype(np.float32)
      if array.ndim == 0 or array.shape[1:] != shape.shape[1:]:
        sizes = ", ".join(["n", *map(str, shape.shape[1:])])
        raise ValueError(f"{name} must have shape [{sizes}]; it has {list(array.shape)}.")
      if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite.")
      arrays.append(array)
    return jax.tree.unflatten(jax.tree.structure(self._found_shapes), arrays)

  def _find(self, variables: Any, batch: Batch, start: Array) -> Encoding:
    """The program of `encode`; labels of the batch are blank."""
    blank = self.spec.blank_batch(self.batch_size)
    return self.system.encode(variables, {**blank, **batch})

  def _refined(self, steps: int) -> Callable[..., Encoding]:
    """The program of `encode` with free-form inference; an example's noise is by its number."""
    free_form = self.system.free_form
    if free_form is None:
      raise ValueError(
        f"the system {self.settings.system!r} has no posteriors; leave out refine_steps."
      )
    optimizer = optax.adam(optax.cosine_decay_schedule(REFINEMENT_RATE, steps))
    infer = make_inference(free_form, optimizer, num_steps=steps, start="encoder", num_samples=1)

    def refine(variables: Any, batch: Batch, start: Array) -> Encoding:
      blank = self.spec.blank_batch(self.batch_size)
      numbers = start + jnp.arange(self.batch_size)
      return free_form.encoding(
        variables, infer(variables, {**blank, **batch}, numbers).after.posterior
      )

    return self._compiled(f"refine {steps}", refine)

  def _compiled(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled once; the first of a name is kept."""
    return self._programs.setdefault(name, jax.jit(function))

  def _in_batches(self, run: Callable[[Any, int], Any], arrays: Any) -> Any:
    """Applies `run` to a tree of arrays [n, ...] in batches of one size; joins the results."""
    lengths = {len(leaf) for leaf in jax.tree.leaves(arrays)}
    if len(lengths) != 1:
      raise ValueError(f"expected arrays of one length, got {sorted(lengths)} examples.")
    count, size = lengths.pop(), self.batch_size

    def filled(leaf: np.ndarray, start: int) -> np.ndarray:
      rows = leaf[start : start + size]
      return np.pad(rows, ((0, size - len(rows)), *((0, 0),) * (leaf.ndim - 1)))

    parts = [
      run(jax.tree.map(lambda leaf, start=start: filled(leaf, start), arrays), start)
      for start in range(0, max(count, 1), size)
    ]
    return jax.tree.map(lambda *of: np.concatenate(of)[:count], *jax.device_get(parts))


def rebuilt(fields: dict[str, Any]) -> Model:
  """The model of these fields, all but `system`."""
  return Model(system=make_system(fields["settings"], fields["spec"]), **fields)
