"""The real prepared MNIST, where it is at hand."""

import numpy as np
import pytest

from scae_jax.data.sources import load_dataset


@pytest.mark.slow
def test_mnist(tfds_dir, tmp_path):
  """Literal facts about the published files; reading and caching: test_data_tfds.py."""
  dataset = load_dataset("mnist", tfds_dir, str(tmp_path))
  assert dataset.image_shape == (28, 28, 1)
  assert dataset.class_names == tuple("0123456789")
  train, test = dataset.splits["train"], dataset.splits["test"]
  assert len(train.images) == 60_000
  sizes = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
  assert np.bincount(test.labels).tolist() == sizes
  assert abs(train.images.mean() / 255 - 0.1307) < 1e-4
  (path,) = tmp_path.iterdir()
  assert path.stat().st_size < 12e6
