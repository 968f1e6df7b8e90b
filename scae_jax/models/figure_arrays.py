"""Arrays of the figures that models with parts and objects share."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from scae_jax.math import geometry, warping
from scae_jax.typing import Array, Batch

ANGLES = (0, 30, 60, 90, 120, 150, 180)  # degrees, counter-clockwise
NUM_TURNED = 5  # images of a batch that are rotated


def reconstructions(
  image: Array,
  part_winner: Array,
  object_presence: Array,
  draw: Callable[[Array], Array],
  **drawn: Array,
) -> dict[str, dict[str, Array]]:
  """Arguments of the figures `reconstructions` and `object_reconstructions`.

  Args:
    image: [b, h, w, c].
    part_winner: [b, m], the object that wins each part; k for the dummy.
    object_presence: [b, k].
    draw: number of an object -> images [b, h, w, c] that it draws alone; -1 draws all objects.
    drawn: `bottom_up` and `part_mixing` of the figure.
  """
  by_objects = jax.lax.map(draw, jnp.arange(-1, object_presence.shape[1]))
  inputs = {"image": image, "object_presence": object_presence}
  single_objects = {"object_reconstruction": jnp.moveaxis(by_objects[1:], 0, 1)}
  return {
    "reconstructions": inputs | drawn | {"part_winner": part_winner, "top_down": by_objects[0]},
    "object_reconstructions": inputs | single_objects,
  }


def of_parts_and_objects(module: Any) -> Callable[[Any, Batch], dict[str, dict[str, Array]]]:
  """`System.pictures` of a module with methods `draw` and `part_mixing`."""

  def pictures(variables: Any, batch: Batch) -> dict[str, dict[str, Array]]:
    mixing_of = functools.partial(nn.apply(type(module).part_mixing, module), variables)
    drawn = nn.apply(type(module).draw, module)(variables, batch)
    return {**drawn, "part_identity": part_identity(batch["image"], mixing_of)}

  return pictures


def part_identity(image: Array, mixing_of: Callable[[Array], Array]) -> dict[str, Array]:
  """Arguments of the figure `part_identity`: rotated images, and what each part draws of them.

  `image` [n, r, h, h, c] has the first images of the batch at each angle; `part_mixing`
  [n, r, m, h, h] and `degrees` [r]. Smith et al. 2020, arXiv 2004.03553, figure 5.

  `mixing_of` maps images [n, h, h, c] to each part's share of each pixel times the brightness that
  is drawn there, [n, m, h, h].
  """
  degrees = jnp.array(ANGLES, jnp.float32)
  side = image.shape[1]

  def rotate(picture: Array, angle: Array) -> Array:
    return warping.warp_template(picture, geometry.rotation(angle), side, side)

  rotated = jax.vmap(jax.vmap(rotate, in_axes=(0, None)), in_axes=(None, 0))(
    image[:NUM_TURNED], degrees
  )
  mixing = jax.lax.map(mixing_of, rotated)
  return {
    "image": jnp.moveaxis(rotated, 0, 1),
    "part_mixing": jnp.moveaxis(mixing, 0, 1),
    "degrees": degrees,
  }
