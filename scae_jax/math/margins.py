"""Margin losses on the activations of class capsules. Pure functions of one example."""

import jax
import jax.numpy as jnp

from scae_jax.typing import Array, Float, typed

# Margin of the spread loss: its start, its rise, and its midpoint in multiples of the scale.
FIRST_MARGIN, MARGIN_RISE, MARGIN_MIDDLE = 0.2, 0.79, 4.0


@typed
def margin_loss(
  lengths: Float[Array, " k"],
  present: Float[Array, " k"],
  *,
  present_margin: float,
  absent_margin: float,
  absent_weight: float,
) -> Float[Array, ""]:
  """sum_k T_k max(0, m+ - |v_k|)^2 + lambda (1 - T_k) max(0, |v_k| - m-)^2.

  v are the class capsules' vectors, T is 1 for the classes in the image and 0 for the others, m+,
  m- and lambda are the last three arguments. Sabour, Frosst and Hinton 2017, equation 4.
  """
  short = jnp.square(jax.nn.relu(present_margin - lengths))
  long = jnp.square(jax.nn.relu(lengths - absent_margin))
  return jnp.sum(present * short + absent_weight * (1.0 - present) * long)


@typed
def spread_loss(
  activation: Float[Array, " k"], present: Float[Array, " k"], margin: Float[Array, ""]
) -> Float[Array, ""]:
  """sum over absent classes i of max(0, m - (a_t - a_i))^2, with t the present class.

  `present` is 1 for classes in the image and 0 for the others. With several present classes the sum
  is also over t. Hinton, Sabour and Frosst 2018, equation 3.
  """
  lead = activation[:, None] - activation[None, :]
  cost = jnp.square(jax.nn.relu(margin - lead))
  return jnp.sum(present[:, None] * (1.0 - present)[None, :] * cost)


@typed
def spread_margin(step: Float[Array, ""], scale: float) -> Float[Array, ""]:
  """0.2 + 0.79 sigmoid(min(10, step / scale - 4)): small at first, so that no capsule dies early.

  Hinton, Sabour and Frosst 2018 raise it linearly from 0.2 to 0.9. This is the schedule that the
  authors gave later when asked, with a scale of 50,000 steps.
  """
  progress = jnp.minimum(10.0, step / scale - MARGIN_MIDDLE)
  return FIRST_MARGIN + MARGIN_RISE * jax.nn.sigmoid(progress)
