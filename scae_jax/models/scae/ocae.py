"""Object capsule autoencoder (OCAE): parts to object capsules, and their votes for the parts.

Kosiorek et al. 2019, section 2.3 and appendix A.
"""

import dataclasses
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from scae_jax.bounds import MAX_LAYERS, MAX_WIDTH, Bound, between, dividing, one_of
from scae_jax.layers.mlp import MLP, CapsuleMLP
from scae_jax.layers.set_transformer import MASKS, SetTransformer
from scae_jax.math import geometry, sparsity
from scae_jax.models.scae.pcae import MAX_NOISE, POSE_SIZE, noisy_sigmoid
from scae_jax.models.system import LossOptions
from scae_jax.typing import Array, Float, typed

MIN_VOTE_SCALE = 0.01
ENCODERS = ("set_transformer", "mlp")
FRAMES = ("image", "parts")
# Bound of the uniform initial values of static object-part relations: each object starts with its
# own arrangement of parts, none extreme. The release's Glorot bound for [1, 32, 40, 6] is 0.064.
STATIC_INIT = 0.064
SPARSITIES = {"l2": sparsity.l2, "entropy": sparsity.entropy, "kl": sparsity.kl}
OF_L2 = Bound(
  "0 where {section}.prior is {prior!r}; only 'l2' uses this number",
  lambda value, fields: value == 0 or fields["prior"] == "l2",
)


@dataclasses.dataclass(frozen=True)
class CapsuleLoss(LossOptions):
  """The config's loss section of systems with object capsules."""

  # Sparsity of the presences, a key of `SPARSITIES`.
  prior: Annotated[str, one_of(*SPARSITIES)]
  # Number of capsules that should be present in an example, for l2; 0 for K / C.
  prior_within_constant: Annotated[float, between(0, MAX_WIDTH), OF_L2]
  # Sparsity of the posterior mass. Masses are shares of the parts with a sum of at most 1, so l2
  # does not apply.
  posterior: Annotated[str, one_of("entropy", "kl")]
  unbiased_between: bool  # correct the between terms for the variance of a batch

  def sparsity(
    self,
    presence: Float[Array, "b k"],
    mass: Float[Array, "b k"],
    num_classes: int,
    views: int = 1,
  ) -> dict[str, Array]:
    """Sparsity terms of the presences (prior) and of the posterior mass of object capsules.

    The terms are unweighted: `prior_within`, `prior_between`, `posterior_within` and
    `posterior_between`. `num_classes` is C of the l2 sparsity; `views` is the number of adjacent
    examples that are of one image.
    """
    shared: dict[str, Any] = {"unbiased": self.unbiased_between, "views": views}
    options: dict[str, Any] = {}
    if self.prior == "l2":
      constant = self.prior_within_constant or None
      options = {"num_classes": num_classes, "within_constant": constant}
    terms = {
      "prior": SPARSITIES[self.prior](presence, **shared, **options),
      "posterior": SPARSITIES[self.posterior](mass, **shared),
    }
    return {
      f"{kind}_{name}": term
      for kind, within_and_between in terms.items()
      for name, term in within_and_between._asdict().items()
    }


@struct.dataclass
class Votes:
  """Votes of object capsules for parts or points; gradients flow through every field."""

  votes: Float[Array, "b k m n"]  # predicted part poses (n = 6) or positions of points (n = 2)
  # Their standard deviations; in units of the frame, see `ObjectEncoder.frame`.
  vote_scale: Float[Array, "b k m"]
  vote_presence: Float[Array, "b k m"]  # probability that object k has part m
  presence: Float[Array, "b k"]  # the largest vote presence of each object
  # Logits of the capsules' presences, before noise and without the vote presences.
  presence_logits: Float[Array, "b k"]
  # Raw dynamic object-part relations (deformations); zero if there are none.
  dynamic: Float[Array, "b k m 6"]


def features(output: Any) -> dict[str, Array]:
  """Features that evaluation clusters: presences (`prior`) and mass (`posterior`), [b, k] each."""
  return {"prior": output.objects.presence, "posterior": output.mass}


@struct.dataclass
class ObjectCapsules(Votes):
  """Object capsules: poses, object-part poses and votes; gradients flow through every field."""

  poses: Float[Array, "b k 2 3"]  # object-viewer transforms
  object_part: Float[Array, "b k m 2 3"]  # poses of parts in object coordinates


def votes_from(
  module: nn.Module,
  logits: Float[Array, "b k 1"],
  vote_logits: Float[Array, "b k m"],
  raw_scale: Float[Array, "b k m"] | None,
  **noise: Any,
) -> dict[str, Array]:
  """Presences and standard deviations of `Votes`.

  `logits` and `vote_logits` are presence logits of capsules and votes, before noise. Standard
  deviations are softplus(raw_scale + 0.5) + 0.01, or 1 without `raw_scale`. `noise` has the options
  of `noisy_sigmoid`.
  """
  capsule_presence = noisy_sigmoid(module, logits, use=1, **noise)
  vote_presence = capsule_presence * noisy_sigmoid(module, vote_logits, use=2, **noise)
  vote_scale = jnp.ones(vote_logits.shape)
  if raw_scale is not None:
    vote_scale = jax.nn.softplus(raw_scale + 0.5) + MIN_VOTE_SCALE
  return {
    "presence": jnp.max(vote_presence, axis=-1),
    "presence_logits": logits[..., 0],
    "vote_presence": vote_presence,
    "vote_scale": vote_scale,
  }


class ObjectEncoder(nn.Module):
  """Part capsules to one vector for each object capsule."""

  num_objects: int  # k
  # `set_transformer`, or the ablation `mlp`: one MLP on all parts, flattened, which ignores
  # presences, heads, inducing points, mask and epsilon.
  kind: Annotated[str, one_of(*ENCODERS)]
  output_features: Annotated[int, between(1, MAX_WIDTH)]  # width of each output
  # Self-attention blocks (hidden layers of the MLP).
  num_layers: Annotated[int, between(0, MAX_LAYERS)]
  num_heads: Annotated[int, between(1, MAX_WIDTH), dividing("features", "output_features")]
  # Width of the blocks (an object's share of the MLP's hidden width).
  features: Annotated[int, between(1, MAX_WIDTH)]
  # Inducing points of each block; 0 is full self-attention.
  num_inducing: Annotated[int, between(0, MAX_WIDTH)]
  mask: Annotated[str, one_of(*MASKS)]  # `log_presence`, `hard` or `none`
  # Of the set transformer, such as `bfloat16`; None: that of the parts. The MLP always has the
  # latter.
  compute_dtype: str | None
  norm_epsilon: Annotated[float, between(1e-12, 1)] = 1e-6  # added to the variance in layer norm
  # What the poses of parts (places of points) are relative to, for the encoder and for the votes'
  # likelihood: the `image`, as published, or the frame of the present `parts`, see
  # `geometry.frame_of`. With `parts`, objects follow a translation or scaling of all parts exactly;
  # it is meant for images of one object. Without stopped gradients, parts could raise their
  # likelihood by enlarging the frame.
  frame: Annotated[str, one_of(*FRAMES)] = "image"

  @nn.compact
  @typed
  def __call__(
    self, parts: Float[Array, "b m d"], presence: Float[Array, "b m"]
  ) -> Float[Array, "b k e"]:
    if self.kind == "set_transformer":
      set_transformer = SetTransformer(
        num_outputs=self.num_objects,
        output_features=self.output_features,
        num_layers=self.num_layers,
        num_heads=self.num_heads,
        features=self.features,
        num_inducing=self.num_inducing,
        mask=self.mask,
        compute_dtype=self.compute_dtype,
        norm_epsilon=self.norm_epsilon,
        name="set_transformer",
      )
      return set_transformer(parts, presence)
    hidden = (self.num_objects * self.features,) * self.num_layers
    widths = (*hidden, self.num_objects * self.output_features)
    x = MLP(widths, name="mlp")(parts.reshape(parts.shape[0], -1))
    return x.reshape(-1, self.num_objects, self.output_features)


class ObjectDecoder(nn.Module):
  """One vector for each object capsule to votes for the poses of all parts."""

  num_parts: int  # m
  hidden: Annotated[int, between(1, MAX_WIDTH)]  # width of the hidden layers of each capsule's MLPs
  capsule_features: Annotated[int, between(1, MAX_WIDTH)]  # width between the two MLPs
  # Width of the uniform noise on capsule and vote presence logits in training.
  presence_noise: Annotated[float, between(0, MAX_NOISE)]
  # Keep this noise in evaluation; see `PartEncoder`.
  noise_in_evaluation: bool
  similarity: bool  # poses are similarity transforms instead of affine ones
  deformations: bool  # object-part relations have a dynamic part, which depends on the example
  learn_vote_scale: bool  # standard deviations are predicted; otherwise they are 1

  @nn.compact
  @typed
  def __call__(self, x: Float[Array, "b k e"], *, train: bool) -> ObjectCapsules:
    batch, num_objects, _ = x.shape
    m = self.num_parts
    x = CapsuleMLP((self.hidden, self.capsule_features), name="features")(x)
    x = jnp.concatenate([x, jnp.ones((batch, num_objects, 1))], axis=-1)

    # As in the release, a constant 1 is appended and the last layer has no bias. All outputs but
    # the deformations then get a bias for each capsule.
    sizes = {"viewer": POSE_SIZE, "presence": 1, "vote_presence": m}
    if self.learn_vote_scale:
      sizes["vote_scale"] = m
    if self.deformations:
      sizes["dynamic"] = m * POSE_SIZE
    x = CapsuleMLP((self.hidden, sum(sizes.values())), last_bias=False, name="outputs")(x)
    raw, start, zeros = {}, 0, nn.initializers.zeros_init()
    for name, size in sizes.items():
      raw[name] = x[..., start : start + size]
      start += size
      if name != "dynamic":
        bias = self.param(f"{name}_bias", zeros, (num_objects, size), jnp.float32)
        raw[name] = raw[name] + bias[None]

    def static_init(key: Array, shape: tuple[int, ...]) -> Array:
      return jax.random.uniform(key, shape, jnp.float32, minval=-STATIC_INIT, maxval=STATIC_INIT)

    static = self.param("object_part", static_init, (num_objects, m, POSE_SIZE))
    dynamic = jnp.zeros((batch, num_objects, m, POSE_SIZE))
    if self.deformations:
      dynamic = raw["dynamic"].reshape(dynamic.shape)

    def matrix(numbers: Array) -> Array:
      return geometry.pose_matrix(numbers, similarity=self.similarity)

    def vote(viewer: Array, numbers: Array) -> tuple[Array, Array]:
      object_part = matrix(numbers)
      return object_part, geometry.compose(viewer, object_part).reshape(POSE_SIZE)

    poses = jax.vmap(jax.vmap(matrix))(raw["viewer"])
    over_parts = jax.vmap(vote, in_axes=(None, 0))
    object_part, votes = jax.vmap(jax.vmap(over_parts))(poses, static[None] + dynamic)

    noise = {"scale": self.presence_noise, "in_evaluation": self.noise_in_evaluation}
    logits = (raw["presence"], raw["vote_presence"], raw.get("vote_scale"))
    presences_and_scales = votes_from(self, *logits, train=train, **noise)
    return ObjectCapsules(
      poses=poses, object_part=object_part, votes=votes, dynamic=dynamic, **presences_and_scales
    )
