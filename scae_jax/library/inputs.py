"""From images and points of one's own to the batches that a model sees."""

import dataclasses
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from scae_jax.data.augmentation import centre_on_canvas, to_unit_range
from scae_jax.data.dataset import middle, pixel_statistics
from scae_jax.data.image_files import in_channels, resized
from scae_jax.data.options import DataOptions
from scae_jax.models.system import Numbers
from scae_jax.typing import Batch

MAX_COORDINATE = 1e6  # of points; squares and products of those below stay finite in float32


@dataclasses.dataclass(frozen=True)
class ImageInput:
  """What a model of images takes."""

  options: DataOptions  # of the data that it was trained on
  channels: int  # of the images
  side: tuple[int, int]  # height and width of the images that it was trained on, pixels

  def check(
    self, examples: Numbers | Sequence[Numbers], presence: np.ndarray | None, *, resize: bool
  ) -> dict[str, np.ndarray]:
    """`image` with a channel axis, of images as `Model.encode` takes them; or ValueError in one
    line."""
    if presence is not None:
      raise ValueError("presence is of points, and this model takes images; leave it out.")
    if isinstance(examples, list | tuple) and len({np.shape(image) for image in examples}) > 1:
      if not resize:
        raise ValueError("images have different shapes; give resize=True to bring them together.")
      alone = [self.check([image], None, resize=True)["image"] for image in examples]
      if len({image.dtype for image in alone}) > 1:
        alone = [_in_unit_range(image) for image in alone]
      return {"image": np.concatenate(alone)}
    images = self._sound(np.asarray(examples))
    if resize and self.options.resize:
      return {"image": resized(images, self.side, self.options.resize_fill)}
    if resize and images.shape[1:3] != self.side:
      return {"image": resized(_in_unit_range(images), self.side, "stretch")}
    height, width = images.shape[1:3]
    # Training images may be larger than the canvas: their middle is cropped out.
    fits = (height, width) == self.side or max(height, width) <= self.options.canvas
    if not (resize or fits):
      side, most = "x".join(map(str, self.side)), self.options.canvas
      raise ValueError(
        f"images are {height}x{width} pixels; this model takes at most {most}x{most} and was"
        f" trained on {side}. Give resize=True to scale them to {side}."
      )
    return {"image": images}

  def _sound(self, images: np.ndarray) -> np.ndarray:
    """Images [n, h, w, c] of the model's channels, uint8 or float in [0, 1]; or ValueError."""
    # A last axis of 1 or 3 is of channels, and the image a single one.
    takes_grey = self.channels == 1 or self.options.channels == 3
    if images.ndim == 3 and takes_grey and images.shape[2] not in (1, 3):
      images = images[..., None]
    # Where the config says what training images become, these become it too.
    channels = (1, 3) if self.options.channels else (self.channels,)
    if images.ndim != 4 or images.shape[3] not in channels or 0 in images.shape[1:]:
      last = "[n, h, w] or [n, h, w, 1]" if self.channels == 1 else f"[n, h, w, {self.channels}]"
      raise ValueError(
        f"images must have shape {last}; they have {list(images.shape)}. A single image is"
        " images[None]; the mean of colours is images.mean(axis=-1)."
      )
    if images.dtype == np.bool_:  # a mask: black and white
      images = images.astype(np.float32)
    if images.dtype != np.uint8:
      if not jnp.issubdtype(images.dtype, jnp.floating):
        raise ValueError(
          f"images must be uint8 or float; they are {images.dtype}. Numbers from 0 to 255 are"
          " given as images.astype(np.uint8)."
        )
      # Not min and max: NaN is in no range.
      if not np.all((images >= 0) & (images <= 1)):
        raise ValueError("float images must be in [0, 1]; divide by 255, or give them as uint8.")
    return in_channels(images, self.channels)

  def place(self, arrays: Mapping[str, np.ndarray]) -> Batch:
    """A batch of what `check` gave, its images on the canvas, [b, canvas, canvas, c]."""
    images = arrays["image"]
    if images.dtype == np.uint8:
      pixels = np.asarray(to_unit_range(jnp.asarray(images)))
    else:
      pixels = images = images.astype(np.float32)
    if self.options.crop and min(pixels.shape[1:3]) >= self.options.crop:
      pixels = middle(pixels, self.options.crop)
    placed = centre_on_canvas(jnp.asarray(pixels), self.options.canvas)
    if not self.options.normalize:
      return {"image": placed}
    mean, std = map(jnp.asarray, pixel_statistics(images))  # of the whole image, as in training
    pixels = (placed - mean[:, None, None, None]) / std[:, None, None, None]
    return {"image": pixels, "mean": mean, "std": std}


@dataclasses.dataclass(frozen=True)
class PointInput:
  """What a model of points takes: scenes of at most `num_points`."""

  num_points: int

  def check(
    self, examples: Numbers | Sequence[Numbers], presence: np.ndarray | None, *, resize: bool
  ) -> dict[str, np.ndarray]:
    """`points` and `presence`, with absent points up to `num_points`; or ValueError in one line."""
    if resize:
      raise ValueError("resize is of images, and this model takes points; leave it out.")
    points = np.asarray(examples)
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
    points = np.where(presence[..., None] > 0, points, 0.0)  # absent ones are at 0, as in training
    if not (np.abs(points) <= MAX_COORDINATE).all():  # NaN is no number either
      raise ValueError(
        f"points must be finite, with coordinates of at most {MAX_COORDINATE:g}; scenes of the"
        " training lie in [-1, 1]. Mark points that are absent by presence 0."
      )
    absent = ((0, 0), (0, self.num_points - points.shape[1]))
    return {
      "points": np.pad(points, (*absent, (0, 0))).astype(np.float32),
      "presence": np.pad(presence, absent).astype(np.float32),
    }

  def place(self, arrays: Mapping[str, np.ndarray]) -> Batch:
    """What `check` gave, as a batch."""
    return {name: jnp.asarray(array) for name, array in arrays.items()}


def _in_unit_range(images: np.ndarray) -> np.ndarray:
  """Images as float32 in [0, 1]."""
  if images.dtype == np.uint8:
    return images.astype(np.float32) / np.float32(255)
  return images.astype(np.float32)
