"""Time of warping a bank of templates with alphas, forward and with its gradient, by variant.

    python -m benchmarks.warp --batch=128 --out=results/benchmarks/warp-cpu.json

Sizes are those of configs/mnist.py:official, sides in pixels. Every variant is checked against the
first before it is timed; the row of one that fails has the error, and the exit code is then 1.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.scipy.ndimage import map_coordinates

from benchmarks.measuring import checked_milliseconds, flags, report
from scae_jax.math import geometry, warping
from scae_jax.typing import Array


def library(templates: Array, poses: Array, canvas: int) -> Array:
  """`jax.scipy.ndimage.map_coordinates`, vmapped over examples, templates and channels."""

  def warp_template(template: Array, pose: Array) -> Array:
    rows, columns = warping.template_position(pose, template.shape[0], canvas, canvas)

    def channel(values: Array) -> Array:
      return map_coordinates(values, [rows, columns], order=1, mode="constant", cval=0.0)

    return jax.vmap(channel, in_axes=-1, out_axes=-1)(template)

  return jax.vmap(jax.vmap(warp_template), in_axes=(None, 0))(templates, poses)


def definition(templates: Array, poses: Array, canvas: int) -> Array:
  """`warping.warp_template`, vmapped, with the gradient that JAX derives."""

  def warp_template(template: Array, pose: Array) -> Array:
    return warping.warp_template(template, pose, canvas, canvas)

  return jax.vmap(jax.vmap(warp_template), in_axes=(None, 0))(templates, poses)


def by_method(method: str) -> Callable[[Array, Array, int], Array]:
  """`warping.warp_templates`, as the model calls it."""

  def warp(templates: Array, poses: Array, canvas: int) -> Array:
    return warping.warp_templates(templates, poses, canvas, canvas, method)

  return warp


VARIANTS = {
  "map_coordinates": library,
  "definition": definition,
  **{method: by_method(method) for method in warping.METHODS},
}


def main() -> None:
  """Checks, times and reports the variants."""
  sizes = {"batch": 128, "parts": 40, "template": 11, "canvas": 40}
  options = flags(__doc__, **sizes, rounds=7, variants=",".join(VARIANTS), out="")
  keys = jax.random.split(jax.random.key(0), 3)
  shape = (options.parts, options.template, options.template, 2)
  templates = jax.random.uniform(keys[0], shape)
  raw = jax.random.normal(keys[1], (options.batch, options.parts, 6)) * 0.3
  poses = jax.vmap(jax.vmap(geometry.affine_matrix))(raw)
  weights = jax.random.normal(
    keys[2], (options.batch, options.parts, options.canvas, options.canvas, 2)
  )

  calls = {}
  for name in options.variants.split(","):
    variant = VARIANTS[name]

    def loss(templates: Array, poses: Array, variant=variant) -> Array:
      return jnp.sum(weights * variant(templates, poses, options.canvas))

    warped = jax.jit(variant, static_argnums=2)
    gradient = jax.jit(jax.grad(loss, argnums=(0, 1)))
    calls[name] = (
      lambda warped=warped: warped(templates, poses, options.canvas),
      lambda gradient=gradient: gradient(templates, poses),
    )

  settings = {key: getattr(options, key) for key in sizes}
  report("warp", settings, checked_milliseconds(calls, options.rounds), options.out)


if __name__ == "__main__":
  main()
