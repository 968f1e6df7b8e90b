"""Which capsules are on and whose the parts are, against what is made up here."""

import numpy as np
import pytest

from experiments.routing_use import measure_routing

BATCH, NONE = 40, 2


def test_parts_and_objects():
  """Five parts: always on and one object's; switched, and now one's, now the other's; never on; on
  in one image, and nobody's; on in one in twenty, and once each object's. Two objects: always
  there; there in every second image."""
  half = np.arange(BATCH) % 2
  part_presence = np.zeros((BATCH, 5), np.float32)
  part_presence[:, 0] = 0.9
  part_presence[:20, 1] = 0.8
  part_presence[3, 3] = 0.7
  part_presence[[4, 5], 4] = 0.7
  winner = np.zeros((BATCH, 5), np.int32)
  winner[:, 1] = np.where(np.arange(BATCH) < 14, 1, 0)
  winner[:, 2] = half  # of no consequence where it is off
  winner[:, 3] = NONE
  winner[5, 4] = 1
  object_presence = np.stack([np.full(BATCH, 0.6), 0.2 + 0.6 * half], axis=1).astype(np.float32)
  poses = np.zeros((BATCH, 2, 2, 3), np.float32)
  poses[:, 1, 0, 2] = 2 * half - 1.0
  record = measure_routing(part_presence, winner, object_presence, poses)

  owners = [(part["on"], part["commonest"], part["others"]) for part in record["parts"]]
  expected = [(1, 0, 0), (0.5, 1, 0.3), (0, None, None), (1 / 40, None, 0), (0.05, 0, 0.5)]
  for owner, (on, commonest, others) in zip(owners, expected, strict=True):
    assert owner == (
      pytest.approx(on),
      commonest,
      others if others is None else pytest.approx(others),
    )

  always, sometimes = record["objects"]
  expected = {"on": 1, "presence": 0.6, "presence_deviation": 0, "pose_deviation": 0}
  # The first part in every image, the second in six of twenty, the last in one.
  assert always == pytest.approx(expected | {"wins": 1 + 7 / 40}, abs=1e-6)
  expected = {"on": 0.5, "presence": 0.5, "presence_deviation": 0.3}
  # One of six entries, of which the variance is 1.
  expected |= {"pose_deviation": 6**-0.5, "wins": 15 / 40}
  assert sometimes == pytest.approx(expected, abs=1e-6)

  # One image in twenty is not more than a twentieth.
  assert record["switched"] == {"parts": 1, "objects": 1}
  assert record["routed"] == 1
