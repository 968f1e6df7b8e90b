"""Decoding of one image file, the same for TFDS records and a user's folder."""

import io
import os

import numpy as np
from PIL import Image

# Exact conversions to a mode that we keep: black and white, and palettes (GIF, some PNG).
_LOSSLESS = {"L": "L", "RGB": "RGB", "1": "L", "P": "RGB"}
_BY_CHANNELS = {1: "L", 3: "RGB"}


def decode_picture(source: bytes | os.PathLike[str], channels: int | None = None) -> np.ndarray:
  """Decodes a PNG, JPEG, BMP, GIF or WebP image with Pillow. EXIF rotation is not applied.

  Args:
    source: the encoded bytes, or the path of a file.
    channels: 1 or 3 converts to grey or RGB; None keeps what the file has, where black-and-white
      counts as grey and a palette as RGB.

  Returns:
    uint8 [h, w, c], c 1 or 3.

  Raises:
    ValueError: not an image, broken, animated, or of a mode such as RGBA that has no grey or RGB
      form without loss. The message does not name the file; callers do.
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
