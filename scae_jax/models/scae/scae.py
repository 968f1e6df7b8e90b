"""The module of the SCAE: images to parts and objects, and back.

Kosiorek et al. 2019, "Stacked Capsule Autoencoders", arXiv 1906.06818.
"""

import functools
from typing import Annotated

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from scae_jax.bounds import one_of
from scae_jax.math import filters, geometry, mixtures
from scae_jax.math.routing import mixture as routing_mixture
from scae_jax.models import figure_arrays
from scae_jax.models.scae.ocae import (
  ObjectCapsules,
  ObjectDecoder,
  ObjectEncoder,
  features,
)
from scae_jax.models.scae.pcae import (
  POSE_SIZE,
  PartCapsules,
  PartDecoder,
  PartEncoder,
)
from scae_jax.models.system import (
  MIN_PRESENCE,
  Encoding,
)
from scae_jax.typing import Array, Batch, Float

TARGETS = ("image", "sobel")
SOURCES = ("encoder", "soft", "hard")
STOP_GRADIENTS = ("none", "parts", "all")


@struct.dataclass
class Reconstruction:
  """How well the drawn image explains the target."""

  target: Float[Array, "b h w c"]  # the image or its Sobel edges; no gradient
  mixture: mixtures.PixelMixture  # the mixture at every pixel, with a leading batch axis
  # Log-likelihood of the target, summed over pixels, mean over the batch, nats.
  log_prob: Float[Array, ""]


@struct.dataclass
class SCAEEncoding:
  """What is found in a batch of images; pictures are drawn from it on request (`SCAE.draw`)."""

  parts: PartCapsules  # what the part encoder found
  colours: Float[Array, "b m c"]  # of the parts
  objects: ObjectCapsules  # what the object decoder predicts
  # Which object explains which part, with a leading batch axis; its part poses carry no gradient
  # unless `stop_gradients` is `none`.
  routing: routing_mixture.Routing
  part_log_prob: Float[Array, " b"]  # log-likelihood of the present parts' poses, nats
  mass: Float[Array, "b k"]  # share of all parts that every object explains


@struct.dataclass
class SCAEOutput(SCAEEncoding):
  """Everything that a training step needs, and held-out examples."""

  reconstruction: Reconstruction  # the image's likelihood under the drawn parts
  # Linear probe on presences; only the probe learns from it.
  prior_logits: Float[Array, "b classes"]
  # Linear probe on the mass; only the probe learns from it.
  posterior_logits: Float[Array, "b classes"]


class SCAE(nn.Module):
  """The two autoencoders, stacked."""

  part_encoder: PartEncoder  # image to parts
  part_decoder: PartDecoder  # parts to image
  object_encoder: ObjectEncoder  # parts to objects
  object_decoder: ObjectDecoder  # objects to parts
  num_classes: int  # classes of the two linear probes
  target: Annotated[str, one_of(*TARGETS)]  # what the parts draw, `image` or `sobel`
  # Whose poses the likelihood is of, in training and evaluation: the part `encoder`'s, or the
  # objects' votes for them, averaged under the posterior (`soft`) or the winner's (`hard`).
  reconstruction_vote: Annotated[str, one_of(*SOURCES)]
  reconstruction_presence: Annotated[str, one_of(*SOURCES)]  # the same choice for presences
  normalize_mixing: bool  # normalise the mixing weights of the part mixture
  # What gets no gradient from the object autoencoder: `none`; `parts`, all but their special
  # features, as published; `all`, these too.
  stop_gradients: Annotated[str, one_of(*STOP_GRADIENTS)]

  def setup(self):
    self.prior_probe = nn.Dense(self.num_classes)
    self.posterior_probe = nn.Dense(self.num_classes)
    # Pose of a part that no object explains; only a soft winner reads it.
    shape = (self.part_encoder.num_parts, 6)
    self.dummy_vote = self.param("dummy_vote", nn.initializers.zeros_init(), shape, jnp.float32)

  def __call__(
    self, batch: Batch, *, train: bool, feature_gradient: Array | float = 1.0
  ) -> SCAEOutput:
    """`encode`, `decode` and `log_prob` of a batch, and the probes; see `SCAEOutput`."""
    image = batch["image"]
    found = self.encode(image, train=train, feature_gradient=feature_gradient)
    target = self._target(image)
    return SCAEOutput(
      **vars(found),
      reconstruction=Reconstruction(
        target, self.decode(found, image.shape[1]), self.log_prob(found, target, train=train)
      ),
      prior_logits=self.prior_probe(jax.lax.stop_gradient(found.objects.presence)),
      posterior_logits=self.posterior_probe(jax.lax.stop_gradient(found.mass)),
    )

  def encode(
    self, image: Array, *, train: bool, feature_gradient: Array | float = 1.0
  ) -> SCAEEncoding:
    """Parts and objects of images [b, h, w, c].

    `feature_gradient` is a factor of the gradient that special features get from the objects; the
    output does not depend on it.
    """
    parts = self.part_encoder(image, train=train)
    stop = jax.lax.stop_gradient if self.stop_gradients != "none" else lambda x: x
    stop_features = jax.lax.stop_gradient if self.stop_gradients == "all" else lambda x: x
    part_presence = stop(parts.presence)
    part_poses = stop(parts.poses.reshape(*part_presence.shape, POSE_SIZE))
    colours = self.part_decoder.colours(parts.features)
    templates = self.part_decoder.templates()[None] * colours[:, :, None, None, :]
    features = _scale_gradient(stop_features(parts.features), feature_gradient)
    seen = stop(templates).reshape(*part_presence.shape, -1)
    absence = 1.0 - part_presence[..., None]
    rows = jnp.concatenate([part_poses, absence, features, seen], axis=-1)
    encoded = self.object_encoder(rows, part_presence)
    objects = self.object_decoder(encoded, train=train)
    route = functools.partial(routing_mixture.route, normalize_mixing=self.normalize_mixing)
    routing = jax.vmap(route)(part_poses, objects.votes, objects.vote_scale, objects.vote_presence)
    return SCAEEncoding(
      parts=parts,
      colours=colours,
      objects=objects,
      routing=routing,
      part_log_prob=jnp.sum(part_presence * routing.log_prob, axis=-1),
      mass=jax.vmap(routing_mixture.posterior_mass)(routing),
    )

  def decode(self, found: SCAEEncoding, canvas: int) -> mixtures.PixelMixture:
    """The mixture at every pixel of canvas x canvas, with a leading batch axis."""
    return self.part_decoder(*self._to_draw(found), found.colours, canvas)

  def log_prob(self, found: SCAEEncoding, target: Array, *, train: bool) -> Array:
    """log p(target [b, h, w, c]), [], summed over pixels, mean over the batch, nats.

    In training an estimate, where `PartDecoder.likelihood_stride` is above 1.
    """
    return self.part_decoder.log_prob(*self._to_draw(found), found.colours, target, train=train)

  def _target(self, image: Array) -> Array:
    """What parts are to draw; no gradient."""
    target = jax.vmap(filters.normalized_sobel)(image) if self.target == "sobel" else image
    return jax.lax.stop_gradient(target)

  def _to_draw(self, found: SCAEEncoding) -> tuple[Array, Array]:
    """Poses [b, m, 2, 3] and presences [b, m] of the parts that the image is drawn from."""
    poses, presence = found.parts.poses, found.parts.presence

    def said(by: str, values: Array, dummy: Array) -> Array:
      word = functools.partial(routing_mixture.winner_vote, by=by)
      return jax.vmap(word, in_axes=(0, 0, None))(found.routing, values, dummy)

    if self.reconstruction_vote != "encoder":
      votes = said(self.reconstruction_vote, found.objects.votes, self.dummy_vote)
      poses = votes.reshape(*votes.shape[:2], 2, 3)
    if self.reconstruction_presence != "encoder":
      presence = found.objects.vote_presence[..., None]
      nothing = jnp.zeros((presence.shape[2], 1))
      presence = said(self.reconstruction_presence, presence, nothing)[..., 0]
    return poses, presence

  def draw(self, batch: Batch) -> dict[str, dict[str, Array]]:
    """Arrays of the figures: what parts draw, what objects draw, and what each draws alone."""
    image, canvas = batch["image"], batch["image"].shape[1]
    encoding = self.encode(image, train=False)
    found = self._found(encoding)
    bottom_up, part_mixing = self._draw_parts(encoding.parts, encoding.colours, canvas)
    templates = {"templates": self.part_decoder.templates()}
    if self.part_decoder.mixing == "alpha":
      templates["alphas"] = jax.nn.sigmoid(self.part_decoder.alphas)
    shown = figure_arrays.reconstructions(
      self._target(image),
      jnp.argmax(encoding.routing.posterior, axis=1),
      encoding.objects.presence,
      lambda number: self.draw_from_objects(found, number, canvas),
      bottom_up=bottom_up,
      part_mixing=part_mixing,
    )
    return {"templates": templates, **shown}

  def encoding(self, batch: Batch) -> Encoding:
    """What `Encoding` has of images."""
    return self._found(self.encode(batch["image"], train=False))

  def _found(self, found: SCAEEncoding) -> Encoding:
    parts, objects = found.parts, found.objects
    return Encoding(
      object_presence=objects.presence,
      object_poses=objects.poses,
      part_presence=parts.presence,
      part_poses=parts.poses,
      posterior_mass=found.mass,
      features=features(found),
      details={
        "winner": found.routing.winner,
        "object_part": objects.object_part,
        "vote_presence": objects.vote_presence,
        "colours": found.colours,
      },
    )

  def draw_from_parts(self, found: Encoding, part: Array, canvas: int) -> Array:
    """Images [b, h, w, c] from poses and presences of parts; see `system.Draw`."""
    shown = (part < 0) | (jnp.arange(self.part_decoder.num_parts) == part)
    presence = jnp.clip(jnp.asarray(found.part_presence), 0.0, 1.0) * shown[None]
    poses = jnp.asarray(found.part_poses)
    return self._draw_present(poses, presence, found.details["colours"], canvas)

  def draw_from_objects(self, found: Encoding, number: Array, canvas: int) -> Array:
    """Images [b, h, w, c] from poses and presences of objects; see `system.Draw`.

    A part stands where its winning object votes for it. Winners, the parts' poses in object
    coordinates and colours stay as they were found. Vote presences are in proportion to the
    presence of their object, which is the largest of them.
    """

    details, poses = found.details, jnp.asarray(found.object_poses)
    before = jnp.max(details["vote_presence"], axis=-1)
    scale = jnp.asarray(found.object_presence) / jnp.maximum(before, MIN_PRESENCE)

    def winning(winner: Array, poses: Array, object_part: Array, share: Array, scale: Array):
      m = jnp.arange(len(winner))
      presence = jnp.clip(scale[winner] * share[winner, m], 0.0, 1.0)
      return jax.vmap(geometry.compose)(poses[winner], object_part[winner, m]), presence

    winner = details["winner"]
    poses, presence = jax.vmap(winning)(
      winner, poses, details["object_part"], details["vote_presence"], scale
    )
    shown = (number < 0) | (winner == number)
    return self._draw_present(poses, presence * shown, details["colours"], canvas)

  def _draw_present(self, poses: Array, presence: Array, colours: Array, canvas: int) -> Array:
    """Images [b, h, w, c] that parts of presence above 0 draw."""
    # Presence 0 leaves a logit of alpha + log(1e-16), which may win; a collapsed pose has no alpha.
    poses = jnp.where(presence[..., None, None] > 0, poses, 0.0)
    return jax.vmap(mixtures.mode)(self.part_decoder(poses, presence, colours, canvas))

  def part_mixing(self, image: Array) -> Array:
    """Parts of images [b, h, w, c]: share of every pixel times its brightness, [b, m, h, w]."""
    parts = self.part_encoder(image, train=False)
    colours = self.part_decoder.colours(parts.features)
    return self._draw_parts(parts, colours, image.shape[1])[1]

  def _draw_parts(self, parts: PartCapsules, colours: Array, canvas: int) -> tuple[Array, Array]:
    """What parts draw, [b, h, w, c], and each one's share of a pixel times its brightness."""
    mixture = self.part_decoder(parts.poses, parts.presence, colours, canvas)
    picture = jax.vmap(mixtures.mode)(mixture)
    brightness = jnp.max(jnp.clip(picture, 0.0, 1.0), axis=-1)
    return picture, jnp.exp(mixture.log_mixing[:, :-1]) * brightness[:, None]


def _scale_gradient(x: Array, factor: Array | float) -> Array:
  """x, whose gradient is multiplied by the factor."""
  constant = jax.lax.stop_gradient(x)
  return x if isinstance(factor, float) and factor == 1 else constant + factor * (x - constant)
