"""A real prepared TFDS set, where it is at hand."""

import numpy as np
import pytest

from scae_jax.data.sources import load_dataset


@pytest.mark.slow
def test_mnist(tfds_dir, tmp_path):
  """Literal facts about the published files: the sizes of classes, and the mean of all pixels."""
  dataset = load_dataset("mnist", tfds_dir, str(tmp_path))
  assert dataset.image_shape == (28, 28, 1)
  assert dataset.class_names == tuple("0123456789")
  train, test = dataset.splits["train"], dataset.splits["test"]
  sizes = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
  assert np.bincount(train.labels).tolist() == sizes
  sizes = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
  assert np.bincount(test.labels).tolist() == sizes
  assert abs(train.images.mean() / 255 - 0.1307) < 1e-4
