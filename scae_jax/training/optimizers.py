"""Optimisers and learning-rate schedules from the config's `optimizer` section."""

import dataclasses
import functools
from typing import Annotated

import jax
import optax

from scae_jax.bounds import MAX_STEPS, Bound, above, between, one_of, zero_or
from scae_jax.training.errors import RunError
from scae_jax.training.options import TrainOptions

OPTIMIZERS = ("rmsprop", "adam")
SCHEDULES = ("constant", "exponential", "cosine")
MAX_DECAY = 0.999999  # nearer to 1, a running mean in float32 would forget nothing
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
  # The learning rate rises linearly; 0 for none.
  warmup_steps: Annotated[int, between(0, MAX_STEPS)]
  # Exponential: steps for one factor of `decay_rate`. Cosine: steps from the end of warm-up to the
  # end of the cosine, 0 for until `train.num_steps`, see `resolve`.
  decay_steps: Annotated[int, between(0, MAX_STEPS), NEEDED_TO_DECAY]
  decay_rate: Annotated[float, above(0, 1)]  # exponential: the factor
  end_factor: Annotated[float, between(0, 1)]  # the least share of `learning_rate` after decay
  momentum: Annotated[float, between(0, MAX_DECAY)]  # of rmsprop
  decay: Annotated[float, between(0, MAX_DECAY)]  # of rmsprop's mean square
  b1: Annotated[float, between(0, MAX_DECAY)]  # of adam's mean
  b2: Annotated[float, between(0, MAX_DECAY)]  # of adam's mean square
  # Rmsprop: added to the mean square, inside the root, 0 for the rule of the authors' release, see
  # `resolve`. Adam: added to the root.
  epsilon: Annotated[float, zero_or(between(1e-12, 1)), NEEDED_BY_ADAM]
  clip_norm: Annotated[float, zero_or(between(1e-6, 1e12))]  # of the whole gradient; 0 for none
  weight_decay: Annotated[float, between(0, 1)]  # see `make_optimizer`; 0 for none


def resolve(options: OptimizerOptions, train: TrainOptions) -> OptimizerOptions:
  """Replaces zeros that stand for a value computed from the rest of the config.

  A cosine's decay_steps becomes what is left of the run after warm-up; `RunError` if nothing is.
  RMSProp's epsilon becomes (10 batch_size)^-2, as in the release of Kosiorek et al. 2019.
  """
  if options.schedule == "cosine" and options.decay_steps == 0:
    if options.warmup_steps >= train.num_steps:
      raise RunError(
        f"config.optimizer.warmup_steps must be below config.train.num_steps, {train.num_steps},"
        f" where the cosine ends (decay_steps is 0); it is {options.warmup_steps}."
      )
    options = dataclasses.replace(options, decay_steps=train.num_steps - options.warmup_steps)
  if options.name == "rmsprop" and options.epsilon == 0:
    options = dataclasses.replace(options, epsilon=(10 * train.batch_size) ** -2.0)
  return options


def check_length(options: OptimizerOptions, train: TrainOptions) -> None:
  """Raises `RunError` if steps of the run would have a learning rate of 0, by resolved options."""
  end = options.warmup_steps + options.decay_steps
  if options.schedule == "cosine" and options.end_factor == 0 and train.num_steps > end:
    raise RunError(
      f"config.train.num_steps must be at most {end}, where the cosine of config.optimizer.schedule"
      " ends (config.optimizer.warmup_steps + config.optimizer.decay_steps); it is"
      f" {train.num_steps}: steps after {end} would have a learning rate of 0. In a new --workdir"
      " raise decay_steps or set it to 0 (until train.num_steps), or set"
      " config.optimizer.end_factor above 0; or train for fewer steps."
    )


def learning_rate_schedule(options: OptimizerOptions) -> optax.Schedule:
  """The learning rate of a step, counted from 0.

  Warm-up: learning_rate (step + 1) / warmup_steps. From there, with t steps since warm-up and
  d = decay_steps, learning_rate times

    constant      1
    exponential   max(decay_rate^(t / d), end_factor)    (TF's exponential_decay, not in stairs)
    cosine        end_factor + (1 - end_factor) (1 + cos(pi min(t / d, 1))) / 2
  """
  rate, warmup = options.learning_rate, options.warmup_steps
  if options.schedule == "exponential":
    # At a decay_rate of 1, optax takes end_value for an upper limit.
    end = rate * options.end_factor if options.decay_rate < 1 else None
    decay = optax.exponential_decay(rate, options.decay_steps, options.decay_rate, end_value=end)
  elif options.schedule == "cosine":
    decay = optax.cosine_decay_schedule(rate, options.decay_steps, alpha=options.end_factor)
  else:
    decay = optax.constant_schedule(rate)
  if not warmup:
    return decay
  return optax.join_schedules(
    [optax.linear_schedule(rate / warmup, rate, warmup - 1), decay], [warmup]
  )


def make_optimizer(options: OptimizerOptions) -> optax.GradientTransformation:
  """Weight decay and clipping if asked for, then the update rule, of options that are resolved.

  Weight decay is that of a loss with the term weight_decay / 2 sum(parameter^2), known as L2, not
  decoupled from the rule (Loshchilov and Hutter 2019, arXiv 1711.05101). Biases and all else with
  fewer than two axes do not decay.

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
  first = []
  if options.weight_decay:
    has_axes = functools.partial(jax.tree.map, lambda leaf: leaf.ndim >= 2)
    first.append(optax.add_decayed_weights(options.weight_decay, mask=has_axes))
  if options.clip_norm:
    first.append(optax.clip_by_global_norm(options.clip_norm))
  # A rule alone is not in a chain, as in the checkpoints of earlier runs.
  return optax.chain(*first, rule) if first else rule
