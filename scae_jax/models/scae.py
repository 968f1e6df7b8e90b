"""Stacked Capsule Autoencoder (SCAE): a part autoencoder with an object autoencoder on top.

Kosiorek et al. 2019, "Stacked Capsule Autoencoders", arXiv 1906.06818.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct

from scae_jax import bounds, filters, geometry, mixtures
from scae_jax.bounds import MAX_WEIGHT, MAX_WIDTH, Points, between, line, one_of
from scae_jax.layers.convnet import windows_of
from scae_jax.layers.sight import require_sight
from scae_jax.models.capsule_loss import CapsuleLoss, SparsityTerms, sparsity_of
from scae_jax.models.object_capsules import ObjectCapsules, ObjectDecoder, ObjectEncoder
from scae_jax.models.part_capsules import PartCapsules, PartDecoder, PartEncoder
from scae_jax.models.system import ImageSpec, Spec, System, build_module, require_pixels
from scae_jax.models.turned_pictures import part_identity
from scae_jax.routing import mixture as routing_mixture
from scae_jax.schedules import line_through
from scae_jax.typing import Array, Batch, Float

TARGETS = ("image", "sobel")
SOURCES = ("encoder", "soft", "hard")
STOP_GRADIENTS = ("none", "parts", "all")
COMPUTE_DTYPES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class StageOptions:
  """Keys of the model section that several stages share.

  Attributes:
    num_parts: m.
    num_objects: k.
    compute_dtype: of CNN and set transformer.
    feature_gradient: points (step, factor) of the argument of `SCAE.__call__` in training, see
      `schedules.line_through`; () for 1.
  """

  num_parts: Annotated[int, between(1, MAX_WIDTH)]
  num_objects: Annotated[int, between(1, MAX_WIDTH)]
  compute_dtype: Annotated[str, one_of(*COMPUTE_DTYPES)]
  feature_gradient: Annotated[Points, line(0, MAX_WEIGHT)] = ()


@struct.dataclass
class Reconstruction:
  """How well the drawn image explains the target.

  Attributes:
    target: [b, h, w, c], the image or its Sobel edges; no gradient.
    mixture: the mixture at every pixel, with a leading batch axis.
    log_prob: [], log-likelihood of the target, summed over pixels, mean over the batch, nats.
  """

  target: Float[Array, "b h w c"]
  mixture: mixtures.PixelMixture
  log_prob: Float[Array, ""]


@struct.dataclass
class SCAEOutput:
  """Everything that one pass computes; pictures are drawn from it on request (`SCAE.draw`).

  Attributes:
    parts: what the part encoder found.
    objects: what the object decoder predicts.
    routing: which object explains which part, with a leading batch axis; its part poses carry no
      gradient unless `stop_gradients` is `none`.
    part_log_prob: [b], log-likelihood of the present parts' poses, nats.
    mass: [b, k], share of all parts that every object explains.
    reconstruction: the image's likelihood under the drawn parts.
    prior_logits: [b, classes], linear probe on presences; only the probe learns from it.
    posterior_logits: [b, classes], linear probe on the mass; only the probe learns from it.
  """

  parts: PartCapsules
  objects: ObjectCapsules
  routing: routing_mixture.Routing
  part_log_prob: Float[Array, "b"]
  mass: Float[Array, "b k"]
  reconstruction: Reconstruction
  prior_logits: Float[Array, "b classes"]
  posterior_logits: Float[Array, "b classes"]


class SCAE(nn.Module):
  """The two autoencoders, stacked.

  Attributes:
    part_encoder: image to parts.
    part_decoder: parts to image.
    object_encoder: parts to objects.
    object_decoder: objects to parts.
    num_classes: classes of the two linear probes.
    target: what the parts draw, `image` or `sobel`.
    reconstruction_vote: whose poses are drawn in training: the part `encoder`'s, or the objects'
      votes for them, averaged under the posterior (`soft`) or the winner's (`hard`).
    reconstruction_presence: the same choice for presences.
    normalize_mixing: normalise the mixing weights of the part mixture.
    stop_gradients: what is a constant for the object autoencoder: `none`; `parts`, all of them but
      their special features, as published; `all`, these too.
  """

  part_encoder: PartEncoder
  part_decoder: PartDecoder
  object_encoder: ObjectEncoder
  object_decoder: ObjectDecoder
  num_classes: int
  target: Annotated[str, one_of(*TARGETS)]
  reconstruction_vote: Annotated[str, one_of(*SOURCES)]
  reconstruction_presence: Annotated[str, one_of(*SOURCES)]
  normalize_mixing: bool
  stop_gradients: Annotated[str, one_of(*STOP_GRADIENTS)]

  def setup(self):
    self.prior_probe = nn.Dense(self.num_classes)
    self.posterior_probe = nn.Dense(self.num_classes)
    # Pose of a part that no object explains; only a soft winner reads it.
    shape = (self.part_encoder.num_parts, 6)
    self.dummy_vote = self.param("dummy_vote", nn.initializers.zeros_init(), shape)

  def __call__(
    self, batch: Batch, *, train: bool, feature_gradient: Array | float = 1.0
  ) -> SCAEOutput:
    """One pass over a batch; see `SCAEOutput`. `feature_gradient` is a factor of the gradient that
    special features get from the objects; the output does not depend on it.
    """
    image = batch["image"]
    parts = self.part_encoder(image, train=train)
    stop = jax.lax.stop_gradient if self.stop_gradients != "none" else lambda x: x
    stop_features = jax.lax.stop_gradient if self.stop_gradients == "all" else lambda x: x
    part_poses = stop(jax.vmap(jax.vmap(geometry.pose_vector))(parts.poses))
    part_presence = stop(parts.presence)
    templates = self.part_decoder.coloured_templates(parts.features)
    features = _scale_gradient(stop_features(parts.features), feature_gradient)
    rows = jnp.concatenate(
      [
        part_poses,
        1.0 - part_presence[..., None],
        features,
        stop(templates).reshape(*part_presence.shape, -1),
      ],
      axis=-1,
    )
    encoded = self.object_encoder(rows, part_presence)
    objects = self.object_decoder(encoded, train=train)
    routing = self._route(part_poses, objects)
    mass = jax.vmap(routing_mixture.posterior_mass)(routing)

    poses, presence = self._to_draw(parts, objects, routing)
    mixture = self.part_decoder(poses, presence, parts.features, image.shape[1])
    target = jax.vmap(filters.normalized_sobel)(image) if self.target == "sobel" else image
    target = jax.lax.stop_gradient(target)
    log_prob = self.part_decoder.log_prob(
      mixture, poses, presence, parts.features, target, train=train
    )
    return SCAEOutput(
      parts=parts,
      objects=objects,
      routing=routing,
      part_log_prob=jnp.sum(part_presence * routing.log_prob, axis=-1),
      mass=mass,
      reconstruction=Reconstruction(target, mixture, log_prob),
      prior_logits=self.prior_probe(jax.lax.stop_gradient(objects.presence)),
      posterior_logits=self.posterior_probe(jax.lax.stop_gradient(mass)),
    )

  def _route(self, part_poses: Array, objects: ObjectCapsules) -> routing_mixture.Routing:
    def route(poses: Array, votes: Array, scale: Array, presence: Array) -> routing_mixture.Routing:
      return routing_mixture.route(
        poses, votes, scale, presence, normalize_mixing=self.normalize_mixing
      )

    return jax.vmap(route)(part_poses, objects.votes, objects.vote_scale, objects.vote_presence)

  def _to_draw(
    self, parts: PartCapsules, objects: ObjectCapsules, routing: routing_mixture.Routing
  ) -> tuple[Array, Array]:
    """Poses [b, m, 2, 3] and presences [b, m] of the parts that the image is drawn from."""
    poses, presence = parts.poses, parts.presence
    if self.reconstruction_vote != "encoder":
      poses = self._winning_poses(objects, routing, soft=self.reconstruction_vote == "soft")
    if self.reconstruction_presence != "encoder":
      soft = self.reconstruction_presence == "soft"
      presence = self._winning_presence(objects, routing, soft=soft)
    return poses, presence

  def _winning_poses(
    self, objects: ObjectCapsules, routing: routing_mixture.Routing, *, soft: bool
  ) -> Array:
    if soft:
      average = jax.vmap(routing_mixture.soft_winner, in_axes=(0, 0, None))
      vectors = average(routing, objects.votes, self.dummy_vote)
    else:
      vectors = jax.vmap(routing_mixture.hard_winner)(routing, objects.votes)
    return jax.vmap(jax.vmap(geometry.pose_from_vector))(vectors)

  def _winning_presence(
    self, objects: ObjectCapsules, routing: routing_mixture.Routing, *, soft: bool
  ) -> Array:
    presence = objects.vote_presence[..., None]
    if soft:
      nothing = jnp.zeros((presence.shape[2], 1))
      average = jax.vmap(routing_mixture.soft_winner, in_axes=(0, 0, None))
      return average(routing, presence, nothing)[..., 0]
    return jax.vmap(routing_mixture.hard_winner)(routing, presence)[..., 0]

  def draw(self, batch: Batch) -> dict[str, dict[str, Array]]:
    """Arrays of the figures: what parts draw, what objects draw, and what each draws alone."""
    output = self(batch, train=False)
    parts, objects, routing = output.parts, output.objects, output.routing
    canvas = batch["image"].shape[1]
    mode = jax.vmap(mixtures.mode)

    poses = self._winning_poses(objects, routing, soft=False)
    presence = self._winning_presence(objects, routing, soft=False)
    top_down = mode(self.part_decoder(poses, presence, parts.features, canvas))

    def one_object(k: Array) -> Array:
      vectors = jnp.take(objects.votes, k, axis=1)
      poses = jax.vmap(jax.vmap(geometry.pose_from_vector))(vectors)
      presence = jnp.take(objects.vote_presence, k, axis=1) * (routing.winner == k)
      return mode(self.part_decoder(poses, presence, parts.features, canvas))

    num_objects = objects.presence.shape[1]
    alone = jax.lax.map(one_object, jnp.arange(num_objects))
    bottom_up, part_mixing = self._draw_parts(parts, canvas)
    pictures = {
      "templates": {"templates": self.part_decoder.templates()},
      "reconstructions": {
        "image": output.reconstruction.target,
        "bottom_up": bottom_up,
        "top_down": top_down,
        "part_mixing": part_mixing,
        "part_winner": jnp.argmax(routing.posterior, axis=1),  # k where the dummy has it
        "object_presence": objects.presence,
      },
      "object_reconstructions": {
        "image": output.reconstruction.target,
        "object_reconstruction": jnp.moveaxis(alone, 0, 1),
        "object_presence": objects.presence,
      },
    }
    if self.part_decoder.mixing == "alpha":
      pictures["templates"]["alphas"] = jax.nn.sigmoid(self.part_decoder.alphas)
    return pictures

  def part_mixing(self, image: Array) -> Array:
    """Parts of images [b, h, w, c]: share of every pixel times its brightness, [b, m, h, w]."""
    parts = self.part_encoder(image, train=False)
    return self._draw_parts(parts, image.shape[1])[1]

  def _draw_parts(self, parts: PartCapsules, canvas: int) -> tuple[Array, Array]:
    """What parts draw, [b, h, w, c], and each one's share of a pixel times its brightness."""
    mixture = self.part_decoder(parts.poses, parts.presence, parts.features, canvas)
    picture = jax.vmap(mixtures.mode)(mixture)
    brightness = jnp.max(jnp.clip(picture, 0.0, 1.0), axis=-1)
    return picture, jnp.exp(mixture.log_mixing[:, :-1]) * brightness[:, None]


def _scale_gradient(x: Array, factor: Array | float) -> Array:
  """x, whose gradient is multiplied by the factor."""
  constant = jax.lax.stop_gradient(x)
  return x if isinstance(factor, float) and factor == 1 else constant + factor * (x - constant)


def loss_terms(
  output: SCAEOutput, batch: Batch, step: Array | int | None, *, sparsity: SparsityTerms
) -> dict[str, Array]:
  """Terms to minimise, each unweighted.

  Args:
    output: of the module.
    batch: the same batch.
    step: of training; no term depends on it.
    sparsity: terms of presences and mass, with the number of classes as C.

  Returns:
    `image`: -log-likelihood of the image, nats; `parts`: -log-likelihood of the part poses;
    `prior_within`, `prior_between`, `posterior_within`, `posterior_between`: sparsity of presences
    and of mass; `dynamic`: half the summed squares of the deformations; `prior_probe`,
    `posterior_probe`: cross-entropies of the two probes. Each is a mean over the batch.
  """
  batch_size = batch["image"].shape[0]
  cross_entropy = optax.softmax_cross_entropy_with_integer_labels
  return {
    "image": -output.reconstruction.log_prob,
    "parts": -jnp.mean(output.part_log_prob),
    **sparsity(output.objects.presence, output.mass),
    "dynamic": jnp.sum(jnp.square(output.objects.dynamic)) / 2 / batch_size,
    "prior_probe": jnp.mean(cross_entropy(output.prior_logits, batch["label"])),
    "posterior_probe": jnp.mean(cross_entropy(output.posterior_logits, batch["label"])),
  }


def measures(output: SCAEOutput, batch: Batch) -> dict[str, Array]:
  """Numbers an example, [b]: squared error of the reconstruction, whether each probe is right."""
  image = jax.vmap(mixtures.mode)(output.reconstruction.mixture)
  error = jnp.sum(jnp.square(image - output.reconstruction.target), axis=(1, 2, 3))
  prior = jnp.argmax(output.prior_logits, axis=-1) == batch["label"]
  posterior = jnp.argmax(output.posterior_logits, axis=-1) == batch["label"]
  return {
    "squared_error": error,
    "prior_accuracy": prior.astype(jnp.float32),
    "posterior_accuracy": posterior.astype(jnp.float32),
  }


def features(output: SCAEOutput) -> dict[str, Array]:
  """What evaluation clusters: `prior` presences and `posterior` mass, [b, k] each."""
  return {"prior": output.objects.presence, "posterior": output.mass}


def poses(output: SCAEOutput) -> dict[str, tuple[Array, Array]]:
  """Poses [b, n, 2, 3] and presences [b, n] of `parts` (n = m) and `objects` (n = k)."""
  parts, objects = output.parts, output.objects
  return {"parts": (parts.poses, parts.presence), "objects": (objects.poses, objects.presence)}


def make_system(model: Mapping[str, Any], loss: Mapping[str, Any], data: Spec) -> System:
  """An SCAE from config sections.

  Args:
    model: fields of `SCAE`, with a section for each of its four parts; `num_parts`, `num_objects`
      and `compute_dtype` stand once, at the top, with `feature_gradient`; see `StageOptions`.
    loss: see `CapsuleLoss`.
    data: canvas, channels and number of classes.

  Raises:
    ValueError: a key or value that does not fit, or data that are not images in [0, 1].
  """
  if not isinstance(data, ImageSpec):
    raise ValueError(
      "config.system 'scae' takes images, and config.data.name names scenes of points; the system"
      " for those is 'ccae'."
    )
  require_pixels("scae", data)
  options = bounds.read(CapsuleLoss, "loss", loss)
  shared, model = bounds.read_some(StageOptions, "model", model)
  m, k = shared.num_parts, shared.num_objects
  # Parameters and images have float32.
  dtype = None if shared.compute_dtype == "float32" else shared.compute_dtype
  derived = {
    "part_encoder": (PartEncoder, {"num_parts": m, "compute_dtype": dtype}),
    "part_decoder": (PartDecoder, {"num_parts": m, "channels": data.channels}),
    "object_encoder": (ObjectEncoder, {"num_objects": k, "compute_dtype": dtype}),
    "object_decoder": (ObjectDecoder, {"num_parts": m}),
  }
  stages = {
    name: build_module(kind, f"model.{name}", model.pop(name, {}), **known)
    for name, (kind, known) in derived.items()
  }
  strides = stages["part_encoder"].strides
  require_sight(data.canvas, windows_of(strides), {"model.part_encoder.strides": strides})
  module = build_module(SCAE, "model", model, num_classes=data.num_classes, **stages)

  def pictures(variables: Any, batch: Batch) -> dict[str, dict[str, Array]]:
    mixing_of = functools.partial(nn.apply(SCAE.part_mixing, module), variables)
    drawn = nn.apply(SCAE.draw, module)(variables, batch)
    return {**drawn, "part_identity": part_identity(batch["image"], mixing_of)}

  return System(
    module=module,
    loss_terms=functools.partial(loss_terms, sparsity=sparsity_of(options, data.num_classes)),
    loss_weights=options.weights,
    loss_schedule=options.schedule,
    measures=measures,
    features=features,
    pictures=pictures,
    poses=poses,
    arguments=_feature_gradient(shared.feature_gradient, module.stop_gradients),
  )


def _feature_gradient(
  points: Points, stop_gradients: str
) -> Callable[[Array | int], dict[str, Array]] | None:
  """The schedule of `SCAE.__call__`'s `feature_gradient`; None where it is 1 at all steps."""
  factor = line_through(points)
  if factor is None:
    return None
  if stop_gradients == "all":
    raise ValueError(
      "config.model.feature_gradient must be () where config.model.stop_gradients is 'all', which"
      f" stops that gradient at every step; it is {points!r}."
    )
  return lambda step: {"feature_gradient": factor(step)}
