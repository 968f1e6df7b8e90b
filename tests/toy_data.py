"""Small data sets: random images, their batches, files of affNIST, and scenes of points."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.io
from scipy import stats

from scae_jax.data.constellations import Scenes
from scae_jax.data.dataset import Dataset, Split
from scae_jax.data.feed import Feed
from tests.toy_system import feed_of


def random_images(num=5, height=4, width=3, channels=3, *, low=0, seed=0) -> np.ndarray:
  values = np.random.RandomState(seed).randint(low, 256, (num, height, width, channels))
  return values.astype(np.uint8)


def dataset_of(train: np.ndarray, test: np.ndarray | None = None, labels=None, **more) -> Dataset:
  """The set "toy" of classes a, b, ...; without labels, image i is of class i."""
  splits = {"train": train, "test": train if test is None else test, **more}
  longest = max(map(len, splits.values()))
  labels = np.arange(longest) if labels is None else np.asarray(labels, int)
  names = tuple("abcdefghijklmnopqrstuvwxyz"[: labels.max() + 1])
  made_splits = {
    name: Split(images, labels[: len(images)].astype(np.int32)) for name, images in splits.items()
  }
  return Dataset("toy", names, made_splits)


def assert_uniform(values, low, high):
  """Kolmogorov-Smirnov; a range that is wrong by 5 % gives a p-value below 1e-3."""
  room = 2e-4 * (high - low)  # of what is found from float32 and by fits
  assert low - room <= np.min(values) <= np.max(values) <= high + room
  assert stats.kstest(values, "uniform", (low, high - low)).pvalue > 1e-3


def on_device(arrays) -> dict[str, jax.Array]:
  return {name: jnp.asarray(array) for name, array in arrays.items()}


def feed_batch(feed: Feed, rows, seed=0) -> dict[str, np.ndarray]:
  """A training batch of these examples, as NumPy."""
  make = jax.jit(feed.training_batch)
  return jax.device_get(make(jax.random.key(seed), on_device(feed.train), jnp.asarray(rows)))


def heldout_batch(feed: Feed, rows) -> dict[str, np.ndarray]:
  """The batch of these held-out examples, as NumPy."""
  return jax.device_get(jax.jit(feed.evaluation_batch)(on_device(feed.heldout), jnp.asarray(rows)))


def training_images(images: np.ndarray, canvas: int, seed=0, **options) -> np.ndarray:
  """Each image once, as training sees it."""
  data = dataset_of(images, labels=np.zeros(len(images)))
  return feed_batch(feed_of(data, canvas, **options), np.arange(len(images)), seed)["image"]


def write_affnist(path, images, labels, *, column_order=False, compress=True, **changes):
  """One official file: a struct of `image` uint8 [1600, n], `label_int` [1, n] and others."""
  path.parent.mkdir(parents=True, exist_ok=True)
  rows = images[..., 0].transpose(0, 2, 1) if column_order else images[..., 0]
  fields = {
    "human_readable_transform": np.zeros((7, len(images))),
    "image": rows.reshape(len(images), -1).T,
    "label_int": labels[None].astype(np.uint8),
    "label_one_of_n": np.eye(10, dtype=np.uint8)[:, labels],
  }
  fields = {name: value for name, value in (fields | changes).items() if value is not None}
  scipy.io.savemat(path, {"affNISTdata": fields}, do_compression=compress)


# Constellations as published, without jitter.
SCENES = Scenes(
  patterns=("square", "triangle", "square"),
  presence_prob=0.5,
  max_rotation=90.0,
  min_scale=1.0,
  max_scale=4.0,
  field=24.0,
  jitter=0.0,
  num_points=0,
)
