"""The upper layer alone, on parts that are known."""

import json
import sys

import numpy as np

from experiments import known_scenes, object_layer


def test_parts_are_known_as_they_were_drawn():
  """On or off for certain; those that are off, and two that always are, are all alike."""
  known, there = object_layer.known_parts(0, 50)
  on = np.asarray(known.presence_logits) > 0
  assert on.shape == (50, len(known_scenes.GLYPHS) + object_layer.IDLE)
  assert not on[:, -object_layer.IDLE :].any()
  np.testing.assert_array_equal(np.abs(known.presence_logits), object_layer.KNOWN)
  # Each object's two parts are there with it, nearly always.
  own = on[:, : len(known_scenes.GLYPHS)].reshape(50, 3, 2).mean(axis=2)
  assert np.mean((own > 0.5) == there) > 0.9
  off = np.asarray(known.poses)[~on]
  assert np.ptp(off, axis=0).max() == 0
  assert np.ptp(np.asarray(known.poses)[on], axis=0).max() > 0.1
  assert known.pose_scales is None


def test_rows_are_written(monkeypatch, tmp_path, capsys):
  monkeypatch.setattr(object_layer, "ROWS", (("summed_out", 0.25, 2.0),))
  monkeypatch.setattr(object_layer, "NUM_SCENES", {"train": 64, "test": 32})
  file = tmp_path / "new" / "rows.json"
  monkeypatch.setattr(sys, "argv", ["object_layer", str(file), "--seeds=2", "--num_steps=3"])
  object_layer.main()
  assert "summed_out, temperature 0.25, affinities below 2.0" in capsys.readouterr().out
  record = json.loads(file.read_text())
  [row] = record["rows"]
  found = [row[name] for name in ("off_poses", "upper_temperature", "max_affinity")]
  assert found == ["summed_out", 0.25, 2.0]
  assert len(row["right"]) == 2
  assert all(0.3 < share < 0.8 for share in row["right"])  # untrained
  assert "jax" in record["versions"]
