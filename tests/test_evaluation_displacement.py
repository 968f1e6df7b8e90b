"""Accuracies by how far the ink is from the middle."""

import numpy as np

from scae_jax.evaluation.displacement import (
  accuracies_by_displacement,
  displacement_table,
  ink_displacement,
  moves_ink,
)


def dots(*places: tuple[int, int], side: int = 41) -> np.ndarray:
  """Images with one bright pixel each, (down, right) of the middle."""
  images = np.zeros((len(places), side, side, 2), np.uint8)
  for image, (down, right) in zip(images, places, strict=True):
    image[side // 2 + down, side // 2 + right] = 200
  return images


def test_displacement_is_that_of_the_centre_in_the_larger_direction():
  images = dots((0, 0), (3, -5), (-7, 2), (1, 1))
  images[0, 20, 24] = 200  # a second dot
  images[3] = 0
  np.testing.assert_allclose(ink_displacement(images), [2, 5, 7, 0], atol=1e-12)
  even = np.zeros((1, 4, 6, 1))
  even[0, 1, 5] = 0.5  # the middle is between pixels
  np.testing.assert_allclose(ink_displacement(even), [2.5])


def test_accuracy_of_each_range_that_has_images():
  images = dots((0, 3), (0, 4), (5, 0), (0, -12), (15, 0))
  right = {"LIN-MATCH": np.array([1, 1, 0, 0, 1], bool), "LIN-PRED": np.ones(5, bool)}
  entries = accuracies_by_displacement(images, right)
  ranges = [(entry["from"], entry["to"], entry["examples"]) for entry in entries]
  assert ranges == [(0, 4, 1), (4, 6, 2), (12, None, 2)]
  assert [entry["accuracy"]["LIN-MATCH"] for entry in entries] == [1, 0.5, 0.5]
  assert [entry["accuracy"]["LIN-PRED"] for entry in entries] == [1, 1, 1]
  lines = displacement_table(entries).splitlines()
  assert lines[2:4] == ["| examples | 1 | 2 | 2 |", "| LIN-MATCH | 100.0 | 50.0 | 50.0 |"]


def test_data_sets_whose_ink_is_moved():
  assert all(map(moves_ink, ("affnist", "affine_mnist", "translated_digits:3")))
  assert not any(map(moves_ink, ("rotated_mnist:35", "mnist", "folder")))
