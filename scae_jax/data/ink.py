"""Photographs of writing as bright ink on a dark ground.

Writing in photographs is darker or brighter than its ground, of any colour and contrast, and light
falls on it unevenly. A change of polarity, hue, brightness or contrast moves all pixels alike along
a line of colours; where a pixel is on that line, from the ground to the ink, stays.
"""

import numpy as np
from scipy.ndimage import gaussian_filter

NEIGHBOURHOOD = 1 / 4  # of the height: standard deviation of the Gaussian that is the local mean
GROUND_SHARE, INK_SHARE = 0.3, 0.05  # of the pixels that become 0 and 1
MIN_RANGE = 1e-3  # smaller ranges of colours, of pixels in [0, 1], are noise


def ink(images: np.ndarray) -> np.ndarray:
  """Images [n, h, w, c], uint8 or float in [0, 1], as grey ones [n, h, w, 1] of the same type.

  A pixel is its place on the main axis of its image's colours (the first principal component), less
  the mean of its neighbourhood, scaled to [0, 1]. Strokes are narrower than the ground between
  them, so that the distribution of places has its long tail where the ink is; this end is bright.
  An image of one colour is black. Raises ValueError for images of two channels, stereo pairs.
  """
  if images.shape[-1] == 2:
    raise ValueError("config.data.ink must be off for images of 2 channels, a stereo pair")
  if not images.size:  # NumPy has no quantiles of nothing
    return images[..., :1]
  is_uint8 = images.dtype == np.uint8
  pixels = images / 255 if is_uint8 else images.astype(np.float64)
  number, height, width, channels = images.shape
  colours = pixels.reshape(number, height * width, channels)
  colours = colours - colours.mean(axis=1, keepdims=True)
  axis = np.linalg.eigh(np.swapaxes(colours, 1, 2) @ colours)[1][..., -1]
  places = (colours @ axis[..., None]).reshape(number, height, width)

  sigma = NEIGHBOURHOOD * height
  places = places - gaussian_filter(places, (0, sigma, sigma), mode="nearest")
  is_dark = np.mean(places**3, axis=(1, 2)) < 0
  places = np.where(is_dark[:, None, None], -places, places)

  low = np.quantile(places, GROUND_SHARE, axis=(1, 2), keepdims=True)
  high = np.quantile(places, 1 - INK_SHARE, axis=(1, 2), keepdims=True)
  scaled = np.clip((places - low) / np.maximum(high - low, MIN_RANGE), 0, 1)[..., None]
  return np.round(255 * scaled).astype(np.uint8) if is_uint8 else scaled.astype(images.dtype)
