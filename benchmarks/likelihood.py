"""Time of the image likelihood, warp included, composed and fused, forward and with its gradient.

    python -m benchmarks.likelihood --block=64,128,256 --out=results/benchmarks/likelihood.json

Sizes are those of configs/mnist.py:official; `--template` and `--canvas` are sides in pixels, a
block is the pixels of a program. Fused variants need a GPU, or `--interpret` at tiny sizes, where
their times mean nothing. Every variant is checked against the composed one before it
is timed; the row of one that fails has the error, and the exit code is then 1.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measuring import checked_milliseconds, flags, report
from scae_jax import geometry, mixtures, warping
from scae_jax.kernels.template_likelihood import BLOCK, template_log_prob
from scae_jax.typing import Array

SCALE = 0.7  # of a pixel; not 1, which would hide a factor


def composed(
  bank: Array,
  poses: Array,
  colours: Array,
  presence: Array,
  background_mean: Array,
  background_logit: Array,
  image: Array,
  scale: float,
) -> Array:
  """The likelihood as it is defined; arguments and result of `template_log_prob`."""
  height, width, channels = image.shape[1:]
  warped = warping.warp_templates(bank, poses, height, width)
  mixture = jax.vmap(mixtures.pixel_mixture, in_axes=(0, 0, 0, None, None, None))(
    warped[..., :channels] * colours[:, :, None, None, :],
    warped[..., -1],
    presence,
    background_mean,
    background_logit,
    jnp.asarray(scale, image.dtype),
  )
  return jnp.sum(jax.vmap(mixtures.log_prob)(mixture, image), axis=(1, 2))


def random_inputs(
  batch: int, parts: int, template: int, canvas: Sequence[int], channels: int, seed: int = 0
) -> tuple[Array, ...]:
  """Arguments of `composed` but the scale: poses of a network that is not trained yet."""
  rng = np.random.RandomState(seed)

  def uniform(*shape: int) -> Array:
    return jnp.asarray(rng.uniform(0, 1, shape), jnp.float32)

  def normal(*shape: int) -> np.ndarray:
    return rng.normal(0, 1, shape).astype(np.float32)

  size = (parts, template, template)
  bank = np.concatenate([uniform(*size, channels), normal(*size, 1)], axis=-1)
  poses = jax.jit(jax.vmap(jax.vmap(geometry.affine_matrix)))(0.3 * normal(batch, parts, 6))
  return (
    jnp.asarray(bank),
    poses,
    uniform(batch, parts, channels),
    uniform(batch, parts),
    jnp.asarray(0.4),
    jnp.asarray(0.7),
    uniform(batch, *canvas, channels),
  )


def variants(blocks: Sequence[int], *, interpret: bool) -> dict[str, Callable[..., Array]]:
  """By name; the fused ones where they can run."""
  found: dict[str, Callable[..., Array]] = {"composed": composed}
  if not interpret and jax.default_backend() != "gpu":
    print("No GPU: only the composed likelihood is timed; --interpret would run the others.\n")
    return found
  for block in blocks:
    fused = functools.partial(template_log_prob, block=block, interpret=interpret)
    found[f"fused, block {block}"] = fused
  return found


def compiled(variant: Callable[..., Array], inputs: tuple[Array, ...]) -> tuple[Any, Any]:
  """The variant, and its gradient with respect to all but the image, as calls without arguments."""

  def total(*arguments: Array) -> Array:
    return jnp.sum(variant(*arguments, SCALE))

  forward = jax.jit(lambda *arguments: variant(*arguments, SCALE))
  gradient = jax.jit(jax.grad(total, argnums=tuple(range(len(inputs) - 1))))
  return lambda: forward(*inputs), lambda: gradient(*inputs)


def main() -> None:
  """Checks, times and reports the variants."""
  sizes = {"batch": 128, "parts": 40, "template": 11, "canvas": 40, "channels": 1}
  options = flags(__doc__, **sizes, block=str(BLOCK), interpret=False, rounds=7, out="")
  canvas = (options.canvas, options.canvas)
  inputs = random_inputs(options.batch, options.parts, options.template, canvas, options.channels)
  blocks = [int(block) for block in options.block.split(",")]
  found = variants(blocks, interpret=options.interpret)
  calls = {name: compiled(variant, inputs) for name, variant in found.items()}
  settings = {key: getattr(options, key) for key in sizes}
  report("likelihood", settings, checked_milliseconds(calls, options.rounds), options.out)


if __name__ == "__main__":
  main()
