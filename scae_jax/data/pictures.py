"""Decoding of image files, the same for TFDS records and a user's folder."""

import io
import os
from collections.abc import Iterable

import numpy as np
from PIL import Image

Source = bytes | os.PathLike[str]  # the encoded bytes, or the path of a file
# Exact conversions to a mode that we keep: black and white, and palettes (GIF, some PNG).
_LOSSLESS = {"L": "L", "RGB": "RGB", "1": "L", "P": "RGB"}
_BY_CHANNELS = {1: "L", 3: "RGB"}


def decode_pictures(
  sources: Iterable[tuple[str, Source]], channels: int | None = None
) -> np.ndarray:
  """Decodes images of one size to uint8 [n, h, w, c], see `decode_picture`.

  Each comes with what an error calls it. Raises ValueError where one cannot be decoded, or differs
  from the first in its size or channels.
  """
  images, first = [], ""
  for where, source in sources:
    try:
      images.append(decode_picture(source, channels))
    except ValueError as error:
      raise ValueError(f"{where}: {error}") from error
    first = first or where
    if images[-1].shape != images[0].shape:
      raise ValueError(
        f"{where}: expected height, width and channels {images[0].shape}, as of {first}, got "
        f"{images[-1].shape}; bring all images to one size and to grey or RGB, and load them as "
        "data.name='folder'"
      )
  return np.stack(images)


def decode_picture(source: Source, channels: int | None = None) -> np.ndarray:
  """Decodes a PNG, JPEG, BMP, GIF or WebP image with Pillow: uint8 [h, w, c], c 1 or 3.

  EXIF rotation is not applied. With channels given, 1 or 3, it is converted to grey or RGB; else it
  keeps what the file has, where black-and-white counts as grey and a palette as RGB. Raises
  ValueError of what is broken, animated, or of a mode such as RGBA that has no grey or RGB form
  without loss.
  """
  try:
    with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
      frames = getattr(image, "n_frames", 1)
      image.load()  # Truncation shows here.
  # Pillow reports broken files by all of these.
  except (OSError, SyntaxError, EOFError, ValueError, Image.DecompressionBombError) as error:
    raise ValueError(
      f"expected a whole image file, got one that Pillow cannot read ({error}); replace it"
    ) from error
  if channels is not None:
    return _pixels(image.convert(_BY_CHANNELS[channels]))
  if frames > 1:
    raise ValueError(f"expected a still image, got one of {frames} frames; save one frame of it")
  if image.mode not in _LOSSLESS or "transparency" in image.info:
    what = f"mode {image.mode}" + (" with transparency" if "transparency" in image.info else "")
    raise ValueError(
      f"expected a grey (L) or RGB image of 8 bits without transparency, got {what}; "
      "convert it to grey or RGB"
    )
  return _pixels(image.convert(_LOSSLESS[image.mode]))


def _pixels(image: Image.Image) -> np.ndarray:
  pixels = np.asarray(image, dtype=np.uint8)
  return pixels if pixels.ndim == 3 else pixels[..., None]
