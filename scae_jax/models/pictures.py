"""Arrays of the figures that models of parts and objects have in common."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from scae_jax import geometry, warping
from scae_jax.typing import Array, Batch

ANGLES = (0, 30, 60, 90, 120, 150, 180)  # degrees, counter-clockwise
NUM_TURNED = 5  # images of a batch that are turned


def reconstructions(
  image: Array, posterior: Array, object_presence: Array, alone: Array, **drawn: Array
) -> dict[str, dict[str, Array]]:
  """Arguments of the figures `reconstructions` and `object_reconstructions`, of images [b, h, w,
  c], the parts' posterior [b, k+1, m], presences [b, k], what each object draws alone [k, b, h, w,
  c], and `bottom_up`, `top_down` and `part_mixing`."""
  shown = {"image": image, "object_presence": object_presence}
  part_winner = jnp.argmax(posterior, axis=1)  # k where the dummy has it
  return {
    "reconstructions": shown | drawn | {"part_winner": part_winner},
    "object_reconstructions": shown | {"object_reconstruction": jnp.moveaxis(alone, 0, 1)},
  }


def of_parts_and_objects(module: Any) -> Callable[[Any, Batch], dict[str, dict[str, Array]]]:
  """`System.pictures` of a module with methods `draw` and `part_mixing`."""

  def pictures(variables: Any, batch: Batch) -> dict[str, dict[str, Array]]:
    mixing_of = functools.partial(nn.apply(type(module).part_mixing, module), variables)
    drawn = nn.apply(type(module).draw, module)(variables, batch)
    return {**drawn, "part_identity": part_identity(batch["image"], mixing_of)}

  return pictures


def part_identity(image: Array, mixing_of: Callable[[Array], Array]) -> dict[str, Array]:
  """The first images of a batch, rotated by every angle, and what each part draws of them.

  Arguments of the figure `part_identity`: `image` [n, r, h, h, c], `part_mixing` [n, r, m, h, h]
  and `degrees` [r]. Smith et al. 2020, arXiv 2004.03553, figure 5.

  `mixing_of` maps images [n, h, h, c], all of one angle, to the share of each part in each pixel
  times the brightness of what is drawn there, [n, m, h, h].
  """
  degrees = jnp.array(ANGLES, jnp.float32)
  side = image.shape[1]

  def turn(picture: Array, angle: Array) -> Array:
    return warping.warp_template(picture, geometry.rotation(angle), side, side)

  turned = jax.vmap(jax.vmap(turn, in_axes=(0, None)), in_axes=(None, 0))(
    image[:NUM_TURNED], degrees
  )
  mixing = jax.lax.map(mixing_of, turned)
  return {
    "image": jnp.moveaxis(turned, 0, 1),
    "part_mixing": jnp.moveaxis(mixing, 0, 1),
    "degrees": degrees,
  }
