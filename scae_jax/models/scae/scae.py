"""The SCAE module: the part and the object capsule autoencoder, stacked.

Kosiorek et al. 2019, "Stacked Capsule Autoencoders", arXiv 1906.06818.
"""

import dataclasses
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
  coloured,
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
  """The likelihood of the target under the parts that are drawn."""

  target: Float[Array, "b h w c"]  # the image or its Sobel edges; no gradient
  mixture: mixtures.PixelMixture  # the mixture at every pixel, with a leading batch axis
  # Log-likelihood of the target, summed over pixels, mean over the batch, nats.
  log_prob: Float[Array, ""]


@struct.dataclass
class SCAEEncoding:
  """Part capsules, object capsules and routing of a batch of images."""

  parts: PartCapsules  # output of the part encoder
  colours: Float[Array, "b m q"]  # of the parts, see `pcae.coloured`
  objects: ObjectCapsules  # output of the object decoder
  # The posterior of each part over objects, with a leading batch axis. Part poses enter without a
  # gradient unless `stop_gradients` is `none`.
  routing: routing_mixture.Routing
  # Log-likelihood of the present parts' poses, nats; in units of the frame, see
  # `ObjectEncoder.frame`.
  part_log_prob: Float[Array, " b"]
  mass: Float[Array, "b k"]  # share of all parts that each object explains


@struct.dataclass
class SCAEOutput(SCAEEncoding):
  """The encoding with what loss terms and metrics need besides."""

  reconstruction: Reconstruction  # the target's likelihood under the drawn parts
  # Linear probe on object presences; its gradient stops at the presences.
  prior_logits: Float[Array, "b classes"]
  # Linear probe on the posterior mass; its gradient stops at the mass.
  posterior_logits: Float[Array, "b classes"]


class SCAE(nn.Module):
  """Stacked capsule autoencoder: PCAE and OCAE, and two linear probes."""

  part_encoder: PartEncoder  # image to parts
  part_decoder: PartDecoder  # parts to image
  object_encoder: ObjectEncoder  # parts to objects
  object_decoder: ObjectDecoder  # objects to parts
  num_classes: int  # classes of the two linear probes
  target: Annotated[str, one_of(*TARGETS)]  # what the parts draw, `image` or `sobel`
  # Part poses from which the image is drawn, in training and evaluation: those of the part
  # `encoder`, or the objects' votes, as the posterior mean (`soft`) or the winner's vote (`hard`).
  # With votes, the part encoder's poses learn from nothing unless `stop_gradients` is `none`.
  reconstruction_vote: Annotated[str, one_of(*SOURCES)]
  reconstruction_presence: Annotated[str, one_of(*SOURCES)]  # the same choice for presences
  normalize_mixing: bool  # normalise the mixing weights of the part mixture
  # Where gradients from the OCAE to the PCAE stop: `none`, nowhere; `parts`, at everything but
  # special features, as published; `all`, at special features too.
  stop_gradients: Annotated[str, one_of(*STOP_GRADIENTS)]

  def setup(self):
    self.prior_probe = nn.Dense(self.num_classes)
    self.posterior_probe = nn.Dense(self.num_classes)
    # Vote of the dummy, in the frame of the objects; used only by soft votes.
    shape = (self.part_encoder.num_parts, 6)
    self.dummy_vote = self.param("dummy_vote", nn.initializers.zeros_init(), shape, jnp.float32)

  def __call__(
    self, batch: Batch, *, train: bool, feature_gradient: Array | float = 1.0
  ) -> SCAEOutput:
    """`encode`, `decode` and `log_prob` of a batch, and the probes; see `SCAEOutput`."""
    image = batch["image"]
    encoding = self.encode(image, train=train, feature_gradient=feature_gradient)
    target = self._target(image)
    return SCAEOutput(
      **vars(encoding),
      reconstruction=Reconstruction(
        target, self.decode(encoding, image.shape[1]), self.log_prob(encoding, target, train=train)
      ),
      prior_logits=self.prior_probe(jax.lax.stop_gradient(encoding.objects.presence)),
      posterior_logits=self.posterior_probe(jax.lax.stop_gradient(encoding.mass)),
    )

  def encode(
    self, image: Array, *, train: bool, feature_gradient: Array | float = 1.0
  ) -> SCAEEncoding:
    """Part and object capsules of images [b, h, w, c].

    `feature_gradient` multiplies the gradient from the objects to the special features; the output
    does not depend on it.
    """
    parts = self.part_encoder(image, train=train)
    return self.encode_parts(parts, train=train, feature_gradient=feature_gradient)

  def encode_parts(
    self, parts: PartCapsules, *, train: bool, feature_gradient: Array | float = 1.0
  ) -> SCAEEncoding:
    """Object capsules of given part capsules; arguments as in `encode`."""
    stop = self._stop_gradient
    stop_features = jax.lax.stop_gradient if self.stop_gradients == "all" else lambda x: x
    part_presence = stop(parts.presence)
    part_poses = stop(parts.poses)
    frames = self._frames(parts)
    if frames is not None:
      part_poses = _compose_each(jax.vmap(geometry.invert)(frames), part_poses)
    part_poses = part_poses.reshape(*part_presence.shape, POSE_SIZE)
    colours = self.part_decoder.colours(parts.features)
    features = _scale_gradient(stop_features(parts.features), feature_gradient)
    # Colours are a second path from the objects to the features, where it is not stopped.
    row_colours = self.part_decoder.colours(features) if self.stop_gradients == "none" else colours
    templates = coloured(self.part_decoder.templates()[None], row_colours[:, :, None, None, :])
    flat_templates = stop(templates).reshape(*part_presence.shape, -1)
    absence = 1.0 - part_presence[..., None]
    rows = jnp.concatenate([part_poses, absence, features, flat_templates], axis=-1)
    object_vectors = self.object_encoder(rows, part_presence)
    objects = self.object_decoder(object_vectors, train=train)
    route = functools.partial(routing_mixture.route, normalize_mixing=self.normalize_mixing)
    routing = jax.vmap(route)(part_poses, objects.votes, objects.vote_scale, objects.vote_presence)
    if frames is not None:
      votes = objects.votes.reshape(len(frames), -1, 2, 3)
      objects = dataclasses.replace(
        objects,
        poses=_compose_each(frames, objects.poses),
        votes=_compose_each(frames, votes).reshape(objects.votes.shape),
      )
    return SCAEEncoding(
      parts=parts,
      colours=colours,
      objects=objects,
      routing=routing,
      part_log_prob=jnp.sum(part_presence * routing.log_prob, axis=-1),
      mass=jax.vmap(routing_mixture.posterior_mass)(routing),
    )

  def _stop_gradient(self, x: Array) -> Array:
    """The identity; gradients from the objects to the parts stop here, except with `none`."""
    return x if self.stop_gradients == "none" else jax.lax.stop_gradient(x)

  def _frames(self, parts: PartCapsules) -> Array | None:
    """The frame of each image's parts, [b, 2, 3]; None if objects see them in the image."""
    if self.object_encoder.frame == "image":
      return None
    poses, presence = self._stop_gradient(parts.poses), self._stop_gradient(parts.presence)
    return jax.vmap(geometry.frame_of)(poses[..., 2], presence, poses[..., :2])

  def decode(self, encoding: SCAEEncoding, canvas: int) -> mixtures.PixelMixture:
    """The mixture at each of canvas x canvas pixels, with a leading batch axis."""
    return self.part_decoder(*self._drawn_parts(encoding), encoding.colours, canvas)

  def log_prob(self, encoding: SCAEEncoding, target: Array, *, train: bool) -> Array:
    """log p(target [b, h, w, c]), [], summed over pixels, mean over the batch, nats.

    In training it is an estimate if `PartDecoder.likelihood_stride` is above 1.
    """
    poses, presence = self._drawn_parts(encoding)
    return self.part_decoder.log_prob(poses, presence, encoding.colours, target, train=train)

  def _target(self, image: Array) -> Array:
    """The image that parts reconstruct; no gradient."""
    target = jax.vmap(filters.normalized_sobel)(image) if self.target == "sobel" else image
    return jax.lax.stop_gradient(target)

  def _drawn_parts(self, encoding: SCAEEncoding) -> tuple[Array, Array]:
    """Poses [b, m, 2, 3] and presences [b, m] of the parts that the image is drawn from."""
    poses, presence = encoding.parts.poses, encoding.parts.presence

    def winner_votes(by: str, values: Array, dummy: Array) -> Array:
      winner_vote = functools.partial(routing_mixture.winner_vote, by=by)
      return jax.vmap(winner_vote)(encoding.routing, values, dummy)

    if self.reconstruction_vote != "encoder":
      votes = encoding.objects.votes
      dummy = jnp.broadcast_to(self.dummy_vote[None], (len(votes), *self.dummy_vote.shape))
      frames = self._frames(encoding.parts)
      if frames is not None:
        dummy = _compose_each(frames, dummy.reshape(*dummy.shape[:2], 2, 3)).reshape(dummy.shape)
      votes = winner_votes(self.reconstruction_vote, votes, dummy)
      poses = votes.reshape(*votes.shape[:2], 2, 3)
    if self.reconstruction_presence != "encoder":
      vote_presence = encoding.objects.vote_presence[..., None]
      absent = jnp.zeros((len(vote_presence), *vote_presence.shape[2:]))
      presence = winner_votes(self.reconstruction_presence, vote_presence, absent)[..., 0]
    return poses, presence

  def draw(self, batch: Batch) -> dict[str, dict[str, Array]]:
    """Arrays of the figures: reconstructions by parts, by objects and by each of them alone."""
    image, canvas = batch["image"], batch["image"].shape[1]
    capsules = self.encode(image, train=False)
    encoded = encoding(capsules)
    bottom_up, part_mixing = self._draw_parts(capsules.parts, capsules.colours, canvas)
    templates = {"templates": self.part_decoder.templates()}
    if self.part_decoder.mixing == "alpha":
      templates["alphas"] = jax.nn.sigmoid(self.part_decoder.alphas)
    reconstructions = figure_arrays.reconstructions(
      self._target(image),
      jnp.asarray(encoded.part_winner),
      capsules.objects.presence,
      lambda number: self.draw_from_objects(encoded, number, canvas),
      bottom_up=bottom_up,
      part_mixing=part_mixing,
    )
    return {"templates": templates, **reconstructions}

  def encode_moved(self, batch: Batch, image_map: Array) -> Encoding:
    """The encoding of images [b, h, w, c] whose parts are moved by a map [2, 3] of the image."""
    parts = self.part_encoder(batch["image"], train=False)
    maps = jnp.broadcast_to(image_map[None], (len(parts.poses), 2, 3))
    moved = dataclasses.replace(parts, poses=_compose_each(maps, parts.poses))
    return encoding(self.encode_parts(moved, train=False))

  def draw_from_parts(self, encoding: Encoding, part: Array, canvas: int) -> Array:
    """Images [b, h, w, c] from poses and presences of parts; see `system.Draw`."""
    is_drawn = (part < 0) | (jnp.arange(self.part_decoder.num_parts) == part)
    presence = jnp.clip(jnp.asarray(encoding.part_presence), 0.0, 1.0) * is_drawn[None]
    poses = jnp.asarray(encoding.part_poses)
    return self._draw_present(poses, presence, encoding.details["colours"], canvas)

  def draw_from_objects(self, encoding: Encoding, number: Array, canvas: int) -> Array:
    """Images [b, h, w, c] from poses and presences of objects; see `system.Draw`.

    Each part has the pose of its winning object's vote. Winners, object-part poses and colours are
    those of the encoding. Vote presences scale with the presence of their object, which is the
    largest of them.
    """

    details, poses = encoding.details, jnp.asarray(encoding.object_poses)
    encoded_presence = jnp.max(details["vote_presence"], axis=-1)
    presence = jnp.asarray(encoding.object_presence)
    scale = presence / jnp.maximum(encoded_presence, MIN_PRESENCE)

    def winning_parts(
      winner: Array, poses: Array, object_part: Array, vote_presence: Array, scale: Array
    ) -> tuple[Array, Array]:
      part = jnp.arange(len(winner))
      presence = jnp.clip(scale[winner] * vote_presence[winner, part], 0.0, 1.0)
      return jax.vmap(geometry.compose)(poses[winner], object_part[winner, part]), presence

    winner = details["winner"]
    poses, presence = jax.vmap(winning_parts)(
      winner, poses, details["object_part"], details["vote_presence"], scale
    )
    is_drawn = (number < 0) | (winner == number)
    return self._draw_present(poses, presence * is_drawn, details["colours"], canvas)

  def _draw_present(self, poses: Array, presence: Array, colours: Array, canvas: int) -> Array:
    """Images [b, h, w, c] of the parts with a presence above 0."""
    # At presence 0 the mixing logit is still alpha + log(1e-16), which may win over the background.
    # With a collapsed pose the template lies outside the image.
    poses = jnp.where(presence[..., None, None] > 0, poses, 0.0)
    return jax.vmap(mixtures.mode)(self.part_decoder(poses, presence, colours, canvas))

  def part_mixing(self, image: Array) -> Array:
    """Each part's share of each pixel of images [b, h, w, c], times brightness, [b, m, h, w]."""
    parts = self.part_encoder(image, train=False)
    colours = self.part_decoder.colours(parts.features)
    return self._draw_parts(parts, colours, image.shape[1])[1]

  def _draw_parts(self, parts: PartCapsules, colours: Array, canvas: int) -> tuple[Array, Array]:
    """The drawn image [b, h, w, c], and each part's share of a pixel times its brightness."""
    mixture = self.part_decoder(parts.poses, parts.presence, colours, canvas)
    picture = jax.vmap(mixtures.mode)(mixture)
    brightness = jnp.max(jnp.clip(picture, 0.0, 1.0), axis=-1)
    return picture, jnp.exp(mixture.log_mixing[:, :-1]) * brightness[:, None]


def _compose_each(outer: Float[Array, "b 2 3"], inner: Float[Array, "b n 2 3"]) -> Array:
  """Composes the pose of each example with n poses, [b, n, 2, 3]."""
  return jax.vmap(jax.vmap(geometry.compose, in_axes=(None, 0)))(outer, inner)


def encoding(output: SCAEEncoding) -> Encoding:
  """The `Encoding` of images, as the library and evaluation use it.

  In `details`, `winner` is the object with the largest vote for each part, never the dummy.
  """
  parts, objects = output.parts, output.objects
  return Encoding(
    object_presence=objects.presence,
    object_poses=objects.poses,
    part_presence=parts.presence,
    part_poses=parts.poses,
    part_winner=jnp.argmax(output.routing.posterior, axis=1),
    posterior_mass=output.mass,
    features=features(output),
    details={
      "winner": output.routing.winner,
      "object_part": objects.object_part,
      "vote_presence": objects.vote_presence,
      "colours": output.colours,
    },
  )


def _scale_gradient(x: Array, factor: Array | float) -> Array:
  """The identity of x; its gradient is multiplied by the factor."""
  constant = jax.lax.stop_gradient(x)
  return x if isinstance(factor, float) and factor == 1 else constant + factor * (x - constant)
