"""smallNORB: toys from many viewpoints, and splits by viewpoint (Hinton et al. 2018, section 5).

smallnorb                   its own train and test split, by toy
smallnorb:novel_azimuth     trained on the azimuths 300, 320, 340, 0, 20 and 40 degrees
smallnorb:novel_elevation   trained on the three lowest of nine elevations

The images of both cameras are two channels, averaged to 48x48 pixels. With a split by viewpoint,
"train" has the training toys at the viewpoints for training, "test" the test toys at all others,
and "familiar" the test toys at the viewpoints for training.
"""

import pathlib

import numpy as np

from scae_jax.data.dataset import Dataset, Split, in_common_form
from scae_jax.data.image_files import AS_IT_IS, Form
from scae_jax.data.tfds_source import TfdsSet, read_records

SIDE = 48  # pixels
_LABELS = ("label_category", "label_azimuth", "label_elevation")
KEYS = ("image", *_LABELS)  # of one camera

# The angle that divides, as an index of `_LABELS`, and its values that are for training.
DIVISIONS = {
  "novel_azimuth": (1, (15, 16, 17, 0, 1, 2)),  # in units of 20 degrees
  "novel_elevation": (2, (0, 1, 2)),  # from 30 degrees up, in units of 5
}


def decode_smallnorb(
  source: TfdsSet, folder: pathlib.Path, division: str, form: Form = AS_IT_IS
) -> Dataset:
  """Decodes the prepared version in a folder, halves the images, and divides them by viewpoint.

  The division is one of `DIVISIONS`, or "" for the set's own splits; images are then brought to the
  form. Raises ValueError as `read_records` does, and if images are not 96x96.
  """
  full_name = f"smallnorb:{division}" if division else "smallnorb"
  class_names, left = read_records(source, folder, KEYS)
  _, right = read_records(source, folder, ("image2", *_LABELS))
  splits = {}
  for name, (left_images, labels) in left.items():
    right_images, _ = right[name]
    shapes = {images.shape[1:] for images in (left_images, right_images)}
    if shapes != {(2 * SIDE, 2 * SIDE, 1)}:
      raise ValueError(
        f"data set {full_name!r}, split {name!r}: expected grey images of {2 * SIDE}x{2 * SIDE} "
        f"pixels, got height, width and channels {shapes}; prepare TFDS's smallnorb anew"
      )
    pairs = np.concatenate([halve(left_images), halve(right_images)], axis=3)
    split = Split(pairs, np.ascontiguousarray(labels[:, 0]))
    if not division:
      splits[name] = split
      continue
    angle, familiar = DIVISIONS[division]
    is_familiar = np.isin(labels[:, angle], familiar)
    if name == "train":
      splits["train"] = split.take(is_familiar)
    else:
      splits |= {"test": split.take(~is_familiar), "familiar": split.take(is_familiar)}
  return in_common_form(Dataset(full_name, class_names, splits), form)


def halve(images: np.ndarray) -> np.ndarray:
  """Means over squares of 2x2 pixels of uint8 [n, 2h, 2w, c], rounded, halves up."""
  num_images, height, width, channels = images.shape
  squares = images.reshape(num_images, height // 2, 2, width // 2, 2, channels)
  return ((squares.sum(axis=(2, 4), dtype=np.uint16) + 2) // 4).astype(np.uint8)
