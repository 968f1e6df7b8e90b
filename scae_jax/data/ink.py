"""Photographs of writing as bright ink on a dark ground.

Writing in photographs is darker or brighter than its ground, of any colour and contrast, and light
falls on it unevenly. The colours of such an image lie along a line, from the ground to the ink.
What is kept is where a pixel lies on it; polarity, hue, brightness and contrast do not change that.
"""

import numpy as np
from scipy.ndimage import gaussian_filter

NEIGHBOURHOOD = 1 / 4  # of the height: standard deviation of the Gaussian that is the local mean
GROUND_SHARE, INK_SHARE = 0.3, 0.05  # of the pixels that become 0 and 1
INK_VERSION = 2  # in the names of cache files: images cached by another version are not read
MIN_RANGE = 1e-3  # smaller ranges of colours, of pixels in [0, 1], are noise
BLOCK = 1_000  # images at once, which take the memory of some ten copies in float64


def ink(images: np.ndarray) -> np.ndarray:
  """Images [n, h, w, c], uint8 or float in [0, 1], as grey ones [n, h, w, 1] of the same type.

  A pixel is its position on the first principal component of its image's colours, less the mean of
  its neighbourhood, scaled to [0, 1]. Strokes cover less than their ground, so the longer tail of
  the positions is the ink, and becomes bright. But strokes that cover less than `INK_SHARE` of an
  image, such as a line of one pixel, leave the ground grey; `data.middle` enlarges their share. An
  image of one colour is black. Raises ValueError for images of two channels, stereo pairs.
  """
  if images.shape[-1] == 2:
    raise ValueError("config.data.ink must be off for images of 2 channels, a stereo pair")
  if not images.size:  # NumPy has no quantiles of nothing
    return images[..., :1]
  starts = range(0, len(images), BLOCK)
  return np.concatenate([_ink(images[start : start + BLOCK]) for start in starts])


def _ink(images: np.ndarray) -> np.ndarray:
  """`ink` of a block of images, at least one."""
  is_uint8 = images.dtype == np.uint8
  pixels = images / 255 if is_uint8 else images.astype(np.float64)
  number, height, width, channels = images.shape
  colours = pixels.reshape(number, height * width, channels)
  colours = colours - colours.mean(axis=1, keepdims=True)
  direction = np.linalg.eigh(np.swapaxes(colours, 1, 2) @ colours)[1][..., -1]
  positions = (colours @ direction[..., None]).reshape(number, height, width)

  sigma = NEIGHBOURHOOD * height
  positions = positions - gaussian_filter(positions, (0, sigma, sigma), mode="nearest")
  is_dark = np.mean(positions**3, axis=(1, 2)) < 0
  positions = np.where(is_dark[:, None, None], -positions, positions)

  low = np.quantile(positions, GROUND_SHARE, axis=(1, 2), keepdims=True)
  high = np.quantile(positions, 1 - INK_SHARE, axis=(1, 2), keepdims=True)
  scaled = np.clip((positions - low) / np.maximum(high - low, MIN_RANGE), 0, 1)[..., None]
  return np.round(255 * scaled).astype(np.uint8) if is_uint8 else scaled.astype(images.dtype)
