"""The order of examples and the batches of images, against loops and the host's resampling."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from scae_jax.data import affine, batches
from scae_jax.data.augmentation import (
  Motion,
  centre_on_canvas,
  move,
  random_shifts,
  shift_on_canvas,
  to_unit_range,
)
from scae_jax.models.system import ImageSpec
from tests.toy_data import (
  assert_uniform,
  dataset_of,
  feed_batch,
  heldout_batch,
  random_images,
  training_images,
)
from tests.toy_system import data_options, feed_of

HALF_A_BYTE = 0.5 / 255  # what the host's rounding changes at most
FLOATS = 1e-4  # positions in float32: 1e-6 of a pixel times differences of up to 1, with room


@pytest.mark.parametrize("batch_size", [1, 3, 20])
def test_every_epoch_is_a_permutation_of_its_own(batch_size):
  """Resumed runs: test_training_step.py."""
  # A multiple of the epoch for every batch size.
  sizes = {"num_steps": 14, "batch_size": batch_size, "num_examples": 7}
  key = jax.random.key(3)
  sequence = jax.jit(lambda: batches.example_order(key, 0, 0, **sizes))().reshape(-1, 7)
  for epoch, indices in enumerate(sequence):
    expected = jax.random.permutation(jax.random.fold_in(key, epoch), 7)
    np.testing.assert_array_equal(indices, expected)
  # Of 7! orders, all equal would be a bug, not chance.
  assert len(np.unique(sequence, axis=0)) > 1


def test_a_dispatch_computes_few_permutations():
  """Sorting is what a permutation costs: its count must not grow with the steps of an epoch."""

  def sorted_elements(num_steps):
    sizes = {"num_steps": num_steps, "batch_size": 1, "num_examples": 100}
    made = jax.make_jaxpr(lambda key: batches.example_order(key, 0, 0, **sizes))(jax.random.key(0))
    return str(made).count("[2,100]")

  assert sorted_elements(1) == sorted_elements(100) > 0


def shifted_by_numpy(image: np.ndarray, canvas: int, down: int, right: int) -> np.ndarray:
  """Pads far enough that np.roll brings nothing back in, rolls, and cuts the canvas out."""
  height, width, _ = image.shape
  top, left = (canvas - height) // 2, (canvas - width) // 2
  far = canvas
  wide = np.zeros((canvas + 2 * far, canvas + 2 * far, image.shape[2]), image.dtype)
  wide[far + top : far + top + height, far + left : far + left + width] = image
  rolled = np.roll(wide, (down, right), axis=(0, 1))
  return rolled[far : far + canvas, far : far + canvas]


def test_random_places_are_all_where_the_ink_fits():
  """A narrow image may move further than a wide one; black and full-size images stay."""
  images = np.zeros((4, 6, 6, 1), np.uint8)
  images[0, 1:5, 3, 0] = [3, 5, 7, 9]  # four rows, one column
  images[1, 2:4, 1:6, 0] = 1  # two rows, five columns
  images[2] = 1
  canvas, copies = 8, 1000
  placed = training_images(np.repeat(images, copies, axis=0), canvas, 1, random_place=True)
  placed = np.round(placed * 255).astype(int).reshape(4, copies, canvas, canvas)
  for image, copies_of_image in zip(images[..., 0].astype(int), placed, strict=True):
    rows, columns = (np.flatnonzero(image.any(axis=axis)) for axis in (1, 0))
    ink = image[np.ix_(rows, columns)] if rows.size else np.zeros((canvas, canvas), int)
    height, width = ink.shape
    places = Counter()
    for copy in copies_of_image:
      top, left = (int(np.argmax(copy.any(axis=axis))) for axis in (1, 0))
      np.testing.assert_array_equal(copy[top : top + height, left : left + width], ink)
      assert copy.sum() == ink.sum()
      places[top, left] += 1
    num_places = (canvas - height + 1) * (canvas - width + 1)
    assert len(places) == num_places
    assert num_places == 1 or scipy.stats.chisquare([*places.values()]).pvalue > 1e-3


def test_moved_images_lose_nothing_at_a_random_place():
  """Places are drawn after rotations, stretches and shears."""
  images = np.zeros((500, 8, 8, 1), np.uint8)
  images[:, 2:6, 3:5] = 200
  changes = {"max_rotation": 180.0, "max_stretch": 0.2, "max_shear": 0.2}
  whole = training_images(images, 16, 2, max_shift=0, **changes)
  placed = training_images(images, 16, 2, random_place=True, **changes)
  np.testing.assert_allclose(placed.sum(axis=(1, 2, 3)), whole.sum(axis=(1, 2, 3)), rtol=1e-5)
  assert len({tuple(np.argwhere(image)[0]) for image in placed}) > 50


@pytest.mark.parametrize("max_shift", [1, 3])
def test_shift_is_a_roll_of_each_image(max_shift):
  """With shifts up to 3 on a canvas of 6 some ink leaves, and none may come back."""
  images, canvas = random_images(200, low=1), 6
  shifted = training_images(images, canvas, 1, max_shift=max_shift)
  span = range(-max_shift, max_shift + 1)
  seen = []
  for image, actual in zip(images, np.round(shifted * 255), strict=True):
    matches = [
      (down, right)
      for down in span
      for right in span
      if np.array_equal(shifted_by_numpy(image, canvas, down, right), actual)
    ]
    assert len(matches) == 1
    seen += matches
  downs, rights = np.transpose(seen)
  # 200 draws miss one of at most 7 values with probability below 1e-9.
  assert set(downs) == set(rights) == set(span)
  # Independent axes: each of 9 pairs is missed by 200 draws with probability below 1e-9.
  assert max_shift > 1 or len(set(seen)) == 9


@pytest.mark.parametrize("held_out", ["validation", "test"])
def test_a_feed_has_the_splits_and_the_spec(held_out):
  images = random_images(6, low=1)
  validation = {"validation": images[3:]} if held_out == "validation" else {}
  data = dataset_of(images, images[:4], **validation)
  feed = feed_of(data, 8, max_shift=2)
  assert feed.spec == ImageSpec(canvas=8, channels=3, num_classes=6)
  assert feed.held_out == held_out
  expected = data.splits["train"], data.splits[held_out]
  counts = feed.num_train, feed.num_heldout
  for arrays, split, count in zip((feed.train, feed.heldout), expected, counts, strict=True):
    assert count == len(split.labels)
    np.testing.assert_array_equal(arrays["image"], split.images)
    np.testing.assert_array_equal(arrays["label"], split.labels)
  # In training an image lies anywhere within the shifts, see above, else in the middle.
  batch = heldout_batch(feed, [1, 0])
  expected = np.zeros((2, 8, 8, 3), np.float32)
  expected[:, 2:6, 2:5] = data.splits[held_out].images[[1, 0]] / np.float32(255)
  np.testing.assert_allclose(batch["image"], expected, rtol=1e-6)
  for made in (batch, feed_batch(feed, [1, 0])):
    assert set(made) == {"image", "label"}
    np.testing.assert_array_equal(made["label"], [1, 0])


def test_a_feed_of_crops_cuts_at_random_in_training_and_the_middle_otherwise():
  images = random_images(5)
  feed = feed_of(dataset_of(images, images[:3]), 3, crop=2)
  assert feed.spec == ImageSpec(canvas=3, channels=3, num_classes=5)
  # Of 4 rows one goes above and one below, of 3 columns the odd one goes from the right.
  np.testing.assert_array_equal(feed.heldout["image"], images[:3, 1:3, 0:2])
  assert heldout_batch(feed, [2])["image"].shape == (1, 3, 3, 3)
  made = feed_batch(feed, np.full(300, 3))["image"]
  cut = Counter(image[:2, :2].tobytes() for image in np.round(made * 255).astype(np.uint8))
  assert set(cut) == {images[3, i : i + 2, j : j + 2].tobytes() for i in range(3) for j in range(2)}
  assert min(cut.values()) > 25  # of 50 with a deviation of 6.5
  message = r"config\.data\.crop.*'toy'.*4x3.* 4\b.* 3\b"
  with pytest.raises(ValueError, match=message):
    feed_of(dataset_of(images), 4, crop=4)


def on_the_host(images: np.ndarray, linear: np.ndarray, shifts: np.ndarray, canvas: int):
  maps = affine.place(linear, shifts, images.shape[1:], canvas)
  return affine.resample(images, maps, canvas) / 255


@pytest.mark.parametrize(("height", "width", "canvas"), [(5, 4, 9), (4, 5, 5)])
def test_motions_match_resampling_on_the_host(height, width, canvas):
  degrees = np.array([0.0, 90.0, -90.0, 180.0, 35.0, -7.3, 133.0, 360.0, 0.0, 0.0, 20.0])
  scales, shears = np.ones((len(degrees), 2)), np.zeros(len(degrees))
  scales[-3:], shears[-2:] = [[1.2, 0.8], [1.0, 1.0], [0.9, 1.3]], [0.2, -0.3]
  stretch = scales[:, :, None] * np.eye(2)
  stretch[:, 0, 1] = shears * scales[:, 1]
  images = random_images(len(degrees), height, width)
  middle = (canvas - height) // 2 + (height - 1) / 2, (canvas - width) // 2 + (width - 1) / 2
  padded = to_unit_range(centre_on_canvas(jnp.asarray(images), canvas))
  motion = Motion(*(jnp.asarray(numbers, jnp.float32) for numbers in (degrees, scales, shears)))
  actual = jax.jit(lambda x: move(x, motion, middle))(padded)
  linear = stretch @ affine.rotation(degrees)
  expected = on_the_host(images, linear, np.zeros((len(degrees), 2)), canvas)
  np.testing.assert_allclose(actual, expected, rtol=0, atol=HALF_A_BYTE + FLOATS)
  np.testing.assert_allclose(actual[0], padded[0], atol=1e-6)  # by cosines and sines of 0


def closest(linear: np.ndarray, shifts: np.ndarray, room: float, **options) -> np.ndarray:
  """The index of the map on the host that reproduces each of 60 training images.

  Pixels agree to half a byte and `room`.
  """
  image, canvas = random_images(1, 5, 4, 1, seed=1), 10
  made = training_images(np.repeat(image, 60, axis=0), canvas, 4, **options)
  known = on_the_host(np.repeat(image, len(linear), axis=0), linear, shifts, canvas)
  errors = np.abs(made[:, None] - known[None]).max(axis=(2, 3, 4))
  assert errors.min(axis=1).max() < HALF_A_BYTE + room
  return errors.argmin(axis=1)


def assert_independent(first: np.ndarray, second: np.ndarray) -> None:
  assert abs(np.corrcoef(first, second)[0, 1]) < 0.4  # three deviations of 60 pairs


def test_every_image_turns_by_its_own_angle_and_then_shifts():
  grid = np.meshgrid(np.arange(-35, 35.01, 0.2), (-1, 0, 1), (-1, 0, 1), indexing="ij")
  angles, right, down = (axis.reshape(-1) for axis in grid)
  shifts = np.stack([right, down], axis=1)
  # 0.1 degrees, three pixels from the middle: 0.005 pixels along two axes.
  nearest = closest(affine.rotation(angles), shifts, 0.011, max_shift=1, max_rotation=30.0)
  assert_uniform(angles[nearest], -30, 30)
  assert len(np.unique(shifts[nearest], axis=0)) == 9
  assert_independent(angles[nearest], right[nearest])


def test_every_image_is_stretched_and_sheared_by_its_own_numbers():
  steps = np.arange(-0.35, 0.3501, 0.01)  # half a step, 3 pixels away: 0.02 of a pixel
  wide, high = (axis.reshape(-1) for axis in np.meshgrid(steps, steps))
  stretched = np.eye(2) * np.stack([1 + wide, 1 + high], axis=-1)[:, None]
  nearest = closest(stretched, np.zeros((len(wide), 2)), 0.02, max_stretch=0.3)
  assert_uniform(wide[nearest], -0.3, 0.3)
  assert_uniform(high[nearest], -0.3, 0.3)
  assert_independent(wide[nearest], high[nearest])
  sheared = np.tile(np.eye(2), (len(steps), 1, 1))
  sheared[:, 0, 1] = steps
  nearest = closest(sheared, np.zeros((len(steps), 2)), 0.02, max_shear=0.3)
  assert_uniform(steps[nearest], -0.3, 0.3)


def test_two_views_show_one_image_with_independent_changes():
  images = random_images(6, 5, 4, 1)
  feed = feed_of(dataset_of(images, images[:3]), 9, max_shift=2, two_views=True)
  assert feed.spec.two_views
  indices = np.tile([4, 0, 2, 5], 8)
  made, plain = (
    feed_batch(a_feed, indices)
    for a_feed in (feed, feed_of(dataset_of(images, images[:3]), 9, max_shift=0, two_views=True))
  )
  assert made["image"].shape == (32, 9, 9, 1)
  expected = np.asarray(to_unit_range(centre_on_canvas(jnp.asarray(images), 9)))
  np.testing.assert_allclose(plain["image"], expected[np.tile([4, 4, 2, 2], 8)])
  np.testing.assert_array_equal(made["label"], plain["label"])
  pairs = np.asarray(made["image"]).reshape(16, 2, -1)
  differ = np.any(pairs[:, 0] != pairs[:, 1], axis=1)
  assert differ.sum() > 8  # one pair in 25 shifts alike
  assert heldout_batch(feed, [0, 1])["image"].shape == (2, 9, 9, 1)


def test_jittered_pixels_of_a_batch_are_clipped_where_they_leave_the_range():
  images = np.tile([0, 102, 255], (50, 3, 1)).reshape(50, 3, 3, 1).astype(np.uint8)
  made = training_images(images, 3, brightness=0.4)[:, 0, :, 0]
  added = made[:, 1] - 0.4
  expected = np.stack([np.maximum(added, 0), 0.4 + added, np.minimum(1 + added, 1)], axis=1)
  np.testing.assert_allclose(made, expected, atol=1e-6)
  assert min(added) < 0 < max(added)


def test_a_batch_is_cropped_jittered_turned_and_put_on_the_canvas():
  """A crop of a white image is a white square of 4 on black; it turns about its middle."""
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


def test_augmentations_that_are_off_are_not_in_the_program():
  """A run without these options is, bit for bit, what it was before there were any."""
  split = {"image": jnp.zeros((6, 4, 3, 1), jnp.uint8), "label": jnp.zeros(6, jnp.int32)}

  def now(key, split, indices):
    return batches.training_batch(key, split, indices, data_options(6, max_shift=2))

  def before(key, split, indices):
    image = centre_on_canvas(split["image"][indices], 6, border=2)
    image = to_unit_range(shift_on_canvas(image, random_shifts(key, len(indices), 2), 6))
    return {"image": image, "label": split["label"][indices]}

  programs = [
    str(jax.make_jaxpr(make)(jax.random.key(0), split, jnp.arange(3))) for make in (now, before)
  ]
  assert programs[0] == programs[1]
