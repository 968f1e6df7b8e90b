"""Photographs of writing as bright ink on a dark ground."""

import numpy as np
import pytest
from PIL import Image

from scae_jax.config import load_config, read_settings
from scae_jax.data.dataset import Dataset, Split, in_common_form
from scae_jax.data.image_files import Form
from scae_jax.data.ink import ink
from scae_jax.data.sources import load_data, load_dataset
from scae_jax.errors import RunError
from scae_jax.files import write_json
from scae_jax.library.inputs import ImageInput
from scae_jax.training.workdir import describe_data, read_image_facts

SIDE = 32


def written(ground, colour, noise: float = 0.0) -> np.ndarray:
  """A thick vertical stroke in the middle, float [1, 32, 32, 3]."""
  image = np.full((1, SIDE, SIDE, 3), ground, float)
  image[:, 6:26, 12:20] = colour
  image += noise * np.random.RandomState(0).randn(*image.shape)
  return np.clip(image, 0, 1)


STROKE = written(0, 1)[..., :1]


@pytest.mark.parametrize(
  ("ground", "colour"),
  [
    ((0.9, 0.9, 0.8), (0.1, 0.1, 0.5)),
    ((0.1, 0.2, 0.1), (0.9, 0.8, 0.7)),
    ((0.7, 0.2, 0.2), (0.2, 0.2, 0.7)),  # of nearly the same brightness
    ((0.50, 0.5, 0.5), (0.52, 0.5, 0.5)),
  ],
)
def test_ink_is_bright_whatever_its_colour(ground, colour):
  for noise in (0.0, 0.1 * np.abs(np.subtract(ground, colour)).max()):
    places = ink(written(ground, colour, noise))
    assert places[STROKE == 1].mean() > 0.85
    assert places[STROKE == 0].mean() < 0.15


@pytest.mark.parametrize("colour", [0.2, 0.8])
def test_a_thin_stroke_is_ink_wherever_it_is(colour):
  images = np.full((SIDE - 3, SIDE, SIDE, 3), 0.5)
  for column, image in enumerate(images):
    image[4:28, column : column + 3] = colour
  for column, places in enumerate(ink(images)[..., 0]):
    assert places[6:26, column : column + 3].min() > 0.8
    assert np.delete(places, np.s_[column : column + 3], axis=1).max() < 0.2


def test_uneven_light_is_taken_away():
  light = np.linspace(0, 1, SIDE)[:, None, None]
  shaded, even = ink(0.5 * written(0, 1) + light * 0.5), ink(written(0, 1))
  assert np.corrcoef(shaded.ravel(), STROKE.ravel())[0, 1] > 0.9
  assert np.abs(shaded - even).mean() < 0.1


def test_single_pixels_do_not_set_the_contrast():
  image = written((0.4, 0.4, 0.4), (0.6, 0.6, 0.6))
  image[0, 0, 0], image[0, 31, 31] = 1, 0
  assert ink(image)[STROKE == 1].mean() > 0.85


def test_changes_of_contrast_and_polarity_change_nothing():
  rng = np.random.RandomState(1)
  images = rng.rand(4, SIDE, SIDE, 3)
  images[:, 6:26, 12:20] += 1
  images /= 2
  expected = ink(images)
  assert expected.min() == 0
  assert expected.max() == 1
  mixing = np.linalg.qr(rng.randn(3, 3))[0]  # turns hues
  for changed in (0.2 + 0.5 * images, 1 - images, 0.5 + 0.3 * images @ mixing):
    np.testing.assert_allclose(ink(changed), expected, atol=1e-9)


def test_ink_keeps_the_type_and_takes_grey_images():
  images = (255 * written((0.9, 0.9, 0.8), (0.2, 0.1, 0.5), noise=0.1)).astype(np.uint8)
  of_bytes, of_floats = ink(images), ink((images / 255).astype(np.float32))
  assert (of_bytes.dtype, of_floats.dtype) == (np.uint8, np.float32)
  assert of_bytes.shape == of_floats.shape == (1, SIDE, SIDE, 1)
  np.testing.assert_allclose(of_bytes / 255, of_floats, atol=1 / 255)
  np.testing.assert_array_equal(ink(255 - images[..., :1]), ink(images[..., :1]))
  assert not ink(np.full((2, 5, 7, 3), 77, np.uint8)).any()
  assert not ink(np.zeros((0, 5, 7, 3))).size


def data_options(**changes):
  config = load_config("configs/svhn.py:modern").to_dict()
  config["data"] |= {"name": "written", "ink": True} | changes
  return read_settings(config).data


def test_training_and_own_images_become_ink_once():
  random = np.random.RandomState(0)
  images = random.randint(0, 256, (6, 16, 20, 3)).astype(np.uint8)
  split = Split(images, np.arange(6, dtype=np.int32) % 2)
  dataset = Dataset("written", ("a", "b"), {"train": split, "test": split})
  options = data_options(resize=16, middle=(12, 10))
  trained, _ = load_data(options, dataset)
  kept = in_common_form(dataset, Form(side=16)).splits["test"].images[:, 2:14, 3:13]
  expected = ink(kept)
  np.testing.assert_array_equal(trained.splits["train"].images, expected)
  of_users = ImageInput(options, 1, (12, 10))
  np.testing.assert_array_equal(of_users.check(images, None, resize=True)["image"], expected)
  np.testing.assert_array_equal(of_users.check(kept, None, resize=False)["image"], expected)
  assert str(options.form) == "-16-crop-12x10-ink2"
  with pytest.raises(ValueError, match=r"config\.data\.middle.*16x20"):
    load_data(data_options(middle=(8, 30)), dataset)
  with pytest.raises(RunError, match=r"config\.data\.middle"):
    data_options(middle=(8,))


def test_images_of_another_size_are_scaled_before_their_middle_is_cut(tmp_path):
  """To the size that training images had before; without `resize`, large ones are refused."""
  images = np.zeros((2, 16, 20, 3), np.uint8)
  images[:, 4:12, 9:12] = 255
  split = Split(images, np.arange(2, dtype=np.int32))
  dataset = Dataset("written", ("a", "b"), {"train": split, "test": split})
  options = data_options(middle=(12, 10))
  trained, _ = load_data(options, dataset)
  write_json(tmp_path / "data.json", describe_data(trained))
  spec, _, side = read_image_facts(tmp_path, options)
  assert (spec.channels, side) == (1, (16, 20))
  of_users = ImageInput(options, spec.channels, side)
  np.testing.assert_array_equal(
    of_users.check(images, None, resize=False)["image"], trained.splits["test"].images
  )
  larger = images.repeat(3, axis=1).repeat(3, axis=2)
  scaled = of_users.check(larger, None, resize=True)["image"]
  expected = ink(images[:, 2:14, 5:15] / 255)
  assert scaled.shape == expected.shape
  assert np.abs(scaled - expected).mean() < 0.05
  with pytest.raises(ValueError, match=r"48x60.*resize"):
    of_users.check(larger, None, resize=False)


@pytest.mark.parametrize("channels", [1, 3])
def test_sets_of_files_know_their_size_before_the_middle_is_cut(tmp_path, channels):
  for name in ("train/a", "train/b", "test/a", "test/b"):
    (tmp_path / "set" / name).mkdir(parents=True)
    pixels = np.random.RandomState(0).randint(0, 256, (16, 20, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "set" / name / "1.png")
  for side, expected in ((0, (16, 20)), (14, (14, 14))):
    form = Form(side=side, channels=channels, middle=(12, 10))
    for _ in range(2):  # decoded, then from the cache
      dataset = load_dataset("folder", str(tmp_path / "set"), str(tmp_path / "cache"), form)
      assert dataset.cropped_from == expected
      assert dataset.image_shape == (12, 10, channels)


def test_ink_has_one_channel():
  with pytest.raises(RunError, match=r"config\.data\.ink"):
    data_options(channels=3)
  with pytest.raises(ValueError, match=r"config\.data\.ink"):
    ink(np.zeros((1, 8, 8, 2), np.uint8))
