"""Poses against NumPy: products and inverses, extremes. Their formulas: test_models_parts.py."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scae_jax.math import geometry
from tests.references import random_pose, square

# float32 has 24 bits: an angle of up to 4 pi is known to 1e-6, entries of size 1 inherit that.
TOLERANCE = 5e-6


@jax.jit
def composed_and_inverted(a, b):
  return geometry.compose(a, b), geometry.invert(a)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000))
def test_composition_and_inverse_are_those_of_matrices(seed):
  """The laws of a group follow."""
  rng = np.random.RandomState(seed)
  a, b = random_pose(rng), random_pose(rng)
  composed, inverse = composed_and_inverted(a, b)
  np.testing.assert_allclose(composed, (square(a) @ square(b))[:2], atol=TOLERANCE)
  expected = np.linalg.inv(square(a))[:2]
  # A determinant of 0.09 is known to 1e-6 of the entries that it is a difference of.
  np.testing.assert_allclose(inverse, expected, atol=3e-5 * np.abs(expected).max())


def test_a_frame_follows_its_places():
  """Centre: their weighted mean. Scale: twice their spread. Absent places do not count."""
  rng = np.random.RandomState(0)
  places, presence = rng.uniform(-1, 1, (5, 2)), np.array([1.0, 0.5, 0.0, 0.2, 1.0])
  centre = np.average(places, axis=0, weights=presence)
  spread = np.sqrt(np.average(np.sum(np.square(places - centre), axis=1), weights=presence))
  expected = np.concatenate([2 * spread * np.eye(2), centre[:, None]], axis=1)
  frame_of = jax.jit(geometry.frame_of)
  np.testing.assert_allclose(frame_of(places, presence), expected, atol=TOLERANCE)
  places[2] = 7
  np.testing.assert_allclose(frame_of(places, presence), expected, atol=TOLERANCE)
  moved = frame_of(0.5 * places + [0.3, -0.2], presence)
  expected = 0.5 * expected + [[0, 0, 0.3], [0, 0, -0.2]]
  np.testing.assert_allclose(moved, expected, atol=TOLERANCE)
  # A single place, or none that is present, has the smallest frame.
  for weights in (np.eye(5)[1], np.zeros(5)):
    np.testing.assert_allclose(frame_of(places, weights)[:, :2], 0.05 * np.eye(2), rtol=1e-5)


def test_a_frame_of_parts_is_the_spread_of_their_squares():
  """Expected: from sampled points of the squares. The third part is absent."""
  rng = np.random.RandomState(0)
  poses = np.stack([random_pose(rng) for _ in range(4)])
  presence, frame_of = np.array([1.0, 0.5, 0.0, 0.2]), jax.jit(geometry.frame_of)
  in_square = rng.uniform(-1, 1, (200_000, 2))
  points = np.einsum("mij,pj->mpi", poses[..., :2], in_square) + poses[:, None, :, 2]
  centre = np.average(poses[..., 2], axis=0, weights=presence)
  squares = np.square(points - centre).sum(-1).mean(1)
  scale = 2 * np.sqrt(np.average(squares, weights=presence))
  frame = frame_of(poses[..., 2], presence, poses[..., :2])
  np.testing.assert_allclose(frame, np.c_[scale * np.eye(2), centre], rtol=0.01, atol=1e-6)


@jax.jit
@jax.vmap
def through_everything(raw):
  """A number that every function of a raw pose adds to, and its gradient."""

  def total(raw):
    affine, similarity = geometry.affine_matrix(raw), geometry.similarity_matrix(raw)
    inverses = geometry.invert(affine), geometry.invert(similarity)
    composed, turned = geometry.compose(affine, inverses[1]), geometry.rotation(raw[2])
    area = geometry.determinant(composed)
    return sum(jnp.sum(x) for x in (affine, similarity, *inverses, composed, turned, area))

  return jax.value_and_grad(total)(raw)


@pytest.mark.parametrize("largest", [1e4, 1e7, 3e38])
def test_extreme_numbers_are_finite(largest):
  extremes = np.array([-largest, -30.0, 0.0, 30.0, largest], np.float32)
  raws = np.concatenate([np.repeat(extremes[:, None], 6, axis=1), largest * np.eye(6)])
  raws = np.concatenate([raws, -largest * np.eye(6)]).astype(np.float32)
  chex.assert_tree_all_finite(through_everything(raws))


def test_whole_turns_leave_a_pose_unturned():
  """Also where float32 has no fractions; the gradient is that of no turn."""
  turns = np.array([0.0, 2.0**23, 2.0**23 + 1, -3e38, 3e38], np.float32)
  raws = np.tile(np.array([0.3, -0.2, 0, 0.1, 0.2, 0.3], np.float32), (5, 1))
  raws[:, 2] = turns
  for function in (geometry.affine_matrix, geometry.similarity_matrix):
    values = jax.jit(jax.vmap(function))(raws)
    gradients = jax.jit(jax.vmap(jax.jacobian(function)))(raws)
    assert np.abs(gradients[0, ..., 2]).max() > 1  # of the rotation
    for numbers in (values, gradients):
      # Of the same numbers; a compiler may treat some rows of a batch in another way than others.
      expected = np.broadcast_to(numbers[0], numbers.shape)
      np.testing.assert_allclose(numbers, expected, rtol=1e-6, atol=1e-6)


COLLAPSED = {
  "nothing is left": np.zeros((2, 3)),
  "nothing but a shift": np.array([[0, 0, 0.5], [0, 0, -0.5]]),
  "smaller than float32 inverts": np.array([[1e-20, 0, 0.5], [0, -1e-20, 0]]),
  "a line": np.array([[1, 1, 0.1], [1, 1, 0.2]]),
}


@jax.jit
def invert_with_gradient(pose):
  return geometry.invert(pose), jax.grad(lambda p: jnp.sum(geometry.invert(p)))(pose)


@pytest.mark.parametrize("case", COLLAPSED)
def test_inverse_of_a_collapsed_pose_is_finite(case):
  """A template that has shrunk to a point is not seen by pixels a tenth of an image away."""
  pose = jnp.asarray(COLLAPSED[case], jnp.float32)
  inverse, gradient = invert_with_gradient(pose)
  chex.assert_tree_all_finite((inverse, gradient))
  if case == "a line":
    return
  near = pose[None, :, 2] + jnp.array([[0.1, 0.0], [0.0, 0.1], [-0.1, 0.1]])
  seen = near @ inverse[:, :2].T + inverse[None, :, 2]
  assert (np.abs(seen).max(axis=1) > 10).all(), seen
