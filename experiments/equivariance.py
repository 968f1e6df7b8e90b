"""How the poses of a trained model follow motions of its input: numbers and one figure.

    python -m experiments.equivariance runs/digits results/digits

Writes `equivariance-<workdir>.md`, `.json` and `.png` into the folder, for each seed if a run has
several.

If an image moves by T, the pose P of each of its parts and objects should become T P. The error is
the distance of the inferred pose from T P. It is compared with the distance of P from T P, the
error of poses that do not move. The ratio of the two is 0 for a model whose poses follow perfectly,
and 1 for one whose poses stay where they are; above 1, poses go elsewhere.

The distance of two poses is the root mean square of the distances between the four corners (+-1,
+-1) of a capsule's frame, in image pixels: the Frobenius norm of the difference of the 2x3
matrices. The distance of the frames' middles, which is that of the translations, is given too.

Limits. A template with a symmetry, such as a disc, has several poses that are equally right; a
model that changes from one to another counts as wrong. The middles are less ambiguous. Another part
may take over a stroke: presences then change. An object's frame is learned: its errors in pixels
cannot be compared with those of parts or of other models, but ratios can.

Means are over examples and capsules, weighted by the presence before times the presence after.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from experiments.findings import Findings, ImageRun, measure_images
from scae_jax.data import affine
from scae_jax.data.batches import evaluation_batch
from scae_jax.evaluation.encode import encode_dataset
from scae_jax.evaluation.moved_parts import (
  motions,
  named_by_images,
  pose_motion,
  right_when_parts_move,
  right_winners,
)
from scae_jax.evaluation.tables import table
from scae_jax.figures import FIGURES
from scae_jax.models.system import Encoding, System

# Pixels, degrees and factors. Each family has the identity, whose errors must be 0.
SIZES: dict[str, tuple[float, ...]] = {
  "translation": (0, 1, 2, 3, 4, 5, 6),
  "rotation": (0, 5, 10, 15, 20, 30, 45),
  "scaling": (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3),
}
# Pixels by which images, or the poses of their parts, are moved in `measure_displacements`.
DISPLACEMENTS = (0, 3, 6, 8, 10, 12)
MIN_SHARE = 0.5  # share of examples whose ink must stay on the canvas for a size to be measured

REMARK = (
  "Error: distance of the pose found from the ideal one, pixels. Unmoved: that of a pose that does"
  " not move. Their ratio is 0 where poses follow perfectly."
)
DISPLACED = (
  "Digit: label of the winning object, named by the images that it wins where nothing moves. Parts"
  " moved exactly: their poses alone are moved, as found in the image that is not moved."
)


def pose_distance(first: np.ndarray, second: np.ndarray, canvas: int) -> np.ndarray:
  """Root mean square distance [...] of a frame's corners under two poses [..., 2, 3], pixels."""
  return np.sqrt(np.sum(np.square(first - second), axis=(-2, -1))) * (canvas - 1) / 2


def measure_equivariance(
  system: System, variables: Any, images: np.ndarray, *, canvas: int, batch_size: int
) -> dict[str, Any]:
  """Measures every family and size on images uint8 [n, h, w, c], n at least 2.

  A size is measured on the examples whose ink stays on the canvas under all of its motions; it is
  left out if they are fewer than half. A system whose encoding has no poses [b, n, 2, 3] and fewer
  than 2 images raise ValueError.

  Returns:
    `present` has for each kind of capsule, `parts` and `objects`, its mean presence, and the mean
    absolute difference of presences between two unrelated examples. Each family has a list of
    entries by size: `size`, `examples`, and for each kind `pose_error`, `shift_error`,
    `presence_change`, and the errors of poses that do not move, `pose_unmoved` and `shift_unmoved`.
    Errors are in pixels, None where no capsule is present.
  """
  if len(images) < 2:
    raise ValueError(f"Equivariance takes at least 2 images, got {len(images)}.")
  label = np.zeros(len(images), np.int32)  # a batch must have labels; they are not used
  make_batch = functools.partial(evaluation_batch, canvas=canvas)

  def poses_in(images: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    # An example always has the same place in a batch: a model that keeps its noise on in evaluation
    # then has the same noise before and after the motion.
    examples = {"image": images, "label": label}
    return poses_of(encode_dataset(system, variables, examples, make_batch, batch_size=batch_size))

  before = poses_in(moved_images(images, np.eye(2, 3), canvas)[0])
  if not before:
    raise ValueError(
      "Equivariance is measured on poses [b, n, 2, 3], and this system's encoding has none."
      " Choose another run."
    )
  results: dict[str, Any] = {"present": {}}
  order = np.random.RandomState(0).permutation(len(images))
  for kind, (_, presence) in before.items():
    presence = presence[order]
    other = np.roll(presence, 1, axis=0)
    results["present"][kind] = {
      "presence": float(presence.mean()),
      "presence_between_examples": float(np.abs(presence - other).mean()),
    }
  for family, sizes in SIZES.items():
    results[family] = []
    for size in sizes:
      moved = [(motion, *moved_images(images, motion, canvas)) for motion in motions(family, size)]
      keeps_ink = np.all([keeps for _, _, keeps in moved], axis=0)
      if keeps_ink.mean() < MIN_SHARE:
        continue
      totals: dict[str, dict[str, list[np.ndarray]]] = {kind: {} for kind in before}
      for motion, pictures, _ in moved:
        after = poses_in(pictures)
        for kind in before:
          pose_map = pose_motion(motion, canvas)
          for name, values in _compare(before[kind], after[kind], pose_map, canvas):
            totals[kind].setdefault(name, []).append(values[keeps_ink])
      entry = {"size": size, "examples": int(keeps_ink.sum())}
      results[family].append(
        entry | {kind: _means(values_by_name) for kind, values_by_name in totals.items()}
      )
  return results


def measure_displacements(
  system: System,
  variables: Any,
  examples: Mapping[str, np.ndarray],
  *,
  canvas: int,
  batch_size: int,
) -> dict[str, list[dict[str, Any]]]:
  """How often the winning object still has the image's label when the image or its parts move.

  The winning object has the largest posterior mass. It is named by the most frequent label of the
  images, not moved, that it wins. Images move in four directions, resampled; those that lose ink
  are left out. `parts`: the parts as they are found in the image that is not moved, all their poses
  moved exactly, for the object half alone.

  Args:
    system: a system with `encode_moved`; ValueError for another.
    variables: its parameters.
    examples: `image` uint8 [n, h, w, c] and `label` int32 [n].
    canvas: side of the canvas, pixels.
    batch_size: examples in a pass.

  Returns:
    Entries for `images` by `DISPLACEMENTS`, as long as any keep their ink, with `size`, `examples`
    (mean over directions), `accuracy` and the mean `place_error` of the parts, pixels (None where
    no part is present); for `parts` by displacement, `parts_rotation` and
    `parts_scaling` (about the middle of the image), with `size` and `accuracy`.
  """
  if system.encode_moved is None:
    raise ValueError("Parts are moved in systems with parts and objects. Choose another run.")
  make_batch = functools.partial(evaluation_batch, canvas=canvas)
  encode = functools.partial(
    encode_dataset, system, variables, make_batch=make_batch, batch_size=batch_size
  )
  images, labels = examples["image"], examples["label"]
  unmoved = {"image": images, "label": labels}
  before = encode(unmoved)
  label_of_object = named_by_images(before, labels)

  parts, by_image = poses_of(before)["parts"], []
  for size in DISPLACEMENTS:
    right, totals = [], {}  # of the examples that keep their ink, in every direction
    for motion in motions("translation", size):
      moved, keeps_ink = moved_images(images, motion, canvas)
      after = encode({"image": moved, "label": labels})
      right.append(right_winners(after, labels, label_of_object)[keeps_ink])
      compared = _compare(parts, poses_of(after)["parts"], pose_motion(motion, canvas), canvas)
      for name, values in compared:
        totals.setdefault(name, []).append(values[keeps_ink])
    is_right = np.concatenate(right)
    if len(is_right) == 0:  # no image fits on the canvas any more
      continue
    entry = {"size": size, "examples": len(is_right) // len(right)}
    accuracy, place_error = float(is_right.mean()), _means(totals)["shift_error"]
    by_image.append(entry | {"accuracy": accuracy, "place_error": place_error})
  by_parts = {family: [] for family in SIZES}
  for family, sizes in (SIZES | {"translation": DISPLACEMENTS}).items():
    for size in sizes:
      accuracy = right_when_parts_move(
        functools.partial(encode, unmoved), labels, label_of_object, family, size, canvas
      )
      by_parts[family].append({"size": size, "accuracy": accuracy})
  names = {"translation": "parts", "rotation": "parts_rotation", "scaling": "parts_scaling"}
  return {"images": by_image} | {names[family]: by_parts[family] for family in by_parts}


def poses_of(encoding: Encoding) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """Poses [n, capsules, 2, 3] in the image and presences [n, capsules], by kind of capsule."""
  kinds = {
    "parts": (encoding.part_poses, encoding.part_presence),
    "objects": (encoding.object_poses, encoding.object_presence),
  }
  return {
    kind: (np.asarray(poses), np.asarray(presence))
    for kind, (poses, presence) in kinds.items()
    if poses is not None and presence is not None and poses.shape[2:] == (2, 3)
  }


def _compare(
  before: tuple[np.ndarray, np.ndarray],
  after: tuple[np.ndarray, np.ndarray],
  motion: np.ndarray,
  canvas: int,
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields names and values [n, capsules]: the distances, and the `weight` of each."""
  (poses, presence), (new_poses, new_presence) = before, after
  ideal = motion[:, :2] @ poses
  ideal[..., 2] += motion[:, 2]
  yield "weight", presence * new_presence
  yield "presence_change", np.abs(new_presence - presence)
  for name, compared_poses in (("error", new_poses), ("unmoved", poses)):
    yield f"pose_{name}", pose_distance(compared_poses, ideal, canvas)
    yield f"shift_{name}", pose_distance(compared_poses[..., 2:], ideal[..., 2:], canvas)


def _means(values_by_name: dict[str, list[np.ndarray]]) -> dict[str, float | None]:
  """Mean of each quantity: weighted for errors, unweighted for presence changes."""
  values = {n: np.concatenate(chunks).astype(np.float64) for n, chunks in values_by_name.items()}
  weight = values.pop("weight")
  means: dict[str, float | None] = {"presence_change": float(values.pop("presence_change").mean())}
  for name, errors in values.items():
    means[name] = float((weight * errors).sum() / weight.sum()) if weight.sum() > 0 else None
  return means


def moved_images(
  images: np.ndarray, motion: np.ndarray, canvas: int
) -> tuple[np.ndarray, np.ndarray]:
  """Images moved about the middle of the canvas, resampled once; and which of them keep all ink."""
  placed = affine.place(np.eye(2)[None], np.zeros((1, 2)), images.shape[1:], canvas)
  middle = (canvas - 1) / 2
  moved = motion[:, :2] @ placed[0]
  moved[:, 2] += middle + motion[:, 2] - motion[:, :2] @ np.full(2, middle)
  maps = np.broadcast_to(moved, (len(images), 2, 3))
  return affine.resample(images, maps, canvas), affine.keeps_ink(images, maps, canvas)


def table_of(results: dict[str, Any]) -> str:
  """Markdown: a row for each motion; for each kind of capsule errors, ratio, presence change."""
  kinds = list(results["present"])
  formats = {"error, pixels": ".2f", "unmoved": ".2f", "ratio": ".2f", "presence change": ".3f"}
  columns = {"": "", "examples": ""}
  columns |= {f"{kind}: {name}": form for kind in kinds for name, form in formats.items()}
  rows = []
  for family in SIZES:
    for entry in results[family]:
      cells = [f"{family} {entry['size']:g}", entry["examples"]]
      for kind in kinds:
        error, unmoved = entry[kind]["pose_error"], entry[kind]["pose_unmoved"]
        ratio = error / unmoved if unmoved else None
        cells += [error, unmoved, ratio, entry[kind]["presence_change"]]
      rows.append(cells)
  return table(columns, rows)


def displacements_table(results: dict[str, Any]) -> str:
  """Markdown: a row for each displacement: the winning object's digit, and the parts' places."""
  columns = {"pixels": "", "image moved: digit, %": ".1f", "parts' places: error, pixels": ".1f"}
  columns |= {"examples": "", "parts moved exactly: digit, %": ".1f"}
  images = {entry["size"]: entry for entry in results["images"]}
  rows = []
  for parts in results["parts"]:
    image_cells = [None, None, None]  # of images that do not fit on the canvas any more
    if image := images.get(parts["size"]):
      image_cells = [100 * image["accuracy"], image["place_error"], image["examples"]]
    rows.append([parts["size"], *image_cells, 100 * parts["accuracy"]])
  return table(columns, rows)


def measure(images: ImageRun, variables: Any, head: dict[str, Any]) -> Findings:
  """Measures one seed."""
  run, scored_on = images.run, images.scored_on
  results = measure_equivariance(run.system, variables, images.examples["image"], **images.sizes)
  title = (
    f"Poses of moved images: {scored_on['dataset']} {scored_on['split']}, step {head['step']:,}"
  )
  draw = functools.partial(FIGURES["equivariance"], results, title)
  paragraphs = [title, table_of(results), REMARK]
  if run.system.encode_moved is not None:
    results["displacements"] = measure_displacements(
      run.system, variables, images.examples, **images.sizes
    )
    paragraphs += [displacements_table(results["displacements"]), DISPLACED]
  return Findings({"scored_on": scored_on, **results}, paragraphs, draw)


def main() -> None:
  """Measures, writes and prints."""
  measure_images("equivariance", __doc__, measure, max_examples=1000)


if __name__ == "__main__":
  main()
