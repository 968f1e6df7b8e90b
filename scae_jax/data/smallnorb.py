"""smallNORB: toys from many viewpoints, and splits by viewpoint (Hinton et al. 2018, section 5).

smallnorb                   its own train and test split, by toy
smallnorb:novel_azimuth     trained on the azimuths 300, 320, 340, 0, 20 and 40 degrees
smallnorb:novel_elevation   trained on the three lowest of nine elevations

The set is TFDS's; a version may follow its name, as in smallnorb:2.0.0. Images are those of both
cameras, as two channels, averaged to 48x48 pixels. Of the splits by viewpoint, "train" has the
training toys at the viewpoints trained on, "test" the test toys at all others, and "familiar" the
test toys at the viewpoints trained on.
"""

import dataclasses
import re

import numpy as np

from scae_jax.data.dataset import Dataset, Split
from scae_jax.data.prepared import PreparedSet, SetReference
from scae_jax.data.tfds_source import read_records

__all__ = ["Request", "decode_smallnorb", "halve", "parse_smallnorb"]

SIDE = 48  # pixels
_STORED_SIDE = 2 * SIDE
_NAME = re.compile(r"(smallnorb)(?::(\d+\.\d+\.\d+))?(?::(.*))?")
_CAMERAS = ("image", "image2")
_KEYS = ("label_category", "label_azimuth", "label_elevation")


@dataclasses.dataclass(frozen=True)
class _Viewpoint:
  """One of the two angles of a viewpoint.

  Attributes:
    label: its place in `_KEYS`.
    count: labels that there are.
    familiar: those trained on.
  """

  label: int
  count: int
  familiar: tuple[int, ...]


_VIEWPOINTS = {
  "novel_azimuth": _Viewpoint(1, 18, (15, 16, 17, 0, 1, 2)),  # in units of 20 degrees
  "novel_elevation": _Viewpoint(2, 9, (0, 1, 2)),  # from 30 degrees up, in units of 5
}
_NAMES = ("smallnorb", *(f"smallnorb:{novel}" for novel in _VIEWPOINTS))


@dataclasses.dataclass(frozen=True)
class Request:
  """A name, read.

  Attributes:
    reference: the set of TFDS.
    novel: "novel_azimuth", "novel_elevation", or "" for the set's own splits.
  """

  reference: SetReference
  novel: str

  @property
  def full_name(self) -> str:
    """The data set's name, without the version."""
    return f"smallnorb:{self.novel}" if self.novel else "smallnorb"

  @property
  def stem(self) -> str:
    """The start of its cache files' names, which are not those of the images in full size."""
    return "-".join(["smallnorb", str(SIDE), *([self.novel] if self.novel else [])])


def parse_smallnorb(name: str) -> Request | None:
  """What a name asks for; None if it is of another data set.

  Raises:
    ValueError: it is of smallNORB, and of splits that there are not.
  """
  match = _NAME.fullmatch(name)
  if match is None:
    return None
  builder, version, novel = match[1], match[2] or "", match[3] or ""
  if name.endswith(":") or (novel and novel not in _VIEWPOINTS):
    raise ValueError(f"expected one of {', '.join(map(repr, _NAMES))}, got {name!r}; correct it")
  text = f"{builder}:{version}" if version else builder
  return Request(SetReference(text, builder, "", version), novel)


def decode_smallnorb(prepared: PreparedSet, request: Request) -> Dataset:
  """Decodes the prepared set, halves the images, and divides them as it is asked.

  Args:
    prepared: where the files are.
    request: which splits.

  Raises:
    ValueError: what `read_records` says; images that are not 96x96, labels outside their range, or
      a split without images.
  """
  records = [read_records(prepared, (camera, *_KEYS)) for camera in _CAMERAS]
  splits = {}
  for name, (_, labels) in records[0].splits.items():
    where = f"data set {request.full_name!r}, split {name!r}"
    cameras = []
    for images in (each.splits[name][0] for each in records):
      if images.shape[1:] != (_STORED_SIDE, _STORED_SIDE, 1):
        raise ValueError(
          f"{where}: expected grey images of {_STORED_SIDE}x{_STORED_SIDE} pixels, got height, "
          f"width and channels {images.shape[1:]}; prepare TFDS's smallnorb anew"
        )
      cameras.append(halve(images))
    halves = Split(np.concatenate(cameras, axis=3), np.ascontiguousarray(labels[:, 0]))
    if request.novel:
      splits |= _by_viewpoint(where, name, halves, labels, _VIEWPOINTS[request.novel])
    else:
      splits[name] = halves
  return Dataset(request.full_name, records[0].class_names, splits)


def halve(images: np.ndarray) -> np.ndarray:
  """Means over squares of 2x2 pixels, rounded to the nearest, halves up.

  Args:
    images: uint8 [n, 2h, 2w, c].

  Returns:
    uint8 [n, h, w, c].
  """
  num_images, height, width, channels = images.shape
  squares = images.reshape(num_images, height // 2, 2, width // 2, 2, channels)
  return ((squares.sum(axis=(2, 4), dtype=np.uint16) + 2) // 4).astype(np.uint8)


def _by_viewpoint(
  where: str, name: str, split: Split, labels: np.ndarray, viewpoint: _Viewpoint
) -> dict[str, Split]:
  """What the train or the test split gives to the splits by viewpoint."""
  own = labels[:, viewpoint.label]
  outside = np.flatnonzero((own < 0) | (own >= viewpoint.count))
  if outside.size:
    raise ValueError(
      f"{where}: expected {_KEYS[viewpoint.label]} from 0 to {viewpoint.count - 1}, got "
      f"{own[outside[0]]} for example {outside[0]}; prepare TFDS's smallnorb anew"
    )
  is_familiar = np.isin(own, viewpoint.familiar)

  def chosen(rows: np.ndarray) -> Split:
    return Split(split.images[rows], split.labels[rows])

  if name == "train":
    return {"train": chosen(is_familiar)}
  return {"test": chosen(~is_familiar), "familiar": chosen(is_familiar)}
