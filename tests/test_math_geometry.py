"""Poses against NumPy: formulas, group laws, extremes."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scae_jax import geometry
from tests.references import affine_reference, similarity_reference, square

# float32 has 24 bits: an angle of up to 4 pi is known to 1e-6, entries of size 1 inherit that.
TOLERANCE = 5e-6


@pytest.fixture(scope="module")
def raws():
  return np.random.RandomState(0).normal(0, 0.7, (40, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def poses(raws):
  return jax.jit(jax.vmap(geometry.affine_matrix))(raws)


@pytest.mark.parametrize(
  ("function", "reference"),
  [(geometry.affine_matrix, affine_reference), (geometry.similarity_matrix, similarity_reference)],
)
def test_pose_formula(function, reference, raws):
  actual = jax.jit(jax.vmap(function))(raws)
  np.testing.assert_allclose(actual, [reference(r) for r in raws], atol=TOLERANCE)


def test_composition_is_the_matrix_product(poses):
  outer, inner = poses[:20], poses[20:]
  actual = jax.jit(jax.vmap(geometry.compose))(outer, inner)
  expected = [(square(a) @ square(b))[:2] for a, b in zip(outer, inner, strict=True)]
  np.testing.assert_allclose(actual, expected, atol=TOLERANCE)


def test_inverse_is_the_matrix_inverse(poses):
  actual = jax.jit(jax.vmap(geometry.invert))(poses)
  for pose, inverse in zip(poses, actual, strict=True):
    expected = np.linalg.inv(square(pose))[:2]
    # Scales of 0.2 to 0.9 give inverses of size 10, and a determinant of 0.05 loses a digit.
    np.testing.assert_allclose(inverse, expected, atol=3e-5 * np.abs(expected).max())


turns, shifts = st.floats(-1, 1), st.floats(-1, 1)
scales = st.floats(0.4, 1.0)
pose_numbers = st.tuples(scales, scales, turns, shifts, shifts, shifts)


def well_conditioned(numbers):
  """A pose whose scales, turn, shear and shifts are these, not squashed."""
  sx, sy, theta, shear, tx, ty = numbers
  c, s = np.cos(2 * np.pi * theta), np.sin(2 * np.pi * theta)
  linear = np.array([[sx, shear], [0, sy]]) @ np.array([[c, -s], [s, c]])
  return jnp.asarray(np.column_stack([linear, [tx, ty]]), jnp.float32)


@jax.jit
def laws(a, b, c):
  """Pairs that the laws of a group make equal."""
  compose, invert = geometry.compose, geometry.invert
  identity = jnp.eye(2, 3)
  return {
    "associativity": (compose(a, compose(b, c)), compose(compose(a, b), c)),
    "left identity": (compose(identity, a), a),
    "right identity": (compose(a, identity), a),
    "left inverse": (compose(invert(a), a), identity),
    "right inverse": (compose(a, invert(a)), identity),
    "inverse of a product": (invert(compose(a, b)), compose(invert(b), invert(a))),
  }


@settings(max_examples=60, deadline=None, derandomize=True)
@given(pose_numbers, pose_numbers, pose_numbers)
def test_group_laws(a, b, c):
  for law, (left, right) in laws(*map(well_conditioned, (a, b, c))).items():
    # The inverse of a product has entries of up to 60, from a determinant of 0.03 that is known
    # to 1e-6 of the entries it is a difference of.
    np.testing.assert_allclose(left, right, atol=2e-5, rtol=2e-4, err_msg=law)


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


def test_numbers_of_turns_that_are_whole_turn_nothing():
  """Where float32 has no fractions any more; the gradient is that of no turn."""
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
  """Without area it throws points out of the template: a template that has shrunk to a point is not
  seen by pixels a tenth of an image away."""
  pose = jnp.asarray(COLLAPSED[case], jnp.float32)
  inverse, gradient = invert_with_gradient(pose)
  chex.assert_tree_all_finite((inverse, gradient))
  if case == "a line":
    return
  near = pose[None, :, 2] + jnp.array([[0.1, 0.0], [0.0, 0.1], [-0.1, 0.1]])
  seen = near @ inverse[:, :2].T + inverse[None, :, 2]
  assert (np.abs(seen).max(axis=1) > 10).all(), seen
