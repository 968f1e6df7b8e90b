"""Decodes image files, of TFDS records and of folders alike, and brings them to a common form."""

import contextlib
import dataclasses
import io
import os
import re
import struct
from collections.abc import Iterable

import numpy as np
from PIL import ExifTags, Image, ImageOps

from scae_jax.data.ink import INK_VERSION, ink

Source = bytes | os.PathLike[str]  # the encoded bytes, or the path of a file
_GREY = ("1", "L", "LA")
_COLOUR = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
# Transposes that make a photograph upright, by EXIF orientation. `ImageOps.exif_transpose` also
# rewrites all other EXIF tags, which fails if a camera wrote an invalid one.
_UPRIGHT = {
  2: Image.Transpose.FLIP_LEFT_RIGHT,
  3: Image.Transpose.ROTATE_180,
  4: Image.Transpose.FLIP_TOP_BOTTOM,
  5: Image.Transpose.TRANSPOSE,
  6: Image.Transpose.ROTATE_270,
  7: Image.Transpose.TRANSVERSE,
  8: Image.Transpose.ROTATE_90,
}
_LUMINANCE = np.array([19_595, 38_470, 7_471])  # of 65,536: ITU-R 601, as in Pillow


@dataclasses.dataclass(frozen=True)
class Form:
  """The size and channels that all images of a data set are brought to; by default unchanged."""

  side: int = 0  # of the square that each image becomes, pixels; 0 keeps the size
  fill: str = "crop"  # how the square is filled: `crop` or `pad`, see `resized`
  channels: int = 0  # 1 is grey, 3 RGB; 0 is RGB if any image is in colour
  ink: bool = False  # images become bright ink on a dark ground, of one channel, by `ink.ink`
  middle: tuple[int, ...] = ()  # height and width of the middle that is kept, pixels; () keeps all

  def __str__(self) -> str:
    """Suffix of a cache file's name, such as `-32-crop-28x20-grey`; "" for unchanged images."""
    size = f"-{self.side}-{self.fill}" if self.side else ""
    kept = "-" + "x".join(map(str, self.middle)) if self.middle else ""
    channels = f"-ink{INK_VERSION}" if self.ink else {0: "", 1: "-grey", 3: "-rgb"}[self.channels]
    return size + kept + channels

  def resized_shape(self, shape: tuple[int, int]) -> tuple[int, int]:
    """Height and width of images, in pixels, before their middle is cut out."""
    return (self.side, self.side) if self.side else shape

  def shape(self, shape: tuple[int, int]) -> tuple[int, int]:
    """Height and width, in pixels, of images in this form."""
    height, width = self.middle or self.resized_shape(shape)
    return height, width


AS_IT_IS = Form()


def decode_pictures(sources: Iterable[tuple[str, Source]], form: Form = AS_IT_IS) -> np.ndarray:
  """Decodes images and brings them to a form and a common number of channels: uint8 [n, h, w, c].

  `sources` are pairs of a name, for errors, and the image. Raises ValueError if one cannot be
  decoded, or differs from the first in size.
  """
  pictures: list[np.ndarray] = []
  first = ""
  for where, source in sources:
    try:
      picture = decode_picture(source)
    except ValueError as error:
      raise ValueError(f"{where}: {error}") from error
    pictures.append(in_form(picture[None], form)[0])
    first = first or where
    sizes = ["x".join(map(str, image.shape[:2])) for image in (pictures[0], pictures[-1])]
    if sizes[0] != sizes[1]:
      raise ValueError(
        f"{where}: expected an image of {sizes[0]} pixels (height, width), as {first}, got"
        f" {sizes[1]}; train with config.data.resize=N, which brings all to NxN, or bring them to"
        " one size"
      )
  max_channels = max((picture.shape[2] for picture in pictures), default=1)
  return np.stack([in_channels(picture, max_channels) for picture in pictures])


def decode_picture(source: Source | Image.Image) -> np.ndarray:
  """Decodes a PNG, JPEG, BMP, GIF or WebP image with Pillow: uint8 [h, w, c], c 1 or 3.

  The image may also be one that Pillow has opened or made already.
  Photographs are made upright by their EXIF orientation. Transparent pixels are blended with black.
  Black-and-white counts as grey, a palette and CMYK as colour. Raises ValueError for images that
  are broken, animated or have more than 8 bits a channel.
  """
  try:
    with contextlib.ExitStack() as stack:
      image = source
      if not isinstance(image, Image.Image):
        file = io.BytesIO(image) if isinstance(image, bytes) else image
        image = stack.enter_context(Image.open(file))
      # Pillow cuts RGB of 16 bits to 8; until the image is loaded, its tiles have the file's depth.
      depths = [str(tile[3]) for tile in getattr(image, "tile", ())]
      # The other pictures of an MPO, a format of telephones, are previews or depths of the first.
      frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)
      image.load()  # A truncated file raises here.
      orientation = image.getexif().get(ExifTags.Base.Orientation)
  # Pillow raises any of these for broken files.
  except (
    OSError,
    SyntaxError,
    EOFError,
    ValueError,
    struct.error,
    Image.DecompressionBombError,
  ) as error:
    raise ValueError(
      f"expected a whole image file, got one that Pillow cannot read ({error}); replace it"
    ) from error
  if frames > 1:
    raise ValueError(f"expected a still image, got one of {frames} frames; save one frame of it")
  is_deep = any(re.search(r";16[BLN]", depth) for depth in depths)
  if is_deep or image.mode not in _GREY + _COLOUR:
    depth = " of 16 bits a channel" if is_deep else ""
    raise ValueError(
      f"expected a grey or colour image of 8 bits a channel, got mode {image.mode}{depth}; convert"
      " it to grey or RGB of 8 bits, with a scale of your choice"
    )
  mode = "L" if image.mode in _GREY else "RGB"
  if image.has_transparency_data:
    black = Image.new("RGBA", image.size, (0, 0, 0, 255))
    image = Image.alpha_composite(black, image.convert("RGBA"))
  image = image.convert(mode)
  if orientation in _UPRIGHT:
    image = image.transpose(_UPRIGHT[orientation])
  pixels = np.asarray(image)
  return pixels if pixels.ndim == 3 else pixels[..., None]


def in_form(images: np.ndarray, form: Form) -> np.ndarray:
  """Brings images [n, h, w, c], uint8 or float in [0, 1], to the channels and size of a form.

  Ink is found last, from the pixels that are kept. Raises ValueError if a stereo pair is to become
  grey, RGB or ink, and if an image is smaller than the middle.
  """
  if not form.ink:
    images = in_channels(images, form.channels)
  if form.side:
    images = resized(images, (form.side, form.side), form.fill)
  if form.middle:
    images = middle(images, form.middle)
  return ink(images) if form.ink else images


def middle(images: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
  """The middle of each image of [n, h, w, c], of a height and width in pixels.

  The larger part of an odd rest is cut off below and to the right. Raises ValueError for smaller
  images.
  """
  height, width = images.shape[1:3]
  if height < size[0] or width < size[1]:
    raise ValueError(
      f"config.data.middle must be no larger than the images, {height}x{width} pixels; it is {size}"
    )
  rows, columns = (
    slice((whole - kept) // 2, (whole + kept) // 2)
    for whole, kept in zip((height, width), size, strict=True)
  )
  return images[:, rows, columns]


def in_channels(images: np.ndarray, channels: int) -> np.ndarray:
  """Images [..., c] as grey (1), by their luminance, or RGB (3); 0 leaves them unchanged."""
  if channels in (0, images.shape[-1]):
    return images
  if images.shape[-1] == 2:
    raise ValueError(
      f"config.data.channels must be 0 for images of 2 channels, a stereo pair; it is {channels}"
    )
  if channels == 3:
    return np.repeat(images, 3, axis=-1)
  if images.dtype == np.uint8:
    grey = (images @ _LUMINANCE.astype(np.int32) + 32_768) // 65_536
  else:
    grey = np.clip(images @ (_LUMINANCE / 65_536), 0, 1)
  return grey.astype(images.dtype)[..., None]


def resized(images: np.ndarray, size: tuple[int, int], fill: str) -> np.ndarray:
  """Resizes images [n, h, w, c], uint8 or float, to a height and width in pixels.

  With `crop` the middle of an image fills the new shape; with `pad` the whole image lies in the
  middle of black; with `stretch` its proportions change. Bilinear; where images shrink, a pixel is
  averaged over the area that it covers.
  """
  if images.shape[1:3] == size:
    return images
  height, width = size
  dtype = np.uint8 if images.dtype == np.uint8 else np.float32
  results = np.zeros((len(images), height, width, images.shape[3]), dtype)
  for i, c in np.ndindex(len(images), images.shape[3]):  # Pillow has no image of two channels
    picture = Image.fromarray(np.ascontiguousarray(images[i, ..., c], dtype))
    if fill == "crop":
      filled = ImageOps.fit(picture, (width, height), Image.Resampling.BILINEAR)
      results[i, ..., c] = np.asarray(filled)
      continue
    inner = width, height
    if fill == "pad":
      scale = min(width / picture.width, height / picture.height)
      inner = max(1, round(scale * picture.width)), max(1, round(scale * picture.height))
    left, top = (width - inner[0]) // 2, (height - inner[1]) // 2
    whole = picture.resize(inner, Image.Resampling.BILINEAR)
    results[i, top : top + inner[1], left : left + inner[0], c] = np.asarray(whole)
  return results
