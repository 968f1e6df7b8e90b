"""What a trained model takes: images, points, numbers and configs of many types."""

import dataclasses
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import ExifTags, Image

import scae_jax
from scae_jax.config import load_config, read_settings
from scae_jax.data import image_files
from scae_jax.data.image_files import Form, in_form
from scae_jax.library.inputs import PointInput
from tests.test_library import digits, images

__all__ = ["digits", "images"]  # fixtures


def test_masks_are_black_and_white(digits, images):
  mask = images > 127
  chex.assert_trees_all_equal(digits.encode(mask), digits.encode(mask.astype(np.float32)))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1e7, 1e300])
def test_points_that_no_scene_can_have_are_refused(wrong):
  points = np.zeros((2, 4, 2))
  points[1, 2, 0] = wrong
  with pytest.raises(ValueError, match="points"):
    PointInput(11).check(points, None, resize=False)
  absent = np.ones((2, 4))
  absent[1, 2] = 0
  assert np.isfinite(PointInput(11).check(points, absent, resize=False)["points"]).all()


def test_a_config_is_a_file_a_dict_or_a_config_dict():
  config = load_config("configs/digits.py:views")
  as_dict = json.loads(json.dumps(config.to_dict()))  # with lists in place of tuples
  expected = read_settings(config)
  for source in ("configs/digits.py:views", as_dict, config.to_dict()):
    settings = read_settings(source)
    assert settings.config.to_dict() == expected.config.to_dict()
    assert (settings.train, settings.optimizer) == (expected.train, expected.optimizer)


def test_numbers_of_numpy_and_jax_are_those_of_python():
  config = load_config("configs/digits.py").to_dict()
  expected = read_settings(config)
  config["train"]["num_steps"] = np.int64(config["train"]["num_steps"])
  config["train"]["tensorboard"] = np.bool_(False)
  config["optimizer"]["learning_rate"] = np.float64(config["optimizer"]["learning_rate"])
  config["optimizer"]["b1"] = jnp.float32(0.5)
  config["model"]["part_encoder"]["widths"] = np.array(config["model"]["part_encoder"]["widths"])
  settings = read_settings(config)
  assert settings.train == expected.train
  assert settings.optimizer.b1 == 0.5
  assert (
    json.loads(settings.config.to_json())["model"] == json.loads(expected.config.to_json())["model"]
  )
  with pytest.raises(scae_jax.RunError, match="dict"):
    read_settings([1, 2])


@pytest.mark.parametrize("mode", ["P", "RGB", "RGBA", "L", "1"])
def test_images_of_pillow_are_as_their_files(digits, tmp_path, mode):
  """A palette's numbers are no brightness, and a photograph stands upright."""
  rng = np.random.RandomState(0)
  image = Image.fromarray(rng.randint(0, 256, (16, 16, 3)).astype(np.uint8)).convert(mode)
  image.save(tmp_path / "image.png")
  expected = in_form(image_files.decode_picture(tmp_path / "image.png")[None], Form(channels=1))
  in_grey = dataclasses.replace(digits.inputs.options, channels=1)
  inputs = dataclasses.replace(digits.inputs, options=in_grey)
  with Image.open(tmp_path / "image.png") as opened:
    for source in (image, opened):
      np.testing.assert_array_equal(inputs.check([source], None, resize=False)["image"], expected)


@pytest.mark.parametrize("orientation", [1, 6])
def test_photographs_of_pillow_stand_upright(digits, tmp_path, orientation):
  exif = Image.Exif()
  exif[ExifTags.Base.Orientation] = orientation
  path = tmp_path / "photograph.png"
  Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16)).save(path, exif=exif)
  with Image.open(path) as opened:
    checked = digits.inputs.check([opened], None, resize=False)["image"]
  np.testing.assert_array_equal(checked[0], image_files.decode_picture(path))


class _NeedsGradient:
  """As a tensor of PyTorch that needs a gradient."""

  def __array__(self, dtype=None, copy=None):
    raise RuntimeError("call tensor.detach().numpy()")


def test_what_numpy_cannot_read_is_one_line(digits, images):
  whole = np.ma.masked_array(images, mask=False)
  chex.assert_trees_all_equal(digits.encode(whole), digits.encode(images))
  masked = np.ma.masked_array(images, mask=images > 127)
  for wrong in (masked, [masked[0]], (masked[0], masked[1])):
    with pytest.raises(ValueError, match="mask"):
      digits.encode(wrong)
  with pytest.raises(ValueError, match="detach"):
    digits.encode(_NeedsGradient())
  for transform in (jax.jit, jax.vmap):
    with pytest.raises(ValueError, match=r"model\.system\.encode"):
      transform(lambda image: digits.encode(image).object_presence)(jnp.zeros((2, 4, 16, 16)))


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "4"])
def test_numbers_of_examples_and_steps_are_whole(digits, images, wrong):
  with pytest.raises(scae_jax.RunError, match="batch_size"):
    scae_jax.load("digits", batch_size=wrong)
  if wrong != 0:
    with pytest.raises(ValueError, match="refine_steps"):
      digits.encode(images, refine_steps=wrong)


def test_a_guard_of_the_program_against_transfers_is_for_the_program(digits, images):
  expected = digits.encode(images)
  with jax.transfer_guard("disallow"):
    model = scae_jax.load("digits", batch_size=4)
    chex.assert_trees_all_equal(model.encode(images), expected)
    assert model.draw(expected).shape[0] == len(images)
