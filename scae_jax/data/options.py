"""The data section of a config for images: each field declares a key and its bounds."""

import dataclasses
from typing import Annotated

from scae_jax.bounds import MAX_EXAMPLES, MAX_SIDE, Bound, between, each, one_of, zero_or
from scae_jax.data.image_files import Form

MIN_CROP = 8  # pixels; smaller images show nothing


def _off_with_overlay(off: object) -> Bound:
  return Bound(
    f"{off} with {{section}}.overlay, which only moves images with pixels in [0, 1]",
    lambda value, fields: value == off or not fields["overlay"],
  )


# The middle of every image stays on the canvas.
HALF_IN_VIEW = Bound(
  "from 0 to half of {section}.canvas, {canvas} pixels",
  lambda value, fields: 0 <= value <= fields["canvas"] / 2,
)


ZERO_WITH_RANDOM_PLACE = Bound(
  "0 with {section}.random_place, which needs no limit",
  lambda value, fields: value == 0 or not fields.get("random_place"),
)
NONE_OR_TWO = Bound("() or (height, width)", lambda value, fields: len(value) in (0, 2))
OFF_WITH_COLOURS = Bound(
  "off where {section}.channels is 3: ink has one channel",
  lambda value, fields: not value or fields.get("channels") != 3,
)
GREY_OR_RGB = Bound("0, 1 (grey) or 3 (RGB)", lambda value, fields: value in (0, 1, 3))


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataOptions:
  """The data set, and the steps from its images to the model's input.

  Augmentations are in the order in which they are applied to training images; 0 turns one off. In
  evaluation an image is resized and normalised, its middle is cut out, and it lies in the middle of
  the canvas.
  """

  name: str  # a source, see `scae_jax.data.sources.load_dataset`
  dir: str  # folder of the prepared data; empty for the source's own default
  cache_dir: str  # folder for decoded arrays; empty for the default
  # Folder of affNIST's official files, for `evaluate.py --dataset=affnist`; empty to draw the same
  # distribution from MNIST's test images.
  affnist_dir: str
  # Side of the square that every image becomes as it is loaded, pixels.
  resize: Annotated[int, zero_or(between(MIN_CROP, MAX_SIDE))] = 0
  resize_fill: Annotated[str, one_of("crop", "pad")] = "crop"  # see `image_files.resized`
  channels: Annotated[int, GREY_OR_RGB] = 0  # of every image; 0 is RGB if any is in colour
  # Whether images become bright ink on a dark ground, of one channel; see `ink.ink`.
  ink: Annotated[bool, OFF_WITH_COLOURS] = False
  # Height and width of the middle that is kept of each image, pixels; () keeps all.
  middle: Annotated[tuple[int, ...], NONE_OR_TWO, each(between(MIN_CROP, MAX_SIDE))] = ()
  # Training examples that are held out as the split "validation", on which the run is then
  # evaluated instead of the test split.
  num_validation: Annotated[int, between(0, MAX_EXAMPLES)]
  # Whether each image is brought to zero mean and unit variance; see `dataset.normalized`.
  normalize: Annotated[bool, _off_with_overlay(False)]
  # Side of the square that is cut out at random, pixels.
  crop: Annotated[int, zero_or(between(MIN_CROP, "canvas")), _off_with_overlay(0)]
  # Largest number added or subtracted; for normalised images in their standard deviations.
  brightness: Annotated[float, between(0, 1), _off_with_overlay(0)]
  # Largest difference from 1 of the factor that multiplies the contrast.
  contrast: Annotated[float, between(0, 1), _off_with_overlay(0)]
  max_rotation: Annotated[float, between(0, 180), _off_with_overlay(0)]  # degrees, either way
  # Largest difference from 1 of the scales of x and of y, drawn independently; 0.2 in affNIST.
  max_stretch: Annotated[float, between(0, 0.9), _off_with_overlay(0)]
  # Pixels to the right for each pixel down, either way; 0.2 in affNIST.
  max_shear: Annotated[float, between(0, 1), _off_with_overlay(0)]
  # Whether each image gets a place of its own, uniform over those at which all its pixels that are
  # not black stay on the canvas; `max_shift` is then 0. Maps come first, and may cut off ink.
  random_place: Annotated[bool, _off_with_overlay(False)] = False
  max_shift: Annotated[int, HALF_IN_VIEW, ZERO_WITH_RANDOM_PLACE]  # pixels, in each direction
  canvas: Annotated[int, between(1, MAX_SIDE)]  # side of the black square under an image, pixels
  # A training batch has half the images, each twice in succession, augmented independently.
  two_views: Annotated[bool, _off_with_overlay(False)]
  # Two images of different classes are overlaid, in evaluation too; see `scae_jax.data.overlay`.
  overlay: bool

  @property
  def form(self) -> Form:
    """The form that images are brought to when they are loaded."""
    channels = 1 if self.ink else self.channels
    return Form(self.resize, self.resize_fill, channels, self.ink, self.middle)
