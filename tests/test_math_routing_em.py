"""EM routing against a loop in NumPy, its properties and extremes."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, log_expit, logsumexp

from scae_jax.math.routing.em import route_by_em

CHILDREN, TYPES, SIZE = 5, 3, 4
LIMIT = 0.3
MIN_VARIANCE = 5e-4
# Three positions that see three children each; the children 1 to 3 are seen from several.
FIELDS = np.array([[0, 1, 2], [1, 2, 3], [2, 3, 4]])
EVERYTHING = np.arange(CHILDREN)[None]


def inputs(child=FIELDS):
  rng = np.random.RandomState(0)
  votes = rng.normal(size=(*child.shape, TYPES, SIZE)).astype(np.float32)
  activation = rng.uniform(0.2, 1.0, CHILDREN).astype(np.float32)
  beta_u, beta_a = rng.normal(size=(2, TYPES)).astype(np.float32)
  return votes, activation, beta_u, 10 * beta_a


def route(arrays, child=FIELDS, iterations=3):
  votes, activation, beta_u, beta_a = map(jnp.asarray, arrays)
  options = {"iterations": iterations, "inverse_temperature_limit": LIMIT}
  votes = jnp.moveaxis(votes, 1, -1)
  return route_by_em(votes, activation, child, beta_u=beta_u, beta_a=beta_a, **options)


def reference(arrays, child, iterations):
  """Procedure 1 of the paper, one child and parent after the other, in float64."""
  votes, activation, beta_u, beta_a = (np.asarray(x, np.float64) for x in arrays)
  positions, field, types, size = votes.shape
  seen = [[tuple(place) for place in np.argwhere(child == m)] for m in range(CHILDREN)]
  coupling = np.zeros((positions, field, types))
  for places in seen:
    for place in places:
      coupling[place] = 1 / (len(places) * types)
  history = []
  for i in range(iterations):
    mean, variance = np.zeros((2, positions, types, size))
    activated = np.zeros((positions, types))
    for p in range(positions):
      for k in range(types):
        weight = np.array([coupling[p, n, k] * activation[child[p, n]] for n in range(field)])
        mean[p, k] = np.average(votes[p, :, k], axis=0, weights=weight)
        spread = np.average((votes[p, :, k] - mean[p, k]) ** 2, axis=0, weights=weight)
        variance[p, k] = np.maximum(spread, MIN_VARIANCE)
        cost = sum((beta_u[k] + np.log(np.sqrt(v))) * weight.sum() for v in variance[p, k])
        activated[p, k] = LIMIT * (1 - 0.95 ** (i + 1)) * (beta_a[k] - cost)
    agreement = stats.norm.logpdf(votes, mean[:, None], np.sqrt(variance)[:, None]).sum(axis=-1)
    history.append((mean, variance, expit(activated), coupling, agreement))
    log_share = log_expit(activated)[:, None] + agreement
    coupling = np.zeros_like(coupling)
    for places in seen:
      total = logsumexp([log_share[place] for place in places])
      for place in places:
        coupling[place] = np.exp(log_share[place] - total)
  return history


@pytest.mark.parametrize("child", [FIELDS, EVERYTHING], ids=["fields", "everything"])
def test_against_a_loop(child):
  arrays = inputs(child)
  routing = jax.jit(functools.partial(route, child=child))(arrays)
  expected = reference(arrays, child, 3)
  close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
  # Of float32: a density of five votes around their own mean is up to e^10 times another's.
  for i, (_, _, _, coupling, agreement) in enumerate(expected):
    close(routing.coupling[i], coupling, err_msg=str(i))
    close(routing.agreement[i], agreement, rtol=1e-3, err_msg=str(i))
  for name, array in zip(("poses", "variance", "activation"), expected[-1], strict=False):
    close(getattr(routing, name), array, err_msg=name)


@jax.jit
def value_and_gradients(arrays):
  def total(arrays):
    routing = route(arrays)
    return jnp.sum(routing.poses) + jnp.sum(routing.activation), routing

  return jax.value_and_grad(total, has_aux=True)(arrays)


@pytest.mark.parametrize(
  "change",
  [
    pytest.param(lambda votes, there: (votes, 0 * there), id="nobody is there"),
    pytest.param(lambda votes, there: (votes, np.eye(CHILDREN, dtype="f")[2]), id="one child is"),
    pytest.param(lambda votes, there: (0 * votes + 1, there), id="all say the same"),
    pytest.param(lambda votes, there: (1e4 * votes, there), id="far away"),
  ],
)
def test_extremes(change):
  """Values and gradients are finite. The coupling of a child sums to one over its parents."""
  votes, activation, *betas = inputs()
  numbers = value_and_gradients((*map(np.asarray, change(votes, activation)), *betas))
  chex.assert_tree_all_finite(numbers)
  coupling = numbers[0][1].coupling[-1]
  for m in range(CHILDREN):
    assert coupling[m == FIELDS].sum() == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize(
  ("child", "iterations", "message"),
  [
    (FIELDS, 0, r"\b1 iteration.* 0\b"),
    (FIELDS[:2], 3, r"child .*\(3, 3\).*\(2, 3\)"),
    (FIELDS + 1, 3, "child .*0 to 4.*1 to 5"),
    (FIELDS - 1, 3, "child .*0 to 4.*-1 to 3"),
  ],
)
def test_inputs_that_do_not_fit_are_refused(child, iterations, message):
  with pytest.raises(ValueError, match=message):
    route(inputs(), child, iterations)
