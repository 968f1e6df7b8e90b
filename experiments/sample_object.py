"""Draws one object of trained probabilistic capsules at a chosen pose.

    python -m experiments.sample_object runs/probabilistic-digits --object 3 --turn 40 \\
      --scale 1.2 --shift 0.2 0 --out object.png --samples 8

The first picture is the expected drawing of the object alone. The others are samples of the model,
in which presences of parts and deviations of poses are drawn at random. Objects are those of the
topmost layer; `object_samples.png` of the run's report shows them all.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from experiments.findings import open_named, run_parser
from scae_jax.data.options import DataOptions
from scae_jax.errors import RunError, as_run_errors, exit_with_message
from scae_jax.evaluation.report_figures import save_figure
from scae_jax.figures import FIGURES
from scae_jax.files import given_path
from scae_jax.models.probabilistic.autoencoder import ProbabilisticCapsules
from scae_jax.models.probabilistic.drawn_images import draw_objects, move_pose
from scae_jax.training.run import Run

MAX_SAMPLES = 99  # in the figure, beside the expected drawing


def draw(run: Run, options: argparse.Namespace) -> np.ndarray:
  """The expected drawing of the object, then samples: [1 + samples, h, w, c] in [0, 1]."""
  module = run.system.module
  settings = run.settings
  if not isinstance(module, ProbabilisticCapsules) or not isinstance(settings.data, DataOptions):
    raise RunError(
      f"only objects of system 'probabilistic' draw by themselves; this run is of system"
      f" {run.config.system!r}."
    )
  count = module.generative.capsules[-1]
  if not 0 <= options.object < count:
    raise RunError(
      f"--object must be 0 to {count - 1}, as the topmost layer has {count} objects; it is"
      f" {options.object}."
    )
  if not 0 < options.scale < float("inf"):
    raise RunError(f"--scale must be above 0; it is {options.scale:g}.")
  if not np.isfinite([options.turn, *options.shift]).all():
    raise RunError(f"--turn and --shift must be finite; they are {options.turn}, {options.shift}.")
  if not 0 <= options.samples <= MAX_SAMPLES:
    raise RunError(f"--samples must be 0 to {MAX_SAMPLES}; it is {options.samples}.")
  seed = next(iter(run.variables)) if options.seed is None else options.seed
  if seed not in run.variables:
    raise RunError(f"--seed must be one of {', '.join(map(str, run.variables))}; it is {seed}.")
  draw_with_model = nn.apply(
    lambda module, *arguments: draw_objects(module.generative, *arguments), module
  )
  drawn = jax.jit(draw_with_model, static_argnums=3)
  pose = move_pose(options.turn, options.scale, *options.shift)
  pictures = []
  for number, key in ((1, None), (options.samples, jax.random.key(options.key))):
    if number:
      poses = jnp.broadcast_to(pose, (number, 2, 3))
      objects = jnp.full(number, options.object)
      pictures.append(drawn(run.variables[seed], objects, poses, settings.data.canvas, key))
  return np.concatenate(pictures)


def main() -> None:
  """Draws, and writes the picture."""
  parser = run_parser(__doc__)
  parser.add_argument("--object", type=int, required=True, help="its number, from 0")
  parser.add_argument("--turn", type=float, default=0.0, help="degrees, counter-clockwise")
  parser.add_argument("--scale", type=float, default=1.0)
  parser.add_argument(
    "--shift",
    type=float,
    nargs=2,
    default=(0.0, 0.0),
    metavar=("RIGHT", "DOWN"),
    help="where 1 is half the canvas",
  )
  parser.add_argument("--out", type=given_path, required=True, help="a file that ends in .png")
  parser.add_argument("--samples", type=int, default=0, help="beside what is expected")
  parser.add_argument("--key", type=int, default=0, help="of the samples' random numbers")
  parser.add_argument("--seed", type=int, help="of a run that has several; if not the first")
  options = parser.parse_args()
  with exit_with_message(), as_run_errors():
    if options.out.suffix != ".png":
      raise RunError(f"--out must end in .png; it is {options.out}.")
    run = open_named(options)
    pictures = draw(run, options)
    right, down = options.shift
    title = (
      f"{options.workdir.absolute().name}, step {run.step:,}: object {options.object}, rotated by"
      f" {options.turn:g}\N{DEGREE SIGN}, \N{MULTIPLICATION SIGN} {options.scale:g},\n"
      f"right {right:g}, down {down:g}; expected" + (", then samples" if options.samples else "")
    )
    save_figure(options.out, lambda: FIGURES["prior_samples"](pictures, title))
  print(f"wrote {options.out}")


if __name__ == "__main__":
  main()
