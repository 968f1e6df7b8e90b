"""Constellation capsule autoencoder (CCAE): the object half of the SCAE, on points of the plane.

A set transformer reads the points. Each object capsule casts a few votes for positions of points;
votes are not assigned to points. Kosiorek et al. 2019, sections 2.1 and 3.1.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct

from scae_jax import bounds
from scae_jax.bounds import MAX_WIDTH, Bound, between, build_module, build_stage, each, one_of
from scae_jax.layers.mlp import MLP
from scae_jax.math import geometry
from scae_jax.math.routing import points as routing_points
from scae_jax.models.scae.ocae import (
  CapsuleLoss,
  ObjectCapsules,
  ObjectDecoder,
  ObjectEncoder,
  Votes,
  features,
  votes_from,
)
from scae_jax.models.scae.pcae import MAX_NOISE, POSE_SIZE, STD_RANGE
from scae_jax.models.system import Encoding, PointSpec, Spec, System
from scae_jax.typing import Array, Batch, Float, typed

DECODERS = ("capsules", "mlp")
# A capsule counts as present if it won this many points: a single point may be chance.
MIN_POINTS = 2
PRESENT = 0.5
FOR_EACH_PATTERN = Bound(
  "at least {num_patterns}, the patterns that a scene can have: each needs a capsule",
  lambda value, fields: value >= fields["num_patterns"],
)
FOR_EACH_POINT = Bound(
  "at least {largest_pattern}, the points of the largest pattern: each needs a vote",
  lambda value, fields: value >= fields["largest_pattern"],
)


@dataclasses.dataclass(frozen=True)
class CCAEOptions:
  """Keys of the model section that are not fields of `CCAE`."""

  num_objects: Annotated[int, between(1, MAX_WIDTH), FOR_EACH_PATTERN]  # k
  num_votes: Annotated[int, between(1, MAX_WIDTH), FOR_EACH_POINT]  # v
  decoder: Annotated[str, one_of(*DECODERS)]  # which decoder casts the votes
  num_patterns: int  # patterns in a scene, from the data
  largest_pattern: int  # points of the largest pattern, from the data


@struct.dataclass
class CCAEOutput:
  """Everything that one pass computes."""

  objects: Votes  # the votes of each capsule
  # Which capsule explains which point, with a leading batch axis.
  routing: routing_points.PointRouting
  point_presence: Float[Array, "b n"]  # of the batch
  log_prob: Float[Array, " b"]  # log-likelihood of the present points, nats
  mass: Float[Array, "b k"]  # share of all points that each capsule explains
  won: Float[Array, "b k"]  # number of present points that each capsule won; no gradient


def point_votes(objects: ObjectCapsules) -> Votes:
  """Votes for points, which have no pose: the translations of the object capsules' votes."""
  return dataclasses.replace(objects, votes=objects.votes[..., jnp.array([2, 5])])


class MLPDecoder(nn.Module):
  """The baseline: one MLP outputs all votes, which share no pose."""

  num_objects: int  # k
  num_votes: int  # v
  widths: Annotated[tuple[int, ...], each(between(1, MAX_WIDTH))]  # of the hidden layers
  # Width of the uniform noise on capsule and vote presence logits in training.
  presence_noise: Annotated[float, between(0, MAX_NOISE)]
  learn_vote_scale: bool  # standard deviations are predicted; otherwise they are 1

  @nn.compact
  @typed
  def __call__(self, x: Float[Array, "b k e"], *, train: bool) -> Votes:
    batch, k, v = x.shape[0], self.num_objects, self.num_votes
    widths = {"positions": 2 * v, "vote_presence": v, "presence": 1}
    if self.learn_vote_scale:
      widths["vote_scale"] = v
    ends = list(itertools.accumulate(k * width for width in widths.values()))
    x = MLP((*self.widths, ends[-1]), name="mlp")(x.reshape(batch, -1))
    pieces = zip(widths.items(), jnp.split(x, ends[:-1], axis=-1), strict=True)
    raw = {name: piece.reshape(batch, k, width) for (name, width), piece in pieces}
    logits = (raw["presence"], raw["vote_presence"], raw.get("vote_scale"))
    noise = {"scale": self.presence_noise, "in_evaluation": False}
    return Votes(
      votes=raw["positions"].reshape(batch, k, v, 2),
      dynamic=jnp.zeros((batch, k, v, POSE_SIZE)),
      **votes_from(self, *logits, train=train, **noise),
    )


class CCAE(nn.Module):
  """Points to capsules, capsules to votes for points."""

  object_encoder: ObjectEncoder  # points to one vector a capsule
  # Vectors to votes: the capsule's pose times the pose of each of its points, or the MLP baseline.
  object_decoder: ObjectDecoder | MLPDecoder
  vote_scale: Annotated[float, between(*STD_RANGE)]  # factor of the votes' standard deviations

  @nn.compact
  def __call__(self, batch: Batch, *, train: bool) -> CCAEOutput:
    """One pass over a batch; see `CCAEOutput`."""
    points, presence = batch["points"], batch["presence"]
    frames = None
    if self.object_encoder.frame == "parts":
      frames = jax.vmap(geometry.frame_of)(points, presence)[:, None]
      in_frame = (points - frames[..., 2]) / frames[..., :1, 0]
      points = jnp.where(presence[..., None] > 0, in_frame, 0.0)  # absent points stay at 0
    objects = self.object_decoder(self.object_encoder(points, presence), train=train)
    if isinstance(objects, ObjectCapsules):
      objects = point_votes(objects)
    objects = dataclasses.replace(objects, vote_scale=self.vote_scale * objects.vote_scale)
    routing = jax.vmap(routing_points.route_points)(
      points, objects.votes, objects.vote_scale, objects.vote_presence
    )
    if frames is not None:
      votes = objects.votes * frames[..., None, :1, 0] + frames[..., None, :, 2]
      objects = dataclasses.replace(objects, votes=votes)
    return CCAEOutput(
      objects=objects,
      routing=routing,
      point_presence=presence,
      log_prob=jnp.sum(presence * routing.log_prob, axis=-1),
      mass=jax.vmap(routing_points.point_mass)(routing, presence),
      won=jax.vmap(routing_points.points_won)(routing, presence),
    )

  def draw(self, batch: Batch) -> dict[str, dict[str, Array]]:
    """Arrays of the figure."""
    output = self(batch, train=False)
    objects, presence = output.objects, batch["presence"]
    votes_won = jax.vmap(routing_points.votes_won, in_axes=(0, 0, None))
    arrays = {
      "capsule": point_winner(output),
      "votes": objects.votes,
      "vote_won": votes_won(output.routing, presence, objects.votes.shape[2]),
      "capsule_presence": jax.nn.sigmoid(objects.presence_logits),
    }
    return {"constellations": {n: batch[n] for n in ("points", "presence", "pattern")} | arrays}


def loss_terms(
  output: CCAEOutput,
  batch: Batch,
  step: Array | int | None,
  *,
  loss: CapsuleLoss,
  num_patterns: int,
) -> dict[str, Array]:
  """Terms to minimise, each unweighted and a mean over the batch.

  `points`: -log-likelihood of the present points, nats. `presence`: cross-entropy of each capsule's
  presence logit with whether it won at least two points, summed over the capsules that won any.
  `prior_within`, `prior_between`, `posterior_within`, `posterior_between`: sparsity of presences
  and of mass, with C the number of patterns. `dynamic`: half the summed squares of the
  deformations.
  """
  is_there = (output.won >= MIN_POINTS).astype(jnp.float32)
  logits = output.objects.presence_logits
  cross_entropy = optax.sigmoid_binary_cross_entropy(logits, is_there)
  return {
    "points": -jnp.mean(output.log_prob),
    "presence": jnp.mean(jnp.sum(jnp.where(output.won > 0, cross_entropy, 0.0), axis=-1)),
    **loss.sparsity(output.objects.presence, output.mass, num_patterns),
    "dynamic": jnp.sum(jnp.square(output.objects.dynamic)) / 2 / len(batch["points"]),
  }


def point_winner(output: CCAEOutput) -> Array:
  """The capsule that won each point, at any presence, int32 [b, n]; -1 for absent points."""
  return jnp.where(output.point_presence > 0, output.routing.winner, -1).astype(jnp.int32)


def encoding(output: CCAEOutput) -> Encoding:
  """The `Encoding` of scenes; objects have no pose."""
  winner = point_winner(output)
  probability = jax.nn.sigmoid(output.objects.presence_logits)
  is_present = jnp.take_along_axis(probability, output.routing.winner, axis=1) > PRESENT
  return Encoding(
    object_presence=probability,
    posterior_mass=output.mass,
    groups=jnp.where(is_present, winner, -1),
    point_winner=winner,
    features=features(output),
  )


def metrics(output: CCAEOutput, batch: Batch, *, num_patterns: int) -> dict[str, Array]:
  """For each example, [b]: the segmentation accuracy with true and with predicted presence, and
  the share of present points that the dummy explains best."""
  present, pattern = batch["presence"], batch["pattern"]
  num_capsules = output.objects.presence.shape[1]

  def accuracy(capsule: Array, pattern: Array, present: Array) -> Array:
    # one_hot of -1 is zero everywhere.
    belongs = jax.nn.one_hot(capsule, num_capsules) * present[:, None]
    agreement = belongs.T @ jax.nn.one_hot(pattern, num_patterns)
    rows, columns = optax.assignment.hungarian_algorithm(-agreement)
    return jnp.sum(agreement[rows, columns]) / jnp.sum(present)

  encoded = encoding(output)
  capsules = {"true_presence": encoded.point_winner, "predicted_presence": encoded.groups}
  accuracies = {
    f"accuracy_{name}": jax.vmap(accuracy)(jnp.asarray(capsule), pattern, present)
    for name, capsule in capsules.items()
  }
  dummy_wins = jnp.argmax(output.routing.posterior, axis=1) == num_capsules
  unexplained = jnp.sum(dummy_wins * present, axis=1) / jnp.sum(present, axis=1)
  return accuracies | {"unexplained_points": unexplained}


# The classes that sections of the config are read into.
SECTIONS = {
  "model": (CCAEOptions, CCAE),
  "model.object_encoder": (ObjectEncoder,),
  "model.object_decoder": (ObjectDecoder,),
  "model.mlp_decoder": (MLPDecoder,),
  "loss": (CapsuleLoss,),
}


def make_system(model: Mapping[str, Any], loss: Mapping[str, Any], data: Spec) -> System:
  """A CCAE from config sections: fields of `CCAE` and `CCAEOptions`, and `CapsuleLoss`.

  The decoders are the sections `object_decoder` (`capsules`) and `mlp_decoder` (`mlp`). Both must
  be valid; one is used.
  """
  if not isinstance(data, PointSpec):
    raise ValueError(
      "config.system 'ccae' takes scenes of points, but config.data.name names images; their system"
      " is 'scae'."
    )
  options = bounds.read(CapsuleLoss, "loss", loss)
  counts = {"num_patterns": data.num_patterns, "largest_pattern": data.largest_pattern}
  sizes, model = bounds.read_some(CCAEOptions, "model", model, **counts)
  k, v = sizes.num_objects, sizes.num_votes
  stage = functools.partial(build_stage, model)
  encoder = stage("object_encoder", ObjectEncoder, num_objects=k, compute_dtype=None)
  decoders = {
    "capsules": stage("object_decoder", ObjectDecoder, num_parts=v),
    "mlp": stage("mlp_decoder", MLPDecoder, num_objects=k, num_votes=v),
  }
  module = build_module(
    CCAE, "model", model, object_encoder=encoder, object_decoder=decoders[sizes.decoder]
  )

  return System(
    module=module,
    loss_terms=functools.partial(loss_terms, loss=options, num_patterns=data.num_patterns),
    loss_weights=options.weights,
    loss_schedule=options.schedule,
    metrics=functools.partial(metrics, num_patterns=data.num_patterns),
    encoding=encoding,
    pictures=nn.apply(CCAE.draw, module),
  )
