"""The config's train and evaluation sections as frozen records: fields are the schema."""

import dataclasses
import math
from typing import Annotated

from scae_jax.bounds import MAX_EXAMPLES, MAX_STEPS, Bound, between, each

MAX_SEEDS = 65_536
# Steps of one dispatch: their examples are drawn at once.
MAX_DISPATCH = 100_000
SEED = Bound(
  "from 0 to 2147483648 less {section}.seeds, {seeds}",
  lambda value, fields: 0 <= value <= 2**31 - fields["seeds"],
)
OF_A_START = Bound(
  "() where {section}.start_from is ''",
  lambda value, fields: not value or fields["start_from"] != "",
)


@dataclasses.dataclass(frozen=True)
class TrainOptions:
  """Length, batch, seed and cadence of a run; a cadence is a number of steps."""

  num_steps: Annotated[int, between(1, MAX_STEPS)]  # in all; a larger number extends a run
  batch_size: Annotated[int, between(1, MAX_EXAMPLES)]  # examples a step, over all devices
  seed: Annotated[int, SEED]  # of the parameters, the order of examples and the noise
  # Number of runs that train at once, with the seeds seed, seed + 1, ...; each is the run that it
  # would be alone.
  seeds: Annotated[int, between(1, MAX_SEEDS)]
  # Most steps without the host; only speed and the time to react to Ctrl-C depend on it.
  steps_per_dispatch: Annotated[int, between(1, MAX_DISPATCH)]
  log_every: Annotated[int, between(1, MAX_STEPS)]  # means of training metrics
  # Held-out losses; 0: at checkpoints and the end.
  eval_every: Annotated[int, between(0, MAX_STEPS)]
  checkpoint_every: Annotated[int, between(0, MAX_STEPS)]  # with a held-out loss; 0: at the end
  keep_checkpoints: Annotated[int, between(1, MAX_STEPS)]  # number of the latest, beside the best
  tensorboard: bool  # whether metrics also go to `<workdir>/tensorboard`
  compilation_cache: str  # folder for compiled programs, see `compilation.keep_compiled`
  # Workdir or folder of pretrained parameters to start from, see `start`; "" for none.
  start_from: str
  start_modules: Annotated[tuple[str, ...], OF_A_START]  # to take from there; () for all
  # Before these steps, counted from 0, idle object capsules become copies, see `revival`.
  revive_idle: Annotated[tuple[int, ...], each(between(0, MAX_STEPS), most=1000)]

  @property
  def all_seeds(self) -> tuple[int, ...]:
    """The seeds of the runs that are trained at once."""
    return tuple(range(self.seed, self.seed + self.seeds))

  @property
  def dispatch_length(self) -> int:
    """Steps of one dispatch: the most that fit both `steps_per_dispatch` and the cadence.

    Everything that the host does falls between dispatches, so the length divides every cadence.
    """
    cadences = (self.log_every, self.eval_every, self.checkpoint_every, *self.revive_idle)
    cadence = math.gcd(*cadences)
    longest = min(self.steps_per_dispatch, cadence, self.num_steps)
    return next(n for n in range(longest, 0, -1) if cadence % n == 0)


@dataclasses.dataclass(frozen=True)
class EvaluationOptions:
  """The report that ends a run."""

  batch_size: Annotated[int, between(1, MAX_EXAMPLES)]  # examples a pass through the model
  max_examples: Annotated[int, between(0, MAX_EXAMPLES)]  # of each split, fitted and scored; 0: all
