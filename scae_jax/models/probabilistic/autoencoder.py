"""The module of probabilistic capsules: inference of all layers, and the estimated bound.

Smith et al. 2020, "Capsule Networks - A Probabilistic Perspective", arXiv 2004.03553, section 2.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from scae_jax.bounds import MAX_WIDTH, between, one_of
from scae_jax.math.routing import selection
from scae_jax.math.routing.selection import Capsules, Moments, Selection
from scae_jax.models import figure_arrays
from scae_jax.models.probabilistic import drawn_images
from scae_jax.models.probabilistic.generative_model import GenerativeCapsules
from scae_jax.models.probabilistic.inference import ObjectInference, PartInference, Posterior
from scae_jax.models.system import MIN_PRESENCE, Encoding
from scae_jax.typing import Array, Batch, Float

OFF_POSES = ("broad", "summed_out")


@struct.dataclass
class ProbabilisticOutput:
  """Everything that one pass computes."""

  # The terms of the negative bound, nats; see `negative_bound`.
  terms: dict[str, Float[Array, " b"]]
  # Posteriors of all layers, from the parts up, without noise: each layer is inferred from the
  # centre of the posterior below.
  posteriors: list[Posterior]
  picture: Float[Array, "b h w c"]  # drawn from the centre of the parts' posterior
  encoding: Encoding  # of these posteriors, see `ProbabilisticCapsules.encoding`
  # `Selection.joint` [b, s, k+1, m] of all layers but the topmost, for each sample that `terms` are
  # estimated from.
  joints: list[Float[Array, "b s n m"]]


class ProbabilisticCapsules(nn.Module):
  """The generative model and the networks that infer its latent variables."""

  generative: GenerativeCapsules  # the prior and the picture
  part_inference: PartInference  # image to parts
  object_inference: Sequence[ObjectInference]  # each layer to the one above, from the parts up
  num_samples: Annotated[int, between(1, MAX_WIDTH)]  # of the Monte Carlo estimate of the bound
  # Prior of the pose of a child that is off. `broad` is the article's: a wide Gaussian around the
  # identity. Next to a sharp posterior, above all a point, its density is low. Absent parts then
  # stay on, where a parent predicts them: matching that prior outweighs the pixel error.
  # `summed_out`: the pose of an absent child costs nothing, see `Posterior.off_log_prob`; exact for
  # presences of 0 or 1.
  off_poses: Annotated[str, one_of(*OFF_POSES)] = "broad"

  def __call__(self, batch: Batch, *, train: bool) -> ProbabilisticOutput:
    """One pass over a batch; see `ProbabilisticOutput`. In evaluation the key is constant."""
    image = batch["image"]
    key = self.make_rng("noise") if train else jax.random.key(0)
    posteriors, capsules = self.infer(image, None)
    terms, joints = self.estimate(image, key)
    return ProbabilisticOutput(
      terms=terms,
      posteriors=posteriors,
      picture=self.generative.draw(capsules[0], image.shape[1]),
      encoding=self.encoding(posteriors),
      joints=joints,
    )

  def infer(self, image: Array, key: Array | None) -> tuple[list[Posterior], list[Capsules]]:
    """Posteriors of all layers for images [b, h, w, c], from the parts up, and a sample of each.

    With a key each image has `num_samples` samples, in consecutive rows. With None the sample is
    the centre of each posterior, one row for each image.
    """
    posterior = self.part_inference(image)
    if key is not None:
      posterior = repeat(posterior, self.num_samples)
    posteriors, layers = [posterior], [self._draw(posterior, key, 0)]
    for i, network in enumerate(self.object_inference, start=1):
      posteriors.append(network(layers[-1]))
      layers.append(self._draw(posteriors[-1], key, i))
    return posteriors, layers

  def _draw(self, posterior: Posterior, key: Array | None, layer: int) -> Capsules:
    temperature = self.generative.temperature_of(layer)
    if key is None:
      return posterior.centre(temperature)
    return posterior.sample(jax.random.fold_in(key, layer), temperature)

  def estimate(
    self, image: Array, key: Array, free_posteriors: Sequence[Posterior] | None = None
  ) -> tuple[dict[str, Array], list[Array]]:
    """Monte Carlo estimate of `negative_bound`, terms [b], and `ProbabilisticOutput.joints`.

    Images are [b, h, w, c]. The networks infer the posteriors, unless `free_posteriors` has one for
    each layer; these are sampled independently of each other.
    """
    if free_posteriors is None:
      posteriors, layers = self.infer(image, key)
    else:
      posteriors = repeat(list(free_posteriors), self.num_samples)
      layers = [self._draw(posterior, key, i) for i, posterior in enumerate(posteriors)]
    choices = self._select(posteriors, layers)
    samples = (image.shape[0], self.num_samples)
    joints = [choice.joint.reshape(*samples, *choice.joint.shape[1:]) for choice in choices]
    terms = self.negative_bound(repeat(image, self.num_samples), posteriors, layers, choices)
    return {name: jnp.mean(term.reshape(samples), axis=1) for name, term in terms.items()}, joints

  def prior(self, batch_size: int) -> list[Posterior]:
    """Posteriors of all layers with the moments of the prior, the same for all examples."""
    gaussian = self.part_inference.gaussian

    def posterior_of(moments: Moments) -> Posterior:
      scales = moments.pose_scales if gaussian else None
      return Posterior(moments.presence_logits, moments.poses, scales)

    posteriors = [posterior_of(moments) for moments in self.generative.prior_moments()]
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (batch_size, *leaf.shape)), posteriors)

  def _select(self, posteriors: Sequence[Posterior], layers: Sequence[Capsules]) -> list[Selection]:
    if self.off_poses == "broad":
      return self.generative.select(layers)
    min_scale = self.generative.min_scale
    off_log_probs = [
      posterior.off_log_prob(capsules, min_scale)
      for posterior, capsules in zip(posteriors, layers, strict=True)
    ]
    return self.generative.select(layers, off_log_probs)

  def negative_bound(
    self,
    image: Array,
    posteriors: Sequence[Posterior],
    layers: Sequence[Capsules],
    choices: Sequence[Selection],
  ) -> dict[str, Float[Array, " b"]]:
    """Terms of minus the evidence lower bound for one sample of each image, nats, [b] each.

    `pixels`: -log density of the image. `capsules_<i>`: -log density of layer i given the layer
    above (of the topmost: under its prior), with choices of parents summed out. `presences_<i>`:
    log density of the layer's presences under the posterior. `poses_<i>`: the same for its poses,
    with Gaussian posteriors only. With point posteriors (delta) the bound lacks an infinite
    constant, and poses are maximum a posteriori estimates.

    Terms are in the order of sampling: the first one that is not finite is the cause of the others.
    """
    picture = self.generative.draw(layers[0], image.shape[1])
    pixels = self.generative.image_log_prob(picture, image)
    children = [jnp.sum(choice.log_prob, axis=-1) for choice in choices]
    log_probs, terms = [pixels, *children, self.generative.top_log_prob(layers[-1])], {}
    for i, (posterior, capsules) in enumerate(zip(posteriors, layers, strict=True)):
      temperature = self.generative.temperature_of(i)
      terms[f"presences_{i + 1}"] = posterior.presence_log_prob(capsules, temperature)
      if posterior.pose_scales is not None:
        terms[f"poses_{i + 1}"] = posterior.pose_log_prob(capsules)
      terms[f"capsules_{i}" if i else "pixels"] = -log_probs[i]
    return terms | {f"capsules_{len(layers)}": -log_probs[-1]}

  def draw(self, batch: Batch) -> dict[str, dict[str, Array]]:
    """Arrays of the figures: drawings of the prior, objects and parts, and the parts' objects."""
    image, canvas = batch["image"], batch["image"].shape[1]
    posteriors, capsules = self.infer(image, None)
    encoding = self.encoding(posteriors)
    templates, alphas = self.generative.templates()
    return {
      "templates": {"templates": templates, "alphas": alphas},
      "prior_samples": drawn_images.prior_samples(self.generative, canvas),
      "object_samples": drawn_images.object_samples(self.generative, canvas),
      **figure_arrays.reconstructions(
        image,
        jnp.asarray(encoding.part_winner),
        encoding.details["object_presence"],
        lambda number: self.draw_from_objects(encoding, number, canvas),
        bottom_up=self.generative.draw(capsules[0], canvas),
        part_mixing=self.generative.part_mixing(capsules[0], canvas),
      ),
    }

  def encoding(self, posteriors: Sequence[Posterior]) -> Encoding:
    """Encodes posteriors of all layers, from the parts up; objects are the topmost layer.

    Features are `presences` of the objects and their `children`, the expected numbers (appendix D).
    Probe features are `presence_logits` of the objects, and `presences_and_poses`, the logits and
    the six numbers of each pose.
    In `details`, `owner_<i>` is the winning parent of each capsule of layer i (the parts are layer
    0); the dummy has the number of parents.
    """
    capsules = [
      posterior.centre(self.generative.temperature_of(i)) for i, posterior in enumerate(posteriors)
    ]
    choices = self._select(posteriors, capsules)
    children = jax.vmap(selection.expected_children)(choices[-1], capsules[-2])
    first, last = posteriors[0], posteriors[-1]
    logits = last.presence_logits
    presence, poses = jax.nn.sigmoid(logits), last.poses.reshape(*logits.shape[:1], -1)
    owners = {
      f"owner_{i}": jnp.argmax(choice.posterior, axis=1) for i, choice in enumerate(choices)
    }
    return Encoding(
      object_presence=presence,
      object_poses=last.poses,
      part_presence=jax.nn.sigmoid(first.presence_logits),
      part_poses=first.poses,
      part_winner=topmost_owner(owners, self.generative.capsules),
      posterior_mass=children / self.generative.capsules[-2],
      features={"children": children, "presences": presence},
      probe_features={
        "presence_logits": logits,
        "presences_and_poses": jnp.concatenate([logits, poses], axis=1),
      },
      details={**owners, "object_presence": presence},
    )

  def draw_from_parts(self, encoding: Encoding, part: Array, canvas: int) -> Array:
    """Images [b, h, w, c] from poses and presences of parts; see `system.Draw`."""
    is_drawn = (part < 0) | (jnp.arange(self.generative.capsules[0]) == part)
    presence = jnp.clip(jnp.asarray(encoding.part_presence), 0, 1) * is_drawn[None]
    return self._draw_parts(presence, jnp.asarray(encoding.part_poses), canvas)

  def draw_from_objects(self, encoding: Encoding, number: Array, canvas: int) -> Array:
    """Images [b, h, w, c] from poses and presences of objects; see `system.Draw`.

    Each capsule has the pose that its winning parent predicts. A part that the dummy wins is not
    drawn. A part's presence is multiplied by the ratio of its object's presence to the presence
    that was encoded.
    """
    before, after = encoding.details["object_presence"], jnp.asarray(encoding.object_presence)
    top = jnp.arange(self.generative.capsules[-1])
    ratio = after / jnp.maximum(before, MIN_PRESENCE)
    factor = jnp.where((number < 0) | (top == number)[None], ratio, 0.0)
    poses = jnp.asarray(encoding.object_poses)
    in_examples = jax.vmap(selection.chosen_poses, in_axes=(0, 0, None))
    for i, relations in reversed(list(enumerate(self.generative.relations()))):
      owner, count = encoding.details[f"owner_{i}"], self.generative.capsules[i + 1]
      winner = jnp.minimum(owner, count - 1)
      poses = in_examples(winner, poses, relations)
      factor = jnp.where(owner < count, jnp.take_along_axis(factor, winner, axis=1), 0.0)
    presence = jnp.clip(factor * jnp.asarray(encoding.part_presence), 0.0, 1.0)
    return self._draw_parts(presence, poses, canvas)

  def _draw_parts(self, presence: Array, poses: Array, canvas: int) -> Array:
    logits = jax.scipy.special.logit(presence) / self.generative.temperature_of(0)
    return self.generative.draw(Capsules(logits, poses), canvas)

  def part_mixing(self, image: Array) -> Array:
    """`GenerativeCapsules.part_mixing` of images [b, h, w, c]."""
    parts = self.part_inference(image).centre(self.generative.temperature_of(0))
    return self.generative.part_mixing(parts, image.shape[1])


def topmost_owner(details: Mapping[str, Array], capsules: Sequence[int]) -> Array:
  """The topmost object above each part, int [b, m]; k for none.

  `details` are those of the encoding; `capsules` are the numbers of capsules of all layers, from
  the parts up.
  """
  owner = details["owner_0"]
  for i, count in enumerate(capsules[1:-1], start=1):
    above = jnp.take_along_axis(details[f"owner_{i}"], jnp.minimum(owner, count - 1), axis=1)
    owner = jnp.where(owner < count, above, capsules[-1])
  return owner


def repeat(tree: Any, times: int) -> Any:
  """Repeats each example of arrays [b, ...] `times` times, in consecutive rows."""
  return jax.tree.map(lambda leaf: jnp.repeat(leaf, times, axis=0), tree)
