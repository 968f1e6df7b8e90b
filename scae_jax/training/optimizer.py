"""Optimisers and learning-rate schedules from the config's `optimizer` section."""

import functools

import jax
import optax

from scae_jax.sections import OptimizerOptions


def learning_rate_schedule(options: OptimizerOptions) -> optax.Schedule:
  """The learning rate of a step, counted from 0.

  Warm-up: learning_rate (step + 1) / warmup_steps. After it, with t steps since warm-up and
  d = decay_steps, learning_rate times

    constant      1
    exponential   max(decay_rate^(t / d), end_factor)    (TF's exponential_decay, not in stairs)
    cosine        end_factor + (1 - end_factor) (1 + cos(pi min(t / d, 1))) / 2
  """
  rate, warmup = options.learning_rate, options.warmup_steps
  if options.schedule == "exponential":
    # At a decay_rate of 1, optax would use end_value as an upper limit.
    end_rate = rate * options.end_factor if options.decay_rate < 1 else None
    decay = optax.exponential_decay(
      rate, options.decay_steps, options.decay_rate, end_value=end_rate
    )
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
  """Weight decay and gradient clipping if set, then the update rule; options must be resolved.

  Weight decay is L2: the gradient of weight_decay / 2 sum(parameter^2) is added to that of the
  loss. It is not decoupled from the rule (Loshchilov and Hutter 2019, arXiv 1711.05101). Biases and
  other parameters with fewer than two axes do not decay.

  RMSProp is tf.train.RMSPropOptimizer of TensorFlow 1: with mean square s (starting at one) and
  momentum buffer v (starting at zero),

    s <- decay s + (1 - decay) g^2
    v <- momentum v + learning_rate g / sqrt(s + epsilon)
    parameter <- parameter - v

  so the buffer keeps gradients scaled by the learning rates of earlier steps.
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
  before_rule = []
  if options.weight_decay:
    decay_mask = functools.partial(jax.tree.map, lambda leaf: leaf.ndim >= 2)
    before_rule.append(optax.add_decayed_weights(options.weight_decay, mask=decay_mask))
  if options.clip_norm:
    before_rule.append(optax.clip_by_global_norm(options.clip_norm))
  # A rule alone is not put into a chain: the checkpoints of earlier runs have none.
  return optax.chain(*before_rule, rule) if before_rule else rule
