"""Objects when the poses of their parts alone are moved: motions, and which objects stay right."""

from collections.abc import Callable

import numpy as np

from scae_jax.data import affine
from scae_jax.models.system import Encoding


def motions(family: str, size: float) -> np.ndarray:
  """The motions of a family and size: four directions, two rotations, one scaling.

  Maps [n, 2, 3] of points (x, y) around an image's middle, pixels.
  """
  if family == "translation":
    shifts = size * np.array([(1, 0), (-1, 0), (0, 1), (0, -1)], float)
    return np.concatenate([np.broadcast_to(np.eye(2), (4, 2, 2)), shifts[..., None]], axis=2)
  linear = size * np.eye(2)[None]
  if family == "rotation":
    linear = affine.rotation(np.array([size, -size]))
  return np.pad(linear, ((0, 0), (0, 0), (0, 1)))


def named_by_images(encoding: Encoding, labels: np.ndarray) -> np.ndarray:
  """The most frequent label of the images that each object wins, int [k]; -1 if it wins none."""
  mass = np.asarray(encoding.posterior_mass)
  winner = np.argmax(mass, axis=1)
  counts = np.zeros((mass.shape[1], labels.max() + 1), int)
  np.add.at(counts, (winner, labels), 1)
  return np.where(counts.any(axis=1), counts.argmax(axis=1), -1)


def right_winners(
  encoding: Encoding, labels: np.ndarray, label_of_object: np.ndarray
) -> np.ndarray:
  """Whether the object with the largest mass is named by the label of its image, bool [n]."""
  return label_of_object[np.argmax(np.asarray(encoding.posterior_mass), axis=1)] == labels


def right_when_parts_move(
  encode: Callable[..., Encoding],
  labels: np.ndarray,
  label_of_object: np.ndarray,
  family: str,
  size: float,
  canvas: int,
) -> float:
  """`right_winners` after all poses of the parts are moved exactly, mean over images and motions.

  `encode(part_map=...)` encodes the images as they are, with the poses of their parts mapped.
  """
  right = [
    right_winners(encode(part_map=pose_motion(motion, canvas)), labels, label_of_object)
    for motion in motions(family, size)
  ]
  return float(np.mean(right))


def pose_motion(motion: np.ndarray, canvas: int) -> np.ndarray:
  """A motion in pixels in the coordinates of poses: the first pixel is at -1, the last at 1."""
  return np.column_stack([motion[:, :2], motion[:, 2] * 2 / (canvas - 1)])
