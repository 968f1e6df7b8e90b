"""Margin losses against loops, by hand, and their gradients."""

import jax.numpy as jnp
import numpy as np
import pytest

from scae_jax.margins import margin_loss, spread_loss, spread_margin

CLASSES = 5
MARGINS = {"present_margin": 0.9, "absent_margin": 0.1, "absent_weight": 0.5}


def example(seed, num_present=1):
  rng = np.random.RandomState(seed)
  present = np.zeros(CLASSES)
  present[rng.permutation(CLASSES)[:num_present]] = 1
  return jnp.asarray(rng.uniform(0, 1, CLASSES), jnp.float32), jnp.asarray(present)


@pytest.mark.parametrize("num_present", [0, 1, 2, CLASSES])
@pytest.mark.parametrize("seed", range(3))
def test_margin_loss_against_a_loop(seed, num_present):
  lengths, present = example(seed, num_present)
  expected = 0.0
  for length, there in zip(lengths.tolist(), present.tolist(), strict=True):
    if there:
      expected += max(0.0, 0.9 - length) ** 2
    else:
      expected += 0.5 * max(0.0, length - 0.1) ** 2
  found = margin_loss(lengths, present, **MARGINS)
  assert float(found) == pytest.approx(expected, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("num_present", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_spread_loss_against_a_loop(seed, num_present):
  activation, present = example(seed, num_present)
  values, expected = activation.tolist(), 0.0
  for t in np.flatnonzero(present):
    for i in np.flatnonzero(1 - present):
      expected += max(0.0, 0.6 - (values[t] - values[i])) ** 2
  found = spread_loss(activation, present, jnp.float32(0.6))
  assert float(found) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
  ("step", "expected"),
  [(0, 0.2142085), (200, 0.595), (400, 0.9757915), (700, 0.9899641), (np.inf, 0.9899641)],
)
def test_spread_margin_rises_from_a_fifth_to_nearly_one(step, expected):
  """0.2 + 0.79 / (1 + exp(-x)) of x = -4, 0, 4, 10 and, however long it takes, 10."""
  assert float(spread_margin(jnp.float32(step), 50.0)) == pytest.approx(expected, rel=1e-5)
