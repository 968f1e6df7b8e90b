"""Draws images from a known model and tests whether training recovers its objects.

    python -m experiments.recovery draw runs/recovery-scenes
    python train.py --config=configs/probabilistic.py:recovery
    python -m experiments.recovery score runs/probabilistic-recovery results/probabilistic

`draw` makes images from a known model, in one folder (a class) for each set of present objects. The
model has three objects of two parts each. An object is at most once in a scene, and objects may
overlap. `score` infers which objects of the trained model are present (a posterior probability
above 0.5), matches them to the true ones on training images, and writes the share of right
presences on test images, and the bounds, to `recovery-<workdir>.json`.
"""

import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from PIL import Image
from scipy.optimize import linear_sum_assignment

from experiments.findings import command_line, write_record
from scae_jax.config import plain_parser
from scae_jax.data.batches import evaluation_batch
from scae_jax.data.dataset import Dataset
from scae_jax.errors import RunError, as_run_errors, exit_with_message
from scae_jax.evaluation.encode import mean_metrics, measure_dataset
from scae_jax.evaluation.provenance import recorded_folder
from scae_jax.math.routing.selection import Capsules
from scae_jax.models.probabilistic.generative_model import GenerativeCapsules
from scae_jax.training.run import Run, open_run
from scae_jax.typing import Array

CANVAS = 20
NUM_SCENES = {"train": 4_000, "test": 1_000}
# A glyph for each part, 5x5 pixels in a template of 7x7. None is an affine image of another: one
# part could then draw both.
GLYPHS = (
  ("#####", "#...#", "#...#", "#...#", "#####"),
  ("..#..", "..#..", "#####", "..#..", "..#.."),
  ("#....", "#....", "#....", "#....", "#####"),
  ("#####", "..#..", "..#..", "..#..", "..#.."),
  ("#...#", "#...#", "#...#", "#...#", "#...#"),
  (".....", ".###.", ".###.", ".###.", "....."),
)
# Positions of the parts in each object, x and y, in units of half the object's side.
PLACES = (
  ((-0.5, -0.5), (0.5, -0.5)),
  ((-0.5, 0.1), (0.5, 0.1)),
  ((0.0, -0.1), (0.0, 0.6)),
)
PART_SIZE = 0.34  # of half the object's side
CERTAIN = 6.0  # a logit
# The first seed of the splits. The config was chosen on images of others.
FIRST_SEED = 2


def true_model() -> GenerativeCapsules:
  """The model that the images are drawn from."""
  return GenerativeCapsules(
    capsules=(len(GLYPHS), len(PLACES)),
    channels=1,
    template_size=7,
    nonlinearity="sigmoid",
    pixel_scale=0.05,
    temperature=0.5,
    top_presence=0.5,
    top_scale=0.12,
    dummy_affinity=0.05,
    broad_scale=0.5,
    min_scale=0.02,
    initial_scale=0.03,
    shared_scales=True,
  )


def true_parameters() -> dict[str, Any]:
  """Each object has two parts of its own, which are present nearly only if it is."""
  count, objects = len(GLYPHS), len(PLACES)
  ink = np.array([[[cell == "#" for cell in row] for row in glyph] for glyph in GLYPHS])
  ink = np.pad(ink, ((0, 0), (1, 1), (1, 1)))[..., None]
  logits = np.where(ink, CERTAIN, -CERTAIN).astype(np.float32)
  object_of_part = np.arange(count) // (count // objects)
  is_own_part = object_of_part[None] == np.arange(objects)[:, None]
  offsets = np.zeros((objects, count, 2, 3), np.float32)
  offsets[:, :, [0, 1], [0, 1]] = PART_SIZE - 1
  offsets[:, :, :, 2] = np.concatenate(PLACES)[None]
  presence = np.concatenate([np.where(is_own_part, 3.0, -3.0), np.full((1, count), -4.0)])
  scale = np.log(np.expm1(0.01)) * np.ones((1, count, 6))
  return {
    "templates": jnp.full(logits.shape, CERTAIN),
    "alphas": jnp.asarray(logits),
    "affinity_1": jnp.asarray(np.where(is_own_part, 0.0, -CERTAIN), jnp.float32),
    "presence_1": jnp.asarray(presence, jnp.float32),
    "offset_1": jnp.asarray(offsets),
    "scale_1": jnp.asarray(scale, jnp.float32),
  }


def draw_scenes(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
  """Images uint8 [n, h, w, 1] and the presences of objects, bool [n, k]."""
  keys = jax.random.split(jax.random.key(seed), count)
  draw = jax.jit(nn.apply(_draw, true_model()))
  picture, is_present = draw({"params": true_parameters()}, keys)
  noise = np.random.default_rng(seed).normal(0, true_model().pixel_scale, picture.shape)
  image = np.clip(np.asarray(picture) + noise, 0, 1)
  return np.round(255 * image).astype(np.uint8), np.asarray(is_present)


def _draw(module: GenerativeCapsules, keys: Array) -> tuple[Array, Array]:
  """Draws an image with each key, without noise; returns the presences of objects, too."""

  def layers(key: Array) -> tuple[Capsules, Capsules]:
    top_key, below_key = jax.random.split(key)
    (parts, objects), _ = module.sample(below_key, module.sample_top(top_key))
    return parts, objects

  parts, objects = jax.vmap(layers)(keys)
  return module.draw(parts, CANVAS), objects.presence > 0.5


def write_scenes(folder: pathlib.Path, num_scenes: Mapping[str, int]) -> None:
  """Writes <folder>/<split>/objects-0-2/<number>.png, where objects 0 and 2 are present."""
  for seed, (split, count) in enumerate(num_scenes.items(), start=FIRST_SEED):
    images, is_present = draw_scenes(seed, count)
    for number, (image, present) in enumerate(zip(images, is_present, strict=True)):
      objects = "-".join(map(str, np.flatnonzero(present)))
      path = folder / split / f"objects-{objects}" / f"{number:05}.png"
      path.parent.mkdir(parents=True, exist_ok=True)
      Image.fromarray(image[..., 0]).save(path)


def true_presences(dataset: Dataset, split: str) -> np.ndarray:
  """The true presences, bool [n, k], from the names of the classes."""
  names = [dataset.class_names[label] for label in dataset.splits[split].labels]
  objects = range(len(PLACES))
  return np.array([[str(k) in name.split("-")[1:] for k in objects] for name in names])


def score(run: Run, variables: Mapping[str, Any]) -> dict[str, Any]:
  """Shares of right presences, over all and by object, and of images with all presences right.

  Has the mean bounds on training and test images, too, in nats.
  """
  dataset, batch_size = run.dataset, run.settings.evaluation.batch_size
  assert isinstance(dataset, Dataset)
  make_batch = functools.partial(evaluation_batch, canvas=CANVAS)
  inferred, bounds = {}, {}
  for split in NUM_SCENES:
    examples = dataset.splits[split].arrays
    encoding, metrics, _ = measure_dataset(
      run.system, variables, examples, make_batch, batch_size=batch_size
    )
    inferred[split] = np.asarray(encoding.features["presences"]) > 0.5
    bounds[split] = mean_metrics(metrics)["bound"]
  true = {split: true_presences(dataset, split) for split in NUM_SCENES}
  # [k, objects]: on how many training images a true object and one of the model agree.
  agreement = np.sum(true["train"][:, :, None] == inferred["train"][:, None, :], axis=0)
  order = linear_sum_assignment(agreement, maximize=True)[1].tolist()
  right = inferred["test"][:, order] == true["test"]
  return {
    "accuracy": float(right.mean()),
    "accuracy_by_object": right.mean(axis=0).tolist(),
    "all_right": float(right.all(axis=1).mean()),
    "order": order,
    "training_bound": bounds["train"],
    "test_bound": bounds["test"],
    "examples": len(right),
    "step": run.step,
  }


def main() -> None:
  """Draws or scores."""
  parser = plain_parser(__doc__)
  commands = parser.add_subparsers(dest="what", required=True)
  draw = commands.add_parser("draw", help="make the images")
  draw.add_argument("folder", type=pathlib.Path, help="where to")
  scored = commands.add_parser("score", help="tell how much training has found")
  scored.add_argument("workdirs", type=pathlib.Path, nargs="+", help="of runs on these images")
  scored.add_argument("folder", type=pathlib.Path, help="where to write")
  options = parser.parse_args()
  with exit_with_message(), as_run_errors():
    if options.what == "draw":
      write_scenes(options.folder, NUM_SCENES)
    for workdir in options.workdirs if options.what == "score" else ():
      run = open_run(workdir)
      if run.config.system != "probabilistic" or run.dataset.name != "folder":
        raise RunError(f"{workdir} is no run of probabilistic capsules on drawn scenes.")
      results = {str(seed): score(run, variables) for seed, variables in run.variables.items()}
      name = workdir.absolute().name
      record = {"command": command_line("recovery"), "workdir": recorded_folder(workdir)}
      write_record(options.folder / f"recovery-{name}.json", record | {"by_seed": results})
      for seed, scores in results.items():
        bound = f"{scores['training_bound']:.1f} nats on training images"
        print(f"{name}, seed {seed}: {100 * scores['accuracy']:.1f} % of presences right, {bound}")


if __name__ == "__main__":
  main()
