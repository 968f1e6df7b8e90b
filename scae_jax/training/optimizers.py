"""Optimisers and learning-rate schedules from the config's `optimizer` section."""

import dataclasses

import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from scae_jax.training.options import require
from scae_jax.typing import Array

OPTIMIZERS = ("rmsprop", "adam")
SCHEDULES = ("constant", "exponential", "cosine")


@dataclasses.dataclass(frozen=True)
class OptimizerOptions:
  """The keys of the config's `optimizer` section.

  Attributes:
    name: 'rmsprop' (as TensorFlow 1 computes it) or 'adam'.
    learning_rate: after warm-up and before decay.
    schedule: 'constant', 'exponential' or 'cosine', see `learning_rate_schedule`.
    warmup_steps: the learning rate rises linearly over so many steps; 0 for none.
    decay_steps: exponential: steps for one factor of `decay_rate`; cosine: steps until the end.
    decay_rate: exponential: the factor.
    end_factor: the learning rate never decays below this fraction of `learning_rate`.
    momentum: of rmsprop.
    decay: of rmsprop's mean square.
    b1: of adam's mean.
    b2: of adam's mean square.
    epsilon: rmsprop: added to the mean square, inside the root; adam: added to the root.
    clip_norm: gradients longer than this (over all parameters) are scaled down to it; 0. for never.
  """

  name: str
  learning_rate: float
  schedule: str
  warmup_steps: int
  decay_steps: int
  decay_rate: float
  end_factor: float
  momentum: float
  decay: float
  b1: float
  b2: float
  epsilon: float
  clip_norm: float

  def __post_init__(self):
    def check(holds: bool, key: str, expected: str):
      require(holds, f"optimizer.{key}", expected, getattr(self, key))

    check(self.name in OPTIMIZERS, "name", f"one of {OPTIMIZERS}")
    check(self.schedule in SCHEDULES, "schedule", f"one of {SCHEDULES}")
    check(self.learning_rate > 0, "learning_rate", "above 0")
    check(self.warmup_steps >= 0, "warmup_steps", "0 or more steps")
    check(self.schedule == "constant" or self.decay_steps > 0, "decay_steps", "at least 1 step")
    check(0 < self.decay_rate <= 1, "decay_rate", "above 0 and at most 1")
    check(0 <= self.end_factor <= 1, "end_factor", "from 0 to 1")
    for key in ("momentum", "decay", "b1", "b2"):
      check(0 <= getattr(self, key) < 1, key, "from 0 to below 1")
    check(self.epsilon > 0, "epsilon", "above 0")
    check(self.clip_norm >= 0, "clip_norm", "0 (off) or above")


def learning_rate_schedule(options: OptimizerOptions) -> optax.Schedule:
  """The learning rate of a step, counted from 0.

  Warm-up: learning_rate (step + 1) / warmup_steps. From there, with t steps since warm-up and
  d = decay_steps, learning_rate times

    constant      1
    exponential   max(decay_rate^(t / d), end_factor)    (TF's exponential_decay, not in stairs)
    cosine        end_factor + (1 - end_factor) (1 + cos(pi min(t / d, 1))) / 2
  """

  def schedule(count: ArrayLike) -> Array:
    step = jnp.asarray(count, jnp.float32)
    since = jnp.maximum(step - options.warmup_steps, 0.0)
    if options.schedule == "exponential":
      factor = jnp.maximum(options.decay_rate ** (since / options.decay_steps), options.end_factor)
    elif options.schedule == "cosine":
      turn = jnp.pi * jnp.minimum(since / options.decay_steps, 1.0)
      factor = options.end_factor + (1 - options.end_factor) * 0.5 * (1 + jnp.cos(turn))
    else:
      factor = jnp.ones(())
    if options.warmup_steps:
      factor *= jnp.minimum((step + 1) / options.warmup_steps, 1.0)
    return options.learning_rate * factor

  return schedule


def make_optimizer(options: OptimizerOptions) -> optax.GradientTransformation:
  """Clipping if asked for, then the update rule.

  RMSProp is tf.train.RMSPropOptimizer of TensorFlow 1: with mean square s (starting at one) and
  momentum buffer v (starting at zero),

    s <- decay s + (1 - decay) g^2
    v <- momentum v + learning_rate g / sqrt(s + epsilon)
    parameter <- parameter - v

  so the learning rate of a step stays in the buffer when the schedule has moved on.
  """
  schedule = learning_rate_schedule(options)
  if options.name == "rmsprop":
    rule = optax.rmsprop(
      schedule,
      decay=options.decay,
      eps=options.epsilon,
      initial_scale=1.0,
      eps_in_sqrt=True,
      momentum=options.momentum,
    )
  else:
    rule = optax.adam(schedule, b1=options.b1, b2=options.b2, eps=options.epsilon)
  if options.clip_norm:
    return optax.chain(optax.clip_by_global_norm(options.clip_norm), rule)
  return rule
