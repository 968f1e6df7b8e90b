"""How many capsules a model uses.

A set of activations can be accurate with a few capsules that do everything, or with many that are
always half on. This count tells them apart from capsules that specialise.
"""

import numpy as np

from scae_jax.evaluation.checks import check_features

MIN_SHARE = 0.1  # of an example's activation, for the example to count
MIN_EXAMPLES = 0.01  # share of the examples that must count, for the capsule to be in use


def capsules_in_use(activations: np.ndarray, *, name: str = "features") -> np.ndarray:
  """Tells which capsules are in use.

  A capsule's share of an example is its activation (presence or posterior mass) over the sum of
  those of all capsules; where that sum is zero, every share is zero. A capsule is in use when its
  share is at least 0.1 on at least 1 % of the examples. With more than ten capsules that are all
  equally on, none is in use: none of them says anything about an example.

  Args:
    activations: [n, k], non-negative.
    name: what they are called in messages.

  Returns:
    bool [k].

  Raises:
    ValueError: activations that are negative or not finite.
  """
  check_features(name, activations)
  if activations.min() < 0:
    raise ValueError(
      f"Features '{name}' must be non-negative to be shares of an example, got a minimum of "
      f"{activations.min():.3g}. Return presences or masses from `System.features`, not logits."
    )
  totals = activations.sum(axis=1, keepdims=True)
  shares = activations / np.where(totals > 0, totals, 1)
  return np.mean(shares >= MIN_SHARE, axis=0) >= MIN_EXAMPLES
