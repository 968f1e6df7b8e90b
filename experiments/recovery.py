"""Draw from the model, then infer: does training find the objects that drew the images?

    python -m experiments.recovery draw runs/recovery-scenes
    python train.py --config=configs/probabilistic.py:recovery
    python -m experiments.recovery score runs/probabilistic-recovery results/probabilistic

`draw` makes images from a generative model with known parameters, three objects of two parts
each, any number of them in an image, and one over another. Images are sorted into folders by the
objects that are there, so that those of one folder are one class to `train.py`. `score` asks of
every object of the trained model whether it is there (a posterior probability above 0.5), matches
the three to the true ones on training images, and writes the share of right answers on the test
images to `recovery-<workdir>.json`, with the bounds, which do not rank runs as these shares do.
"""

import argparse
import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from PIL import Image

from scae_jax.data.dataset import Dataset
from scae_jax.evaluation.features import collect
from scae_jax.evaluation.files import write_json
from scae_jax.evaluation.provenance import measured_with, recorded_folder
from scae_jax.models.generative_capsules import GenerativeCapsules
from scae_jax.routing.selection import Capsules
from scae_jax.training.build import Run, open_run
from scae_jax.training.config import read_settings
from scae_jax.training.errors import RunError, exit_with_message, explained
from scae_jax.typing import Array

CANVAS = 20
NUM_SCENES = {"train": 4_000, "test": 1_000}
# The first seed of the splits. The config was chosen on images of others.
FIRST_SEED = 2
# One part a glyph, 5x5 pixels in a template of 7x7. None is an affine image of another: a part that
# has learnt one could draw both.
GLYPHS = (
  ("#####", "#...#", "#...#", "#...#", "#####"),
  ("..#..", "..#..", "#####", "..#..", "..#.."),
  ("#....", "#....", "#....", "#....", "#####"),
  ("#####", "..#..", "..#..", "..#..", "..#.."),
  ("#...#", "#...#", "#...#", "#...#", "#...#"),
  (".....", ".###.", ".###.", ".###.", "....."),
)
# Where the parts of each object stand in it, x and y, in units of half the object's side.
PLACES = (
  ((-0.5, -0.5), (0.5, -0.5)),
  ((-0.5, 0.1), (0.5, 0.1)),
  ((0.0, -0.1), (0.0, 0.6)),
)
PART_SIZE = 0.34  # of half the object's side
CERTAIN = 6.0  # a logit


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
  """Each object has two parts of its own, which are nearly always there with it, and not else."""
  count, objects = len(GLYPHS), len(PLACES)
  ink = np.array([[[cell == "#" for cell in row] for row in glyph] for glyph in GLYPHS])
  ink = np.pad(ink, ((0, 0), (1, 1), (1, 1)))[..., None]
  logits = np.where(ink, CERTAIN, -CERTAIN).astype(np.float32)
  owner = np.arange(count) // (count // objects)
  own = owner[None] == np.arange(objects)[:, None]
  offsets = np.zeros((objects, count, 2, 3), np.float32)
  offsets[:, :, [0, 1], [0, 1]] = PART_SIZE - 1
  offsets[:, :, :, 2] = np.concatenate(PLACES)[None]
  presence = np.concatenate([np.where(own, 3.0, -3.0), np.full((1, count), -4.0)])
  scale = np.log(np.expm1(0.01)) * np.ones((1, count, 6))
  return {
    "templates": jnp.full(logits.shape, CERTAIN),
    "alphas": jnp.asarray(logits),
    "affinity_1": jnp.asarray(np.where(own, 0.0, -CERTAIN), jnp.float32),
    "presence_1": jnp.asarray(presence, jnp.float32),
    "offset_1": jnp.asarray(offsets),
    "scale_1": jnp.asarray(scale, jnp.float32),
  }


def draw_scenes(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
  """Images uint8 [n, h, w, 1] and which objects are there, bool [n, k]."""
  picture, _, there = _draw(jax.random.split(jax.random.key(seed), count))
  noise = np.random.default_rng(seed).normal(0, true_model().pixel_scale, picture.shape)
  image = np.clip(np.asarray(picture) + noise, 0, 1)
  return np.round(255 * image).astype(np.uint8), np.asarray(there)


def draw_parts(seed: int, count: int) -> tuple[Capsules, np.ndarray]:
  """Presences [n, m] and poses [n, m, 2, 3] of the parts of the scenes of `draw_scenes`, and which
  objects are there, bool [n, k]."""
  parts, there = _draw(jax.random.split(jax.random.key(seed), count))[1:]
  return parts, np.asarray(there)


@jax.jit
def _draw(keys: Array) -> tuple[Array, Capsules, Array]:
  """What the true model draws with each key, without noise, the parts, and which objects are
  there."""

  def scenes(module: GenerativeCapsules) -> tuple[Array, Capsules, Array]:
    def layers(key: Array) -> tuple[Any, Any]:
      top_key, below_key = jax.random.split(key)
      drawn, _ = module.sample(below_key, module.sample_top(top_key))
      return drawn[0], drawn[1]

    parts, objects = jax.vmap(layers)(keys)
    return module.draw(parts, CANVAS), parts, objects.presence > 0.5

  return nn.apply(scenes, true_model())({"params": true_parameters()})


def folder_name(there: np.ndarray) -> str:
  """`objects-0-2` where the first and the last object are there, `objects-` where none is."""
  return "objects-" + "-".join(str(k) for k in np.flatnonzero(there))


def write_scenes(folder: pathlib.Path, num_scenes: Mapping[str, int]) -> None:
  """Writes <folder>/<split>/<objects that are there>/<number>.png, so many of each split."""
  for seed, (split, count) in enumerate(num_scenes.items(), start=FIRST_SEED):
    images, there = draw_scenes(seed, count)
    for number, (image, present) in enumerate(zip(images, there, strict=True)):
      path = folder / split / folder_name(present) / f"{number:05}.png"
      path.parent.mkdir(parents=True, exist_ok=True)
      Image.fromarray(image[..., 0]).save(path)


def true_presences(dataset: Dataset, split: str) -> np.ndarray:
  """Bool [n, k], read from the names of the classes."""
  names = [dataset.class_names[label] for label in dataset.splits[split].labels]
  objects = range(len(PLACES))
  return np.array([[str(k) in name.split("-")[1:] for k in objects] for name in names])


def match(found: np.ndarray, there: np.ndarray) -> tuple[int, ...]:
  """The order of the model's objects [n, k] that agrees best with the true ones [n, k]."""
  orders = list(itertools.permutations(range(found.shape[1]), there.shape[1]))
  return max(orders, key=lambda order: np.mean(found[:, list(order)] == there))


def score(run: Run, variables: Mapping[str, Any]) -> dict[str, Any]:
  """Shares of right answers, in all and by object, and of images with every answer right; and the
  mean bounds on training and test images, nats."""
  settings = read_settings(run.config)
  assert isinstance(run.dataset, Dataset)
  found, truth, bounds = {}, {}, {}
  for split in ("train", "test"):
    data = run.dataset.splits[split]
    collected = collect(
      run.system,
      variables,
      data.arrays,
      canvas=CANVAS,
      batch_size=settings.evaluation.batch_size,
    )
    found[split] = collected.features["presences"] > 0.5
    truth[split] = true_presences(run.dataset, split)
    bounds[split] = float(np.mean(collected.measures["bound"], dtype=np.float64))
  order = list(match(found["train"], truth["train"]))
  right = found["test"][:, order] == truth["test"]
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
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  commands = parser.add_subparsers(dest="what", required=True)
  draw = commands.add_parser("draw", help="make the images")
  draw.add_argument("folder", type=pathlib.Path, help="where to")
  scored = commands.add_parser("score", help="tell how much training has found")
  scored.add_argument("workdirs", type=pathlib.Path, nargs="+", help="of runs on these images")
  scored.add_argument("folder", type=pathlib.Path, help="where to write")
  options = parser.parse_args()
  with exit_with_message(), explained():
    if options.what == "draw":
      write_scenes(options.folder, NUM_SCENES)
    else:
      score_runs(options.workdirs, options.folder)


def score_runs(workdirs: Sequence[pathlib.Path], folder: pathlib.Path) -> None:
  """Scores every seed of every run, and writes and prints what is found."""
  for workdir in workdirs:
    run = open_run(workdir)
    if run.config.system != "probabilistic" or run.dataset.name != "folder":
      raise RunError(f"{workdir} is no run of probabilistic capsules on drawn scenes.")
    results = {str(seed): score(run, variables) for seed, variables in run.variables.items()}
    folder.mkdir(parents=True, exist_ok=True)
    name = workdir.absolute().name
    record = {"workdir": recorded_folder(workdir), "by_seed": results, **measured_with()}
    write_json(folder / f"recovery-{name}.json", record)
    for seed, found in results.items():
      bound = f"{found['training_bound']:.1f} nats on training images"
      print(f"{name}, seed {seed}: {100 * found['accuracy']:.1f} % of presences right, {bound}")


if __name__ == "__main__":
  main()
