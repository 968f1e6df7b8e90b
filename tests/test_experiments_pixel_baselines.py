"""Clusters and linear classifiers of pixels and of edges."""

import json

import numpy as np
import pytest

from experiments import pixel_baselines
from scae_jax.data.dataset import Dataset, Split


def squares(count: int, seed: int) -> Split:
  """Squares on a grey ground, light in class 0 and dark in class 1."""
  rng = np.random.RandomState(seed)
  labels = (np.arange(count) % 2).astype(np.int32)
  images = np.full((count, 8, 8, 1), 120) + rng.randint(0, 9, (count, 8, 8, 1))
  images[:, 2:6, 2:6] += np.where(labels, -80, 80)[:, None, None, None]
  return Split(images.astype(np.uint8), labels)


def test_edges_do_not_tell_dark_from_light():
  dataset = Dataset("squares", ("a", "b"), {"train": squares(60, 0), "test": squares(40, 1)})
  entries = pixel_baselines.baselines(dataset, "test")
  assert entries["pixels"]["lin_match"] == entries["pixels"]["lin_pred"] == 1
  assert entries["Sobel edges"]["lin_match"] == pytest.approx(0.5, abs=0.2)


def test_the_command_writes_what_it_measures(tmp_path, monkeypatch, capsys):
  arguments = ["pixel_baselines", str(tmp_path), "--config.data.ink=True"]
  monkeypatch.setattr("sys.argv", arguments)
  pixel_baselines.main()
  record = json.loads((tmp_path / "baselines-digits-ink.json").read_text())
  assert record["scored_on"]["examples"] == 360
  assert 0.5 < record["features"]["pixels"]["lin_match"] < 0.9
  line = capsys.readouterr().out.splitlines()[-2]
  assert line.startswith(f"| pixels | {100 * record['features']['pixels']['lin_match']:.1f} |")
