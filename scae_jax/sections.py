"""The sections `train`, `optimizer` and `evaluation` of a config; their fields are the keys.

Also the flags of a run on several hosts.
"""

import dataclasses
import math
from typing import Annotated

from scae_jax.bounds import (
  MAX_EXAMPLES,
  MAX_STEPS,
  Bound,
  above,
  below,
  between,
  each,
  one_of,
  zero_or,
)
from scae_jax.errors import RunError

MAX_SEEDS = 65_536
# Steps of one dispatch, which draws all their examples at once.
MAX_DISPATCH = 100_000
SEED = Bound(
  "from 0 to 2147483648 less {section}.seeds, {seeds}",
  lambda value, fields: 0 <= value <= 2**31 - fields["seeds"],
)
OF_A_START = Bound(
  "() where {section}.start_from is ''",
  lambda value, fields: not value or fields["start_from"] != "",
)
STEP_OF_A_START = Bound(
  "0 where {section}.start_from is ''",
  lambda value, fields: value == 0 or fields["start_from"] != "",
)


@dataclasses.dataclass(frozen=True)
class TrainOptions:
  """Length, batch size, seeds and cadences of a run; a cadence is a number of steps."""

  num_steps: Annotated[int, between(1, MAX_STEPS)]  # total; a larger number extends a run
  batch_size: Annotated[int, between(1, MAX_EXAMPLES)]  # examples a step, over all devices
  seed: Annotated[int, SEED]  # of the parameters, the order of examples and the noise
  # Number of runs that train at once, with seeds seed, seed + 1, ...; each gives the same result as
  # a run of this seed alone.
  seeds: Annotated[int, between(1, MAX_SEEDS)]
  # Most steps in one call on the device; affects only speed and the time to react to Ctrl-C.
  steps_per_dispatch: Annotated[int, between(1, MAX_DISPATCH)]
  log_every: Annotated[int, between(1, MAX_STEPS)]  # lines of mean training metrics
  # Held-out losses; 0: only at checkpoints and at the end.
  eval_every: Annotated[int, between(0, MAX_STEPS)]
  # Checkpoints, each with a held-out loss; 0: only at the end.
  checkpoint_every: Annotated[int, between(0, MAX_STEPS)]
  keep_checkpoints: Annotated[int, between(1, MAX_STEPS)]  # latest ones to keep, beside the best
  tensorboard: bool  # whether metrics also go to `<workdir>/tensorboard`
  compilation_cache: str  # folder for compiled programs, see `hosts.keep_compiled`
  # Workdir or folder of pretrained parameters to start from, see `start`; "" for none.
  start_from: str
  start_modules: Annotated[tuple[str, ...], OF_A_START]  # modules to start from; () for all
  # Steps, counted from 0, before which idle object capsules become copies, see `revival`. Steps
  # that `log_every` does not divide shorten all dispatches.
  revive_idle: Annotated[tuple[int, ...], each(between(0, MAX_STEPS), most=1000)]
  # First step of the run, if `start_from` has the parameters of that step: schedules and the order
  # of examples count from it. The optimiser's means are newly initialised.
  start_step: Annotated[int, below(0, "num_steps"), STEP_OF_A_START] = 0

  @property
  def all_seeds(self) -> tuple[int, ...]:
    """The seeds of the runs that are trained at once."""
    return tuple(range(self.seed, self.seed + self.seeds))

  @property
  def dispatch_length(self) -> int:
    """Steps of one dispatch: the most that `steps_per_dispatch` and the cadences allow.

    The host acts only between dispatches, so the length divides every cadence.
    """
    cadences = (self.log_every, self.eval_every, self.checkpoint_every, *self.revive_idle)
    cadence = math.gcd(*cadences)
    longest = min(self.steps_per_dispatch, cadence, self.num_steps)
    return next(n for n in range(longest, 0, -1) if cadence % n == 0)


@dataclasses.dataclass(frozen=True)
class EvaluationOptions:
  """The report that ends a run."""

  batch_size: Annotated[int, between(1, MAX_EXAMPLES)]  # examples a pass through the model
  # Most examples of each split to fit and score; 0 for all.
  max_examples: Annotated[int, between(0, MAX_EXAMPLES)]


OPTIMIZERS = ("rmsprop", "adam")
SCHEDULES = ("constant", "exponential", "cosine")
MAX_DECAY = 0.999999  # closer to 1, a running mean in float32 no longer changes
NEEDED_TO_DECAY = Bound(
  "at least 1 step where {section}.schedule is 'exponential'",
  lambda value, fields: value > 0 or fields["schedule"] != "exponential",
)
NEEDED_BY_ADAM = Bound(
  "above 0 where {section}.name is 'adam' (1e-8 is usual)",
  lambda value, fields: value > 0 or fields["name"] != "adam",
)


@dataclasses.dataclass(frozen=True)
class OptimizerOptions:
  """The keys of the config's `optimizer` section."""

  name: Annotated[str, one_of(*OPTIMIZERS)]  # rmsprop is as TensorFlow 1 computes it
  learning_rate: Annotated[float, between(1e-9, 1e3)]  # after warm-up and before decay
  schedule: Annotated[str, one_of(*SCHEDULES)]  # see `learning_rate_schedule`
  # Steps in which the learning rate rises linearly; 0 for none.
  warmup_steps: Annotated[int, between(0, MAX_STEPS)]
  # Exponential: steps for one factor of `decay_rate`. Cosine: steps from the end of warm-up to the
  # end of the cosine; 0: it ends at `train.num_steps`, see `resolve`.
  decay_steps: Annotated[int, between(0, MAX_STEPS), NEEDED_TO_DECAY]
  decay_rate: Annotated[float, above(0, 1)]  # exponential: the factor
  end_factor: Annotated[float, between(0, 1)]  # the least share of `learning_rate` after decay
  momentum: Annotated[float, between(0, MAX_DECAY)]  # of rmsprop
  decay: Annotated[float, between(0, MAX_DECAY)]  # of rmsprop's mean square
  b1: Annotated[float, between(0, MAX_DECAY)]  # of adam's mean
  b2: Annotated[float, between(0, MAX_DECAY)]  # of adam's mean square
  # Rmsprop: added to the mean square, inside the root; 0: as in the authors' release, see
  # `resolve`. Adam: added to the root.
  epsilon: Annotated[float, zero_or(between(1e-12, 1)), NEEDED_BY_ADAM]
  clip_norm: Annotated[float, zero_or(between(1e-6, 1e12))]  # of the whole gradient; 0 for none
  weight_decay: Annotated[float, between(0, 1)]  # see `make_optimizer`; 0 for none


def resolve(options: OptimizerOptions, train: TrainOptions) -> OptimizerOptions:
  """Replaces zeros that stand for a value computed from the rest of the config.

  A cosine's decay_steps becomes the number of steps after warm-up. RMSProp's epsilon becomes
  (10 batch_size)^-2, as in the release of Kosiorek et al. 2019. Raises `RunError` if a cosine has
  no steps, or if it ends before the run and later steps would have a learning rate of 0.
  """
  if options.schedule == "cosine" and options.decay_steps == 0:
    if options.warmup_steps >= train.num_steps:
      raise RunError(
        f"config.optimizer.warmup_steps must be below config.train.num_steps, {train.num_steps},"
        f" where the cosine ends (decay_steps is 0); it is {options.warmup_steps}."
      )
    options = dataclasses.replace(options, decay_steps=train.num_steps - options.warmup_steps)
  end = options.warmup_steps + options.decay_steps
  if options.schedule == "cosine" and options.end_factor == 0 and train.num_steps > end:
    raise RunError(
      f"config.train.num_steps must be at most {end}, where the cosine of config.optimizer.schedule"
      " ends (config.optimizer.warmup_steps + config.optimizer.decay_steps); it is"
      f" {train.num_steps}: steps after {end} would have a learning rate of 0. In a new --workdir"
      " raise decay_steps or set it to 0 (until train.num_steps), or set"
      " config.optimizer.end_factor above 0; or train for fewer steps."
    )
  if options.name == "rmsprop" and options.epsilon == 0:
    options = dataclasses.replace(options, epsilon=(10 * train.batch_size) ** -2.0)
  return options


@dataclasses.dataclass(frozen=True)
class Processes:
  """How the processes of a run find each other.

  Process 0 listens at the coordinator, `host:port`. If it is empty, JAX detects the cluster (TPU
  pods, Slurm, Open MPI, Kubernetes) and the numbers are not used.
  """

  coordinator: str
  num_processes: int
  process_id: int

  def __post_init__(self):
    if not self.coordinator:
      return
    host, _, port = self.coordinator.rpartition(":")
    if not host or not port.isdecimal():
      raise RunError(f"--coordinator must be host:port; it is {self.coordinator!r}.")
    if not 0 <= self.process_id < self.num_processes:
      raise RunError(
        "--coordinator needs --num_processes and, in each of them, its own --process_id from 0 to"
        f" one less; they are {self.num_processes} and {self.process_id}."
      )
