"""Optimisers and learning-rate schedules from the config's `optimizer` section."""

import functools

import jax
import optax

from scae_jax.sections import OptimizerOptions


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
