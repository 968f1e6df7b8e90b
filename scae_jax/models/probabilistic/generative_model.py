"""The generative model of probabilistic capsules: from presences and poses to an image.

Smith et al. 2020, "Capsule Networks - A Probabilistic Perspective", arXiv 2004.03553, section 2.1.
Layers are counted from the parts up: layer 1 is the parts, which draw templates; the last layer is
the topmost objects.
"""

from collections.abc import Sequence
from typing import Annotated

import jax
import jax.numpy as jnp
from flax import linen as nn
from numpyro import distributions
from numpyro.distributions.transforms import SoftplusTransform

from scae_jax.bounds import MAX_SIDE, above, below, between, one_of, zero_or
from scae_jax.math import compositing, geometry, warping
from scae_jax.math.routing import selection
from scae_jax.math.routing.selection import Capsules, Moments, Relations, Selection
from scae_jax.models.scae.pcae import (
  MIN_TEMPLATE_SIZE,
  NONLINEARITIES,
  STD_RANGE,
  squash,
  template_init,
)
from scae_jax.typing import Array, Float

OFFSET_INIT = 0.1  # standard deviation of offsets: near the identity, and no two equal
# Initial logit of alphas. If all parts start half opaque, they paint the canvas grey, and the model
# first learns to shrink every part to nothing.
ALPHA_INIT = -2.0
TEMPERATURES = (1e-3, 1e3)  # of relaxed presences


class GenerativeCapsules(nn.Module):
  """The prior over capsules, and the picture that the parts draw.

  A top capsule is present with a fixed probability and has a Gaussian pose around the identity. A
  child chooses one of the present parents, by affinity, or the dummy, which is always present. It
  is on with a probability that depends on its choice. Its pose is the parent's pose times (identity
  + offset), with Gaussian noise. Parts paint their templates over one another, in the order of
  their numbers, on black.
  """

  capsules: tuple[int, ...]  # number of each layer, the parts first; two layers or more
  channels: int  # c
  # t: side of a template, pixels.
  template_size: Annotated[int, between(MIN_TEMPLATE_SIZE, MAX_SIDE)]
  # Applied to templates at use, `sigmoid` or `relu1`.
  nonlinearity: Annotated[str, one_of(*NONLINEARITIES)]
  pixel_scale: Annotated[float, between(*STD_RANGE)]  # standard deviation of a pixel
  temperature: Annotated[float, between(*TEMPERATURES)]  # of the parts' relaxed presences
  top_presence: Annotated[float, between(1e-6, 1 - 1e-6)]  # probability of each top capsule
  top_scale: Annotated[float, between(*STD_RANGE)]  # standard deviation of their poses
  # Affinity of the dummy to each child; affinities of parents start at 1.
  dummy_affinity: Annotated[float, between(1e-12, 1e12)]
  # Standard deviation of the poses of children that are off or chose the dummy.
  broad_scale: Annotated[float, between(*STD_RANGE)]
  # Lower bound of the other, learned standard deviations, so that densities stay bounded.
  min_scale: Annotated[float, below(1e-6, "initial_scale")]
  initial_scale: Annotated[float, between(*STD_RANGE)]
  shared_scales: bool  # whether all parents share the standard deviations of a child
  # Temperature above the parts; None: that of the parts. A relaxed presence is never 0, so a parent
  # that is off can still win over the dummy. At 0.5 presences of all objects may stay between 0 and
  # 1: they then do not show which objects are present, and one object can serve as two.
  upper_temperature: Annotated[float | None, between(*TEMPERATURES)] = None
  # Upper limit of the parents' affinities, above 1; 0 is no limit. Without a limit they can grow
  # until a parent of presence 1e-6 wins over the dummy. Presences then carry no information.
  max_affinity: Annotated[float, zero_or(above(1, 1e12))] = 0.0

  def setup(self):
    shape = (self.capsules[0], self.template_size, self.template_size)
    zeros, faint = nn.initializers.zeros_init(), nn.initializers.constant(ALPHA_INIT)
    self.raw_templates = self.param("templates", template_init, (*shape, self.channels))
    self.raw_alphas = self.param("alphas", faint, (*shape, 1), jnp.float32)
    unconstrained = SoftplusTransform().inv(self.initial_scale - self.min_scale)
    raw_scale, near = nn.initializers.constant(unconstrained), nn.initializers.normal(OFFSET_INIT)
    self.layers = [
      {
        "affinity": self.param(f"affinity_{i}", zeros, (parents, children), jnp.float32),
        "presence": self.param(f"presence_{i}", zeros, (parents + 1, children), jnp.float32),
        "offset": self.param(f"offset_{i}", near, (parents, children, 2, 3), jnp.float32),
        "scale": self.param(
          f"scale_{i}", raw_scale, (1 if self.shared_scales else parents, children, 6), jnp.float32
        ),
      }
      for i, (children, parents) in enumerate(
        zip(self.capsules[:-1], self.capsules[1:], strict=True), start=1
      )
    ]

  def relations(self) -> list[Relations]:
    """Relations between each layer and the one above, from the parts up."""
    return [
      Relations(
        affinity_logits=self._log_affinity(layer["affinity"]),
        dummy_logit=jnp.log(jnp.float32(self.dummy_affinity)),
        presence_logits=layer["presence"],
        offsets=layer["offset"],
        scales=jnp.broadcast_to(
          self.min_scale + jax.nn.softplus(layer["scale"]), (*layer["affinity"].shape, 6)
        ),
        broad_scale=jnp.float32(self.broad_scale),
        temperature=jnp.float32(self.temperature_of(i)),
      )
      for i, layer in enumerate(self.layers)
    ]

  def _log_affinity(self, raw: Array) -> Array:
    if not self.max_affinity:
      return raw
    # The affinity is 1 where `raw` is 0, with and without a limit.
    shift = -jnp.log(self.max_affinity - 1.0)
    return jnp.log(self.max_affinity) + jax.nn.log_sigmoid(raw + shift)

  def temperature_of(self, layer: int) -> float:
    """Temperature of the relaxed presences of a layer; layer 0 is the parts."""
    upper = self.temperature if self.upper_temperature is None else self.upper_temperature
    return upper if layer else self.temperature

  def templates(self) -> tuple[Array, Array]:
    """Templates [m, t, t, c] and alphas [m, t, t, 1], in [0, 1]."""
    return squash(self.raw_templates, self.nonlinearity), jax.nn.sigmoid(self.raw_alphas)

  def select(
    self, capsules: Sequence[Capsules], off_log_probs: Sequence[Array] | None = None
  ) -> list[Selection]:
    """The choices of all layers but the topmost, each with a leading batch axis.

    Arguments have one entry for each layer, from the parts up. `off_log_probs` are [b, n], see
    `selection.child_log_prob`.
    """
    off = [None] * len(capsules) if off_log_probs is None else off_log_probs
    select = jax.vmap(selection.select, in_axes=(0, 0, None, 0))
    layers = zip(capsules[:-1], capsules[1:], self.relations(), off[:-1], strict=True)
    return [select(*layer) for layer in layers]

  def top_log_prob(self, top: Capsules) -> Float[Array, " b"]:
    """log density of the topmost layer, nats."""
    scale, temperature = self.top_scale, self.temperature_of(len(self.layers))
    log_prob = jax.vmap(selection.root_log_prob, in_axes=(0, None, None, None))
    return log_prob(top, self._top_logits(), jnp.float32(scale), jnp.float32(temperature))

  def draw(self, parts: Capsules, canvas: int) -> Float[Array, "b h w c"]:
    """Images of the parts in [0, 1], on canvas x canvas pixels; presences multiply alphas."""
    return jax.vmap(compositing.over)(*self._layers(parts, canvas))

  def part_mixing(self, parts: Capsules, canvas: int) -> Float[Array, "b m h w"]:
    """Each part's visible share of the image, mean over channels; over parts they sum to it."""
    colours, alphas = self._layers(parts, canvas)
    return jnp.mean(jax.vmap(compositing.visibility)(alphas)[..., None] * colours, axis=-1)

  def _layers(self, parts: Capsules, canvas: int) -> tuple[Array, Array]:
    """The layer of each part: colours times alphas [b, m, h, w, c], and alphas [b, m, h, w]."""
    templates, alphas = self.templates()
    bank = jnp.concatenate([alphas * templates, alphas], axis=-1)
    presence = parts.presence[:, :, None, None, None]
    warped = presence * warping.warp_templates(bank, parts.poses, canvas, canvas)
    return warped[..., :-1], warped[..., -1]

  def image_log_prob(self, picture: Array, image: Array) -> Float[Array, " b"]:
    """log density of images [b, h, w, c] given the drawn picture, nats."""
    pixels = distributions.Normal(picture, self.pixel_scale).log_prob(image)
    return jnp.sum(pixels, axis=(1, 2, 3))

  def prior_moments(self) -> list[Moments]:
    """Moments of all layers under the prior, from the parts up."""
    top = self.capsules[-1]
    poses = jnp.broadcast_to(geometry.identity(), (top, 2, 3))
    layers = [Moments(self._top_logits(), poses, jnp.full((top, 6), self.top_scale))]
    for relations in reversed(self.relations()):
      layers.insert(0, selection.child_moments(layers[0], relations))
    return layers

  def sample(self, key: Array, top: Capsules) -> tuple[list[Capsules], list[Array]]:
    """Samples all layers below the top capsules of one example; presences are 0 or 1.

    Returns all layers, from the parts up, and the choices [m] of all layers but the topmost.
    """
    layers, choices = [top], []
    for i, relations in reversed(list(enumerate(self.relations()))):
      child_key = jax.random.fold_in(key, i)
      children, choice = selection.sample_children(child_key, layers[0], relations)
      layers, choices = [children, *layers], [choice, *choices]
    return layers, choices

  def expect_children(self, top: Capsules) -> list[Capsules]:
    """All layers of one example, parts first: `selection.mean_children` of the top capsules."""
    layers = [top]
    for relations in reversed(self.relations()):
      layers = [selection.mean_children(layers[0], relations), *layers]
    return layers

  def sample_top(self, key: Array) -> Capsules:
    """Samples the top capsules of one example."""
    return selection.sample_roots(key, self._top_logits(), jnp.float32(self.top_scale))

  def _top_logits(self) -> Array:
    return jnp.full((self.capsules[-1],), jax.scipy.special.logit(self.top_presence))
