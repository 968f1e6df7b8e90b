"""Photographs of writing as bright ink on a dark ground.

Writing in photographs may be darker or brighter than its ground, of any colour and contrast. A
change of polarity, hue, brightness or contrast moves all pixels alike along a line of colours;
where a pixel is on that line, from the ground to the ink, stays.
"""

import numpy as np

MARGIN = 3 / 32  # of the height: rows at the upper and at the lower edge, which are the ground
MIDDLE_HEIGHT, MIDDLE_WIDTH = 1 / 2, 3 / 8  # of the sides: the middle, which has the ink
GROUND_SHARE, INK_SHARE = 0.05, 0.02  # of the pixels that become 0 and 1
MIN_RANGE = 1e-3  # smaller ranges of colours, of pixels in [0, 1], are noise


def ink(images: np.ndarray) -> np.ndarray:
  """Images [n, h, w, c], uint8 or float in [0, 1], as grey ones [n, h, w, 1] of the same type.

  A pixel is its place on the main axis of its image's colours (the first principal component),
  scaled to [0, 1]. The middle of an image is brighter than its upper and lower edge. An image of
  one colour is black. Raises ValueError for images of two channels, stereo pairs.
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
  axis = np.where(axis.sum(axis=1, keepdims=True) < 0, -axis, axis)  # of both signs the brighter
  places = (colours @ axis[..., None]).reshape(number, height, width)

  margin = max(1, round(MARGIN * height))
  edges = np.concatenate([places[:, :margin], places[:, -margin:]], axis=1)
  rows, columns = (
    slice(round((1 - share) / 2 * side), round((1 + share) / 2 * side))
    for share, side in ((MIDDLE_HEIGHT, height), (MIDDLE_WIDTH, width))
  )
  middle = places[:, rows, columns]
  is_dark = np.median(edges, axis=(1, 2)) > np.median(middle, axis=(1, 2))
  places = np.where(is_dark[:, None, None], -places, places)

  low = np.quantile(places, GROUND_SHARE, axis=(1, 2), keepdims=True)
  high = np.quantile(places, 1 - INK_SHARE, axis=(1, 2), keepdims=True)
  scaled = np.clip((places - low) / np.maximum(high - low, MIN_RANGE), 0, 1)[..., None]
  return np.round(255 * scaled).astype(np.uint8) if is_uint8 else scaled.astype(images.dtype)
