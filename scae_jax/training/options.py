"""The config's data, train and evaluation sections as frozen records: fields are the schema."""

import dataclasses
import math
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from scae_jax.training.errors import RunError, explained

Options = TypeVar("Options")


@dataclasses.dataclass(frozen=True)
class DataOptions:
  """Which data set, and how an image becomes the model's input.

  Attributes:
    name: a source of `scae_jax.data.sources`.
    dir: folder of the prepared data; empty for the source's own default.
    cache_dir: folder for decoded arrays; empty for the default.
    affnist_dir: folder of affNIST's official files, for `evaluate.py --dataset=affnist`; empty to
      draw the same distribution from MNIST's test images.
    num_validation: so many training examples are held out as the split "validation", on which the
      run is then judged instead of the test split.
    canvas: side of the square image that the model sees, pixels.
    max_shift: training images move by up to this many pixels in each direction.
    max_rotation: before that they turn about their middle by up to this many degrees in either
      direction; 0 is off.
    overlay: whether two images of different classes are overlaid, in training and evaluation, each
      moved on its own; see `scae_jax.data.overlay`.
    normalize: whether each image, before anything is cut out of it, is brought to zero mean and
      unit variance; see `scae_jax.data.normalization`.
    crop: side of the square that is cut out of an image, at random in training, else out of the
      middle, pixels; 0 is off.
    brightness: up to this much is added to training images or subtracted, of normalised ones in
      standard deviations; 0 is off.
    contrast: the contrast of training images is multiplied by a factor that differs from 1 by up to
      this much; 0 is off.
  """

  name: str
  dir: str
  cache_dir: str
  affnist_dir: str
  num_validation: int
  canvas: int
  max_shift: int
  max_rotation: float
  overlay: bool
  normalize: bool
  crop: int
  brightness: float
  contrast: float

  def __post_init__(self):
    require(self.num_validation >= 0, "data.num_validation", "0 or more", self.num_validation)
    require(self.canvas > 0, "data.canvas", "a positive number of pixels", self.canvas)
    require(self.max_shift >= 0, "data.max_shift", "zero or more pixels", self.max_shift)
    turns = 0 <= self.max_rotation <= 180
    require(turns, "data.max_rotation", "from 0 to 180 degrees", self.max_rotation)
    fits = 0 <= self.crop <= self.canvas
    require(fits, "data.crop", f"from 0 to data.canvas, {self.canvas} pixels", self.crop)
    for name in ("brightness", "contrast"):
      require(0 <= getattr(self, name) <= 1, f"data.{name}", "from 0 to 1", getattr(self, name))
    for name in ("max_rotation", "crop", "brightness", "contrast") if self.overlay else ():
      value = getattr(self, name)
      require(value == 0, f"data.{name}", "0 with data.overlay, which only moves images", value)
    fits = not (self.normalize and self.overlay)
    expected = "False with data.overlay, which adds pixels in [0, 1]"
    require(fits, "data.normalize", expected, self.normalize)


@dataclasses.dataclass(frozen=True)
class TrainOptions:
  """Length, batch, seed and cadence of a run.

  Attributes:
    num_steps: parameter updates in all; a finished run is extended by a larger number.
    batch_size: examples a step, over all devices.
    seed: of the parameters, the order of examples and the noise.
    seeds: so many runs are trained at once, with the seeds seed, seed + 1, ...; each is the run
      that it would be alone.
    steps_per_dispatch: at most so many steps run on the device without the host; only speed and
      the time to react to Ctrl-C depend on it.
    log_every: steps between lines of training metrics, each the mean over the steps since the last.
    eval_every: steps between held-out losses; 0 for only at checkpoints and at the end.
    checkpoint_every: steps between checkpoints, each with its held-out loss; 0 for only at the end.
    keep_checkpoints: so many of the latest checkpoints are kept, and the best one besides.
    tensorboard: whether metrics also go to `<workdir>/tensorboard`.
    compilation_cache: folder for compiled programs, see `compilation.keep_compiled`.
    start_from: workdir of another run, whose latest parameters this one starts from, see `start`;
      empty for parameters drawn by the seed.
  """

  num_steps: int
  batch_size: int
  seed: int
  seeds: int
  steps_per_dispatch: int
  log_every: int
  eval_every: int
  checkpoint_every: int
  keep_checkpoints: int
  tensorboard: bool
  compilation_cache: str
  start_from: str

  def __post_init__(self):
    positive = ("num_steps", "batch_size", "seeds", "steps_per_dispatch", "log_every")
    for name in (*positive, "keep_checkpoints"):
      require(getattr(self, name) > 0, f"train.{name}", "at least 1", getattr(self, name))
    for name in ("eval_every", "checkpoint_every"):
      require(getattr(self, name) >= 0, f"train.{name}", "0 or more steps", getattr(self, name))
    last = 2**31 - self.seeds
    require(0 <= self.seed <= last, "train.seed", f"from 0 to {last}", self.seed)

  @property
  def all_seeds(self) -> tuple[int, ...]:
    """The seeds of the runs that are trained at once."""
    return tuple(range(self.seed, self.seed + self.seeds))

  @property
  def dispatch_length(self) -> int:
    """Steps of one dispatch: the most that fit both `steps_per_dispatch` and the cadence.

    Everything that the host does falls between dispatches, so the length divides every cadence.
    """
    cadence = math.gcd(self.log_every, self.eval_every, self.checkpoint_every)
    longest = min(self.steps_per_dispatch, cadence, self.num_steps)
    return next(n for n in range(longest, 0, -1) if cadence % n == 0)


@dataclasses.dataclass(frozen=True)
class EvaluationOptions:
  """The report that ends a run.

  Attributes:
    batch_size: examples a pass through the model.
    max_examples: at most so many of each split are fitted to and scored; 0 for all.
  """

  batch_size: int
  max_examples: int

  def __post_init__(self):
    require(self.batch_size > 0, "evaluation.batch_size", "at least 1", self.batch_size)
    require(self.max_examples >= 0, "evaluation.max_examples", "0 or more", self.max_examples)


def require(holds: bool, key: str, expected: str, received: object) -> None:
  """Raises a `RunError` that names the config key unless `holds`."""
  if not holds:
    raise RunError(f"config.{key} must be {expected}; it is {received!r}.")


def read_section(section: Mapping[str, Any], name: str, schema: type[Options]) -> Options:
  """A config section as its record.

  Args:
    section: the keys and values of the section.
    name: of the section, for messages.
    schema: a dataclass whose fields are bool, int, float, str or tuples.

  Raises:
    RunError: a key is missing, unknown or of the wrong type, or the record refuses its values.
  """
  types = typing.get_type_hints(schema)
  unknown, missing = sorted(set(section) - set(types)), sorted(set(types) - set(section))
  if unknown or missing:
    raise RunError(
      f"config section {name!r} must have exactly the keys {sorted(types)};"
      f" unknown: {unknown}, missing: {missing}. Correct the config file."
    )
  values = {}
  for key, expected in types.items():
    value = section[key]
    kind = typing.get_origin(expected) or expected  # tuple of tuple[str, ...]
    if kind is float and type(value) is int:
      value = float(value)
    if type(value) is not kind:
      raise RunError(
        f"config.{name}.{key} must be of type {kind.__name__};"
        f" it is {value!r} of type {type(value).__name__}."
      )
    values[key] = value
  with explained():
    return schema(**values)
