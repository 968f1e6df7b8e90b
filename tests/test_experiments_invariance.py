"""What objects follow: systems that follow the brightness, the place, or nothing of an image."""

import jax.numpy as jnp
import numpy as np
import pytest

from experiments import invariance
from scae_jax.models.system import Encoding
from tests.stand_ins import call, labelled, noise, open_for_commands, refusal, stub, written
from tests.toy_system import toy_config

CANVAS, NUM_IMAGES = 36, 40


def blobs() -> np.ndarray:
  """Squares of 8x8 in 24x24 of four brightnesses at random places, uint8 [n, 24, 24, 1]."""
  rng = np.random.RandomState(0)
  images = np.zeros((NUM_IMAGES, 24, 24, 1), np.uint8)
  for i, image in enumerate(images):
    row, column = rng.randint(4, 13, 2)
    image[row : row + 8, column : column + 8] = 60 * (1 + i % 4)
  return images


BRIGHTNESS = np.arange(NUM_IMAGES) % 4  # of the squares


def by_brightness(images):
  share = images.reshape(len(images), -1).max(axis=1) / 255
  return np.stack([share, 1 - share], axis=1)


def by_place(images):
  middle = images.shape[2] // 2
  left, right = (part.sum(axis=(1, 2, 3)) + 1.0 for part in np.split(images, [middle], axis=2))
  return np.stack([left, right], axis=1) / (left + right)[:, None]


def by_nothing(images):
  return np.tile([0.3, 0.7], (len(images), 1))


def test_who_follows_what():
  measured = {
    follow.__name__: invariance.measure_invariance(follow, blobs(), BRIGHTNESS, CANVAS)
    for follow in (by_brightness, by_place, by_nothing)
  }
  kept = {
    follow: {name: entry["same_winner"] for name, entry in results["changes"].items()}
    for follow, results in measured.items()
  }
  assert set(kept["by_nothing"].values()) == {1.0}
  assert {results["changes"]["nothing"]["same_winner"] for results in measured.values()} == {1.0}
  assert kept["by_brightness"]["shifted by 2 pixels"] == 1
  assert kept["by_brightness"]["brighter, to the power of 0.6"] < 0.9
  assert kept["by_brightness"]["negative"] < 0.6
  assert kept["by_place"]["shifted by 2 pixels"] < 1
  assert kept["by_place"]["brighter, to the power of 0.6"] == 1
  changes = measured["by_place"]["changes"]
  assert changes["nothing"]["correlation"] == pytest.approx(1)
  assert changes["negative"]["correlation"] < -0.5
  assert measured["by_nothing"]["changes"]["nothing"]["correlation"] is None
  information = {follow: results["information"] for follow, results in measured.items()}
  assert information["by_nothing"] == pytest.approx(
    {"class": 0, "brightness": 0, "sharpness": 0}, abs=1e-12
  )
  # Two of four brightnesses win each object: one bit.
  for name in ("class", "brightness", "sharpness"):
    assert information["by_brightness"][name] == pytest.approx(np.log(2))
    assert information["by_place"][name] < 0.3
  assert measured["by_place"]["class_information"] == pytest.approx(
    {"class": np.log(4), "brightness": np.log(4), "sharpness": np.log(4)}
  )


def test_brightness_and_sharpness_are_told_apart():
  images = np.full((4, 8, 8, 1), 100, np.uint8)
  images[2:, ::2] += 80  # of the second half, sharp lines
  images[1::2] += 50  # every second one is brighter
  measured = invariance.properties(images)
  np.testing.assert_array_equal(measured["sharpness"] > 1, [False, False, True, True])
  assert list(np.argsort(measured["brightness"])) == [0, 2, 1, 3]


@pytest.mark.parametrize("name", sorted(set(invariance.CHANGES) - {"nothing"}))
def test_changes_keep_type_and_change_the_image(name):
  colours = np.repeat(blobs(), 3, axis=3)
  changed = invariance.CHANGES[name](colours, 24)
  assert changed.shape == colours.shape
  assert changed.dtype == np.uint8
  assert (changed != colours).any(axis=(1, 2, 3)).all()
  assert (changed[..., 0] == changed[..., 2]).all()


def test_a_record_is_written(monkeypatch, tmp_path, capsys):
  def encoding(images):
    share = jnp.max(images, axis=(1, 2, 3))
    return Encoding(posterior_mass=3 * jnp.stack([share, 1 - share], axis=1))

  dataset = labelled("squares", blobs(), BRIGHTNESS, "abcd")
  config = toy_config(data__canvas=CANVAS)
  open_for_commands(monkeypatch, stub(encoding=encoding), dataset, {0: {}}, config)
  monkeypatch.setattr(invariance, "CHANGES", {"negative": invariance.CHANGES["negative"]})
  call(monkeypatch, invariance, tmp_path / "run", tmp_path / "out")
  record, text = written(capsys, tmp_path / "out", "invariance-run")
  assert set(record["changes"]) == {"negative"}
  assert record["information"]["class"] == pytest.approx(np.log(2))
  same = 100 * record["changes"]["negative"]["same_winner"]
  assert f"| negative | {same:.1f} |" in text


def test_a_system_without_objects_is_refused(monkeypatch, tmp_path, capsys):
  open_for_commands(monkeypatch, stub(), noise(5), {0: {}})
  message = refusal(capsys, monkeypatch, invariance, tmp_path / "run", tmp_path / "out")
  assert "posterior mass" in message
  assert not (tmp_path / "out").exists()
