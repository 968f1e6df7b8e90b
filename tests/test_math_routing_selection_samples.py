"""Children and roots that are drawn: their choices, presences and poses against probabilities."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

from scae_jax.routing import selection
from tests.references import IDENTITY, in_float64, reference_choices, reference_vote
from tests.test_math_routing_selection import CHILDREN, PARENTS, random_layers

DRAWS = 20_000


def close_to_probability(frequency, probability, count=DRAWS):
  """Within five standard deviations, which one of two million tests exceeds."""
  deviation = np.sqrt(probability * (1 - probability) / count)
  np.testing.assert_array_less(np.abs(frequency - probability), 5 * deviation + 1e-9)


def normal_about(poses, mean, scale):
  """The mean and deviation of poses [n, 2, 3], within five standard errors of each."""
  standard = np.reshape(poses - mean, (-1, 6)) / scale
  np.testing.assert_allclose(standard.mean(axis=0), 0, atol=5 / np.sqrt(len(poses)))
  np.testing.assert_allclose(standard.std(axis=0), 1, atol=5 / np.sqrt(2 * len(poses)))


@pytest.fixture(scope="module")
def drawn():
  """Parents, relations, and many draws of children and choices."""
  _, parents, relations = random_layers()
  sample = jax.jit(jax.vmap(selection.sample_children, in_axes=(0, None, None)))
  keys = jax.random.split(jax.random.key(0), DRAWS)
  children, choices = jax.device_get(sample(keys, parents, relations))
  return in_float64(parents), in_float64(relations), children, choices


def test_children_choose_by_probability(drawn):
  parents, relations, _, choices = drawn
  probability = np.exp(reference_choices(parents, relations))
  for parent in range(PARENTS + 1):
    close_to_probability(np.mean(choices == parent, axis=0), probability[parent])


def test_children_are_on_by_their_choice(drawn):
  _, relations, children, choices = drawn
  # One of two constants, chosen and not computed.
  assert set(np.unique(children.presence_logits)) == {-selection.CERTAIN, selection.CERTAIN}
  on = children.presence_logits > 0
  np.testing.assert_allclose(expit(children.presence_logits), on, atol=1e-12)
  for parent in range(PARENTS + 1):
    for child in range(CHILDREN):
      chosen = choices[:, child] == parent
      frequency = on[chosen, child].mean()
      close_to_probability(frequency, expit(relations.presence_logits[parent, child]), chosen.sum())


def test_children_have_poses_of_their_parents(drawn):
  """Or, off or the dummy's, a broad one."""
  parents, relations, children, choices = drawn
  on = children.presence_logits > 0
  for child in range(CHILDREN):
    free = ~on[:, child] | (choices[:, child] == PARENTS)
    normal_about(children.poses[free, child], IDENTITY, relations.broad_scale)
    for parent in range(PARENTS):
      held = on[:, child] & (choices[:, child] == parent)
      vote = reference_vote(parents.poses[parent], relations.offsets[parent, child])
      normal_about(children.poses[held, child], vote, relations.scales[parent, child])


def test_children_are_drawn_apart(drawn):
  """The choice of one says nothing of another's, nor do poses."""
  _, _, children, choices = drawn
  first, second = choices[:, 0] == 0, choices[:, 1] == 0
  close_to_probability(np.mean(first & second), first.mean() * second.mean())
  correlation = np.corrcoef(children.poses.reshape(DRAWS, -1).T)
  for child in range(CHILDREN):  # the six numbers of one share its choice
    own = slice(6 * child, 6 * child + 6)
    correlation[own, own] = 0
  assert np.abs(correlation).max() < 5 / np.sqrt(DRAWS)


def test_roots():
  logits = jnp.array([-1.0, 2.0])
  sample = functools.partial(selection.sample_roots, presence_logits=logits, scale=jnp.float32(0.3))
  roots = jax.jit(jax.vmap(sample))(jax.random.split(jax.random.key(0), DRAWS))
  on = np.asarray(roots.presence_logits) > 0
  close_to_probability(on.mean(axis=0), expit(np.asarray(logits)))
  for root in range(2):
    normal_about(np.asarray(roots.poses)[:, root], IDENTITY, 0.3)
  # Where one is on, the pose is no other than where it is off.
  normal_about(np.asarray(roots.poses)[~on[:, 1], 1], IDENTITY, 0.3)
