"""From a user's images or points to the batches that a model takes."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from PIL import Image

from scae_jax.data.batches import on_canvas
from scae_jax.data.dataset import pixel_statistics
from scae_jax.data.image_files import decode_picture, in_channels, middle, resized
from scae_jax.data.ink import ink
from scae_jax.data.options import DataOptions
from scae_jax.models.system import Numbers

MAX_COORDINATE = 1e6  # of points; squares and products up to it stay finite in float32


@dataclasses.dataclass(frozen=True)
class ImageInput:
  """The images that a model takes, and how they become a batch."""

  options: DataOptions  # of the training data
  channels: int  # of the images
  # Height and width of the training images, pixels, before `data.middle` and `data.crop`.
  side: tuple[int, int]

  def check(
    self, examples: Numbers | Sequence[Numbers], presence: np.ndarray | None, *, resize: bool
  ) -> dict[str, np.ndarray]:
    """Checks the arguments of `Model.encode`; raises ValueError.

    Returns `image`, uint8 or float [n, h, w, c].
    """
    if presence is not None:
      raise ValueError("presence is of points, and this model takes images; leave it out.")
    if isinstance(examples, list | tuple):  # Pillow's images as those in files: colours, upright
      examples = [_of_pillow(e) if isinstance(e, Image.Image) else e for e in examples]
    if isinstance(examples, list) and len({np.shape(image) for image in examples}) > 1:
      if not resize:
        raise ValueError("images have different shapes; give resize=True to bring them together.")
      resized_images = [self.check([image], None, resize=True)["image"] for image in examples]
      if len({image.dtype for image in resized_images}) > 1:
        resized_images = [_in_unit_range(image) for image in resized_images]
      return {"image": np.concatenate(resized_images)}
    images = self._checked(as_array(examples))
    form = self.options.form
    whole = form.resized_shape(self.side)
    if resize and form.side:
      images = resized(images, whole, form.fill)
    if resize and images.shape[1:3] != whole:
      images = resized(_in_unit_range(images), whole, "stretch")
    height, width = images.shape[1:3]
    # Training images may be larger than the canvas; they are cropped to their middle.
    fits = (height, width) == whole or max(height, width) <= self.options.canvas
    if not (resize or fits):
      side, canvas = "x".join(map(str, whole)), self.options.canvas
      raise ValueError(
        f"images are {height}x{width} pixels; this model takes at most {canvas}x{canvas} and was"
        f" trained on {side}. Give resize=True to scale them to {side}."
      )
    if form.middle and np.all(np.greater_equal(images.shape[1:3], form.middle)):
      images = middle(images, form.middle)
    return {"image": ink(images) if form.ink else images}

  def _checked(self, images: np.ndarray) -> np.ndarray:
    """Images [n, h, w, c], uint8 or float in [0, 1], in the model's channels; or ValueError.

    Images that become ink keep their colours.
    """
    # With a last axis of 1 to 4, the array is a single image with channels.
    form = self.options.form
    takes_grey = self.channels == 1 or form.channels == 3
    if images.ndim == 3 and takes_grey and images.shape[2] not in (1, 2, 3, 4):
      images = images[..., None]
    # If the config converts the channels of training images, these are converted, too.
    channels = (1, 3) if form.channels else (self.channels,)
    if images.ndim != 4 or images.shape[3] not in channels or 0 in images.shape[1:]:
      shape = "[n, h, w] or [n, h, w, 1]" if self.channels == 1 else f"[n, h, w, {self.channels}]"
      raise ValueError(
        f"images must have shape {shape}; they have {list(images.shape)}. A single image is"
        " images[None]; the mean of colours is images.mean(axis=-1)."
      )
    if images.dtype == np.bool_:  # a mask becomes black and white
      images = images.astype(np.float32)
    if images.dtype != np.uint8:
      if not jnp.issubdtype(images.dtype, jnp.floating):
        raise ValueError(
          f"images must be uint8 or float; they are {images.dtype}. Numbers from 0 to 255 are"
          " given as images.astype(np.uint8)."
        )
      # Not by min and max: NaN must fail, too.
      if not np.all((images >= 0) & (images <= 1)):
        raise ValueError("float images must be in [0, 1]; divide by 255, or give them as uint8.")
    return images if form.ink else in_channels(images, self.channels)

  def batch(self, arrays: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, Any]:
    """A batch of some examples of the result of `check`, made as those of a data set are."""
    images, statistics = arrays["image"][rows], {}
    if images.dtype != np.uint8:
      images = images.astype(np.float32)
    if self.options.normalize:  # before cropping, as in training
      statistics = dict(zip(("mean", "std"), pixel_statistics(images), strict=True))
    if self.options.crop and min(images.shape[1:3]) >= self.options.crop:
      images = middle(images, (self.options.crop, self.options.crop))
    return on_canvas(images, statistics, canvas=self.options.canvas)


@dataclasses.dataclass(frozen=True)
class PointInput:
  """The scenes that a model of points takes, at most `num_points` points in each."""

  num_points: int

  def check(
    self, examples: Numbers | Sequence[Numbers], presence: np.ndarray | None, *, resize: bool
  ) -> dict[str, np.ndarray]:
    """Checks the arguments of `Model.encode`.

    Returns `{"points": [n, num_points, 2], "presence": [n, num_points]}`, filled up with absent
    points; or raises ValueError.
    """
    if resize:
      raise ValueError("resize is of images, and this model takes points; leave it out.")
    points = as_array(examples)
    if points.ndim != 3 or points.shape[2] != 2 or points.shape[1] > self.num_points:
      raise ValueError(
        f"points must have shape [n, p, 2] with p at most {self.num_points}; they have"
        f" {list(points.shape)}."
      )
    presence = np.ones(points.shape[:2]) if presence is None else presence
    if presence.shape != points.shape[:2]:
      raise ValueError(
        f"presence must have shape {list(points.shape[:2])}; it has {list(presence.shape)}."
      )
    if not np.isin(presence, (0, 1)).all():
      raise ValueError("presence must be 1 or 0 of every point.")
    points = np.where(presence[..., None] > 0, points, 0.0)  # absent points at 0, as in training
    if not (np.abs(points) <= MAX_COORDINATE).all():  # NaN fails, too
      raise ValueError(
        f"points must be finite, with coordinates of at most {MAX_COORDINATE:g}; scenes of the"
        " training lie in [-1, 1]. Mark points that are absent by presence 0."
      )
    padding = ((0, 0), (0, self.num_points - points.shape[1]))
    return {
      "points": np.pad(points, (*padding, (0, 0))).astype(np.float32),
      "presence": np.pad(presence, padding).astype(np.float32),
    }

  def batch(self, arrays: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, Any]:
    """A batch of some examples of the result of `check`."""
    return {name: array[rows] for name, array in arrays.items()}


def as_array(values: Any) -> np.ndarray:
  """The values as a NumPy array; ValueError if they cannot become one, or a mask would be lost."""
  parts = values if isinstance(values, list | tuple) else [values]
  if any(isinstance(part, np.ma.MaskedArray) and np.ma.is_masked(part) for part in parts):
    raise ValueError("masked arrays would lose their mask; give array.filled(0).")
  try:
    return np.asarray(values)
  except (TypeError, RuntimeError) as error:  # of JAX under jit, of PyTorch for gradients
    reason = str(error).partition("\n")[0]
    raise ValueError(
      f"expected values that NumPy can read: {reason} Under jax.jit, vmap or grad, call"
      " model.system.encode(model.variables, batch)."
    ) from error


def _of_pillow(image: Image.Image) -> np.ndarray:
  """The pixels of Pillow's image, uint8 [h, w] or [h, w, 3]."""
  pixels = decode_picture(image)
  return pixels[..., 0] if pixels.shape[2] == 1 else pixels


def _in_unit_range(images: np.ndarray) -> np.ndarray:
  """Images as float32 in [0, 1]."""
  if images.dtype == np.uint8:
    return images.astype(np.float32) / np.float32(255)
  return images.astype(np.float32)
