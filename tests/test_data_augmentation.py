"""Rotations, crops and jitter of training images, against loops and the host's resampling."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scae_jax.data import affine
from scae_jax.data.augmentation import (
  centre_on_canvas,
  jitter,
  random_crop,
  random_shifts,
  rotate,
  shift_on_canvas,
  to_unit_range,
)
from scae_jax.data.batches import training_batch
from tests.toy_data import assert_uniform, random_images, training_images
from tests.toy_system import augmentation

HALF_A_BYTE = 0.5 / 255  # what the host's rounding changes at most
FLOATS = 1e-4  # positions in float32: 1e-6 of a pixel times differences of up to 1, with room


def on_the_host(images: np.ndarray, degrees: np.ndarray, shifts: np.ndarray, canvas: int):
  maps = affine.place(affine.rotation(degrees), shifts, images.shape[1:], canvas)
  return affine.resample(images, maps, canvas) / 255


@pytest.mark.parametrize(("height", "width", "canvas"), [(5, 4, 9), (4, 5, 5)])
def test_turns_are_those_of_the_host(height, width, canvas):
  degrees = np.array([0.0, 90.0, -90.0, 180.0, 35.0, -7.3, 133.0, 360.0])
  images = random_images(len(degrees), height, width)
  middle = (canvas - height) // 2 + (height - 1) / 2, (canvas - width) // 2 + (width - 1) / 2
  padded = to_unit_range(centre_on_canvas(jnp.asarray(images), canvas))
  actual = jax.jit(lambda x: rotate(x, jnp.asarray(degrees, jnp.float32), middle))(padded)
  expected = on_the_host(images, degrees, np.zeros((len(degrees), 2)), canvas)
  np.testing.assert_allclose(actual, expected, rtol=0, atol=HALF_A_BYTE + FLOATS)
  np.testing.assert_allclose(actual[0], padded[0], atol=1e-6)  # by cosines and sines of 0


def test_every_image_turns_by_its_own_angle_and_then_shifts():
  """Each result is that of one of 3,159 maps on the host, which tells its angle and its shifts."""
  num_images, canvas, limit = 60, 10, 30.0
  image = random_images(1, 5, 4, 1, seed=1)
  images = np.repeat(image, num_images, axis=0)
  made = training_images(images, canvas, 4, max_shift=1, max_rotation=limit)
  grid = np.meshgrid(np.arange(-35, 35.01, 0.2), (-1, 0, 1), (-1, 0, 1), indexing="ij")
  angles, right, down = (axis.reshape(-1) for axis in grid)
  tried = np.repeat(image, len(angles), axis=0)
  known = on_the_host(tried, angles, np.stack([right, down], axis=1), canvas)
  errors = np.abs(made[:, None] - known[None]).max(axis=(2, 3, 4))
  best = errors.argmin(axis=1)
  # 0.1 degrees, three pixels from the middle: 0.005 pixels along two axes.
  assert errors.min(axis=1).max() < HALF_A_BYTE + 0.011
  found = angles[best]
  assert_uniform(found, -limit, limit)
  assert len(set(zip(right[best], down[best], strict=True))) == 9
  assert abs(np.corrcoef(found, right[best])[0, 1]) < 0.4  # three deviations of 60 pairs


def test_crops_are_windows_at_every_place():
  num_images, side = 300, 3
  images = random_images(num_images, 5, 4)
  crops = random_crop(jax.random.key(2), jnp.asarray(images, jnp.float32), side)
  places = []
  for image, crop in zip(images, np.asarray(crops), strict=True):
    places += [
      (top, left)
      for top in range(3)
      for left in range(2)
      if np.array_equal(image[top : top + side, left : left + side], crop)
    ]
  assert len(places) == num_images  # one each: 27 random bytes do not recur
  counts = [places.count((top, left)) for top in range(3) for left in range(2)]
  # 50 are expected, with a deviation of 6.5.
  assert min(counts) > 25


def test_jitter_is_a_line_through_the_mean_of_each_image():
  """Grey values near the middle are never clipped: a fit of the result to the image tells both."""
  images = 0.45 + random_images(400, 5, 4) / 2550  # in [0.45, 0.55]
  made = jitter(jax.random.key(3), jnp.asarray(images, jnp.float32), brightness=0.2, contrast=0.5)
  factors, added = [], []
  for image, changed in zip(
    images.reshape(400, -1), np.asarray(made).reshape(400, -1), strict=True
  ):
    factor, offset = np.polyfit(image, changed, 1)
    np.testing.assert_allclose(changed, factor * image + offset, atol=1e-5)
    factors.append(factor)
    added.append(factor * image.mean() + offset - image.mean())
  assert_uniform(factors, 0.5, 1.5)
  assert_uniform(added, -0.2, 0.2)
  assert abs(np.corrcoef(factors, added)[0, 1]) < 0.2  # four deviations


def test_jittered_pixels_of_a_batch_are_clipped_where_they_leave_the_range():
  images = np.tile([0, 102, 255], (50, 3, 1)).reshape(50, 3, 3, 1).astype(np.uint8)
  made = training_images(images, 3, brightness=0.4)[:, 0, :, 0]
  added = made[:, 1] - 0.4
  expected = np.stack([np.maximum(added, 0), 0.4 + added, np.minimum(1 + added, 1)], axis=1)
  np.testing.assert_allclose(made, expected, atol=1e-6)
  assert min(added) < 0 < max(added)


def test_a_batch_is_cropped_jittered_turned_and_put_on_the_canvas():
  """White images: what is cut out of one is a square of 4 on black, turned about its middle."""
  images = np.full((3, 8, 7, 1), 255, np.uint8)
  square = np.zeros((3, 10, 10, 1), np.float32)
  square[:, 3:7, 3:7] = 1
  np.testing.assert_array_equal(training_images(images, 10, crop=4), square)
  jittered = training_images(images, 10, crop=4, brightness=0.5, contrast=0.5)
  inside = jittered[:, 3:7, 3:7]
  assert np.ptp(inside, axis=(1, 2, 3)).max() < 1e-6  # one grey, which is not clipped away from 1
  assert inside.min() < 0.95
  # The canvas around stays black: it is not of the image.
  np.testing.assert_array_equal(jittered == 0, square == 0)
  turned = training_images(images, 10, crop=4, max_rotation=45.0)
  assert np.abs(turned - square).max() > 0.3
  # Corners that leave the square are not lost. Bilinear sampling keeps ink to a few percent.
  np.testing.assert_allclose(turned.sum(axis=(1, 2, 3)), 16, rtol=0.06)
  np.testing.assert_allclose(turned, turned[:, ::-1, ::-1], atol=1e-5)  # about its middle


def test_what_is_off_is_not_in_the_program():
  """A run without these options is, bit for bit, what it was before there were any."""
  split = {"image": jnp.zeros((6, 4, 3, 1), jnp.uint8), "label": jnp.zeros(6, jnp.int32)}

  def now(key, split, indices):
    return training_batch(key, split, indices, augmentation(6, max_shift=2))

  def before(key, split, indices):
    image = centre_on_canvas(split["image"][indices], 6, border=2)
    image = to_unit_range(shift_on_canvas(image, random_shifts(key, len(indices), 2), 6))
    return {"image": image, "label": split["label"][indices]}

  programs = [
    str(jax.make_jaxpr(make)(jax.random.key(0), split, jnp.arange(3))) for make in (now, before)
  ]
  assert programs[0] == programs[1]
