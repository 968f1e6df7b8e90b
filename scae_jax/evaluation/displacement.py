"""Accuracies on moved images by how far their ink is from the middle."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scae_jax.evaluation.tables import table

EDGES = (0, 4, 6, 8, 10, 12)  # pixels, of the ranges; the last one has no end


def moves_ink(dataset: str) -> bool:
  """Whether the images of a data set, by its name, are moved away from the middle."""
  return bool(re.match(r"affnist|affine_|translated_", dataset))


def ink_displacement(images: np.ndarray) -> np.ndarray:
  """How far the centre of the ink is from the middle of its image, pixels [n].

  `images` are [n, h, w, c], with ink above 0. It is the larger of the displacements down and to the
  right, without their sign; 0 of an image without ink.
  """
  ink = images.sum(axis=3, dtype=np.float64)
  amount = np.maximum(ink.sum(axis=(1, 2)), 1e-12)
  down, right = (
    ink.sum(axis=other) @ (np.arange(side) - (side - 1) / 2) / amount
    for other, side in ((2, ink.shape[1]), (1, ink.shape[2]))
  )
  return np.maximum(np.abs(down), np.abs(right))


def accuracies_by_displacement(
  images: np.ndarray, is_right: Mapping[str, np.ndarray]
) -> list[dict[str, Any]]:
  """An entry for each range of displacements that has images.

  `is_right` has, by the name of an accuracy, whether each image is named rightly, bool [n]. Entries
  have `from` and `to` in pixels (None without end), `examples`, and `accuracy` by name in [0, 1].
  """
  of_range = np.digitize(ink_displacement(images), EDGES[1:])
  entries = []
  for number, edges in enumerate(zip(EDGES, (*EDGES[1:], None), strict=True)):
    rows = of_range == number
    if rows.any():
      accuracy = {name: float(np.mean(right[rows])) for name, right in is_right.items()}
      entries.append(
        {"from": edges[0], "to": edges[1], "examples": int(rows.sum()), "accuracy": accuracy}
      )
  return entries


def displacement_table(entries: Sequence[Mapping[str, Any]]) -> str:
  """Markdown: a column for each range of displacements, accuracies in percent."""
  ranges = [
    f"{entry['from']} to {entry['to']}" if entry["to"] else f"over {entry['from']}"
    for entry in entries
  ]
  names = list(entries[0]["accuracy"])
  rows = [["examples", *(entry["examples"] for entry in entries)]]
  rows += [[name, *(100 * entry["accuracy"][name] for entry in entries)] for name in names]
  columns = {"ink from the middle, pixels": "", **dict.fromkeys(ranges, ".1f")}
  return table(columns, rows)
