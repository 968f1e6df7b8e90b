"""Routing by selection: each child chooses one parent or the dummy; the choice is summed out.

The conditional of one layer of capsules given the layer above, in the generative model of Smith et
al. 2020, "Capsule Networks - A Probabilistic Perspective", arXiv 2004.03553, section 2.1. Given the
parents, the children and their choices are independent.

Functions take one example: k parents, m children. The dummy parent is always present and comes
last. Presences are relaxed to (0, 1) and represented by logits, which do not round to 0 or 1.
"""

import jax
import jax.numpy as jnp
from flax import struct
from numpyro import distributions

from scae_jax.math import geometry
from scae_jax.typing import Array, Float, Int, typed


@struct.dataclass
class Capsules:
  """Presences and poses of one layer in one example."""

  presence_logits: Float[Array, " n"]  # logits of the relaxed presences
  poses: Float[Array, "n 2 3"]  # from capsule to image coordinates

  @property
  def presence(self) -> Array:
    """[n], in (0, 1)."""
    return jax.nn.sigmoid(self.presence_logits)


@struct.dataclass
class Moments:
  """Mean and standard deviation of each capsule of one layer."""

  presence_logits: Float[Array, " n"]  # of the probability to be present
  poses: Float[Array, "n 2 3"]  # means
  pose_scales: Float[Array, "n 6"]  # standard deviations of their entries


@struct.dataclass
class Relations:
  """Parameters by which parents predict children; the same for all examples."""

  affinity_logits: Float[Array, "k m"]  # log affinity of parent and child
  dummy_logit: Float[Array, ""]  # log affinity of the dummy to every child
  presence_logits: Float[Array, "n m"]  # of a child given its parent; the dummy is last
  # Added to the identity: a child's pose in its parent's coordinates.
  offsets: Float[Array, "k m 2 3"]
  scales: Float[Array, "k m 6"]  # standard deviations of a child's pose around its prediction
  # Standard deviation, around the identity, of the pose of a child that is off or chose the dummy.
  broad_scale: Float[Array, ""]
  temperature: Float[Array, ""]  # of the relaxed presences


@struct.dataclass
class Selection:
  """Joint density and posterior of the children's choices."""

  joint: Float[Array, "n m"]  # log density of each choice and the child's presence and pose, nats
  # Log density of each child's presence and pose, with the choice summed out, nats.
  log_prob: Float[Array, " m"]
  # Probability of each choice given children and parents; the dummy is last.
  posterior: Float[Array, "n m"]


@typed
def relaxed_bernoulli_log_prob(
  value_logits: Float[Array, "*shape"],
  logits: Float[Array, "*shape"],
  temperature: Float[Array, ""],
) -> Float[Array, "*shape"]:
  """log density of the logit of a relaxed Bernoulli (binary concrete) variable.

  The density of the value itself differs by the log derivative of the sigmoid, which cancels in
  differences of two densities at one value. Maddison et al. 2016, arXiv 1611.00712.
  """
  # The distribution of numpyro's RelaxedBernoulliLogits before the sigmoid.
  shape = value_logits.shape
  inverse = jnp.broadcast_to(1 / temperature, shape)
  return distributions.Logistic(logits / temperature, inverse).log_prob(value_logits)


@typed
def pose_log_prob(
  poses: Float[Array, "*shape 2 3"],
  mean: Float[Array, "*shape 2 3"],
  scale: Float[Array, "*shape 6"],
) -> Float[Array, "*shape"]:
  """log density of poses whose six entries are independent and Gaussian, nats."""
  scale = scale.reshape(mean.shape)
  return jnp.sum(distributions.Normal(mean, scale).log_prob(poses), axis=(-2, -1))


@typed
def choice_log_prob(
  parent_presence_logits: Float[Array, " k"], relations: Relations
) -> Float[Array, "n m"]:
  """log probability of each choice of each child, [k+1, m].

  It is proportional to the parent's presence times affinity; the dummy's presence is 1.
  """
  log_presence = jax.nn.log_sigmoid(parent_presence_logits)
  num_children = relations.affinity_logits.shape[1]
  dummy = jnp.broadcast_to(relations.dummy_logit, (1, num_children))
  logits = jnp.concatenate([log_presence[:, None] + relations.affinity_logits, dummy])
  return jax.nn.log_softmax(logits, axis=0)


def _choices_on_and_off(
  parent_presence_logits: Array, relations: Relations
) -> tuple[Array, Array, Array]:
  """log probability of each choice [k+1, m]: alone, with the child on, and with the child off."""
  choice = choice_log_prob(parent_presence_logits, relations)
  on = jax.nn.log_sigmoid(relations.presence_logits)
  off = jax.nn.log_sigmoid(-relations.presence_logits)
  return choice, choice + on, choice + off


@typed
def predicted_poses(
  parent_poses: Float[Array, "k 2 3"], offsets: Float[Array, "k m 2 3"]
) -> Float[Array, "k m 2 3"]:
  """The pose that each parent predicts for each child: its pose times (identity + offset)."""
  over_children = jax.vmap(geometry.compose, in_axes=(None, 0))
  return jax.vmap(over_children)(parent_poses, offsets + geometry.identity()[None, None])


@typed
def child_log_prob(
  children: Capsules,
  parent_poses: Float[Array, "k 2 3"],
  relations: Relations,
  off_log_prob: Float[Array, " m"] | None = None,
) -> Float[Array, "n m"]:
  """log density of each child's presence and pose given its choice of a parent, [k+1, m].

  A relaxed presence t mixes the pose densities of a child that is on and of one that is off:
  t Normal(parent's pose x (identity + offset), scale) + (1 - t) Normal(identity, broad). For t of 0
  and 1 it is the model of the article; between them it is still a density. `off_log_prob`, nats,
  replaces Normal(identity, broad) as the log density of the pose of a child that is off.
  """
  logits = children.presence_logits
  shape = relations.presence_logits.shape
  presence = relaxed_bernoulli_log_prob(
    jnp.broadcast_to(logits[None], shape), relations.presence_logits, relations.temperature
  )
  votes = predicted_poses(parent_poses, relations.offsets)
  poses = jnp.broadcast_to(children.poses[None], votes.shape)
  narrow = pose_log_prob(poses, votes, relations.scales)
  broad = pose_log_prob(
    children.poses,
    jnp.broadcast_to(geometry.identity()[None], children.poses.shape),
    jnp.broadcast_to(relations.broad_scale, (len(logits), 6)),
  )
  if_on = jnp.concatenate([narrow, broad[None]])
  if_off = broad if off_log_prob is None else off_log_prob
  return presence + jnp.logaddexp(
    jax.nn.log_sigmoid(logits)[None] + if_on, (jax.nn.log_sigmoid(-logits) + if_off)[None]
  )


@typed
def select(
  children: Capsules,
  parents: Capsules,
  relations: Relations,
  off_log_prob: Float[Array, " m"] | None = None,
) -> Selection:
  """Sums out each child's choice, and computes its posterior (equation 9 of the article).

  Arguments are those of `child_log_prob`, with the parents' presences.
  """
  joint = choice_log_prob(parents.presence_logits, relations)
  joint = joint + child_log_prob(children, parents.poses, relations, off_log_prob)
  return Selection(joint, jax.nn.logsumexp(joint, axis=0), jax.nn.softmax(joint, axis=0))


@typed
def tempered_log_prob(
  joint: Float[Array, "n m"], choice_temperature: Float[Array, ""]
) -> Float[Array, " m"]:
  """T logsumexp(joint / T): for each child, the maximum over posteriors q of E_q[joint] + T H(q).

  At T = 1 it is `Selection.log_prob`. Above 1 the maximising q is softer, so no parent wins a child
  for certain before others have come near. Rose 1998, "Deterministic Annealing for Clustering,
  Compression, Classification, Regression, and Related Optimization Problems".
  """
  return choice_temperature * jax.nn.logsumexp(joint / choice_temperature, axis=0)


@typed
def expected_children(selection: Selection, children: Capsules) -> Float[Array, " k"]:
  """Expected number of children of each parent that are on (appendix D), with relaxed presences."""
  return jnp.sum(selection.posterior[:-1] * children.presence[None], axis=1)


@typed
def root_log_prob(
  roots: Capsules,
  presence_logits: Float[Array, " n"],
  scale: Float[Array, ""],
  temperature: Float[Array, ""],
) -> Float[Array, ""]:
  """log density of the topmost layer: presences, and poses Normal(identity, scale), nats."""
  count = len(presence_logits)
  presence = relaxed_bernoulli_log_prob(roots.presence_logits, presence_logits, temperature)
  mean = jnp.broadcast_to(geometry.identity()[None], roots.poses.shape)
  poses = pose_log_prob(roots.poses, mean, jnp.broadcast_to(scale, (count, 6)))
  return jnp.sum(presence) + jnp.sum(poses)


@typed
def child_moments(parents: Moments, relations: Relations) -> Moments:
  """Moments of children from the moments of their parents.

  A child's pose is a mixture of k Gaussians and the broad one. The weight of a parent is the
  probability that the child chose it and is on, at the parents' mean presences. Mean and variance
  are those of the mixture.
  """
  _, on, off = _choices_on_and_off(parents.presence_logits, relations)
  logits = jax.nn.logsumexp(on, axis=0) - jax.nn.logsumexp(off, axis=0)
  means = predicted_poses(parents.poses, relations.offsets)
  # A prediction is linear in the parent's pose, whose entries are independent: variances add.
  inner = relations.offsets + geometry.identity()[None, None]
  bottom = jnp.broadcast_to(jnp.array([0.0, 0.0, 1.0]), (*inner.shape[:2], 1, 3))
  inner = jnp.concatenate([inner, bottom], axis=2)
  parent_variances = jnp.square(parents.pose_scales).reshape(-1, 2, 3)
  variances = jnp.einsum("kil,kmlj->kmij", parent_variances, jnp.square(inner))
  variances += jnp.square(relations.scales).reshape(variances.shape)

  by_parent = jnp.exp(on[:-1])[:, :, None, None]
  broad = 1.0 - jnp.sum(by_parent, axis=0)
  identity = geometry.identity()[None]
  mean = jnp.sum(by_parent * means, axis=0) + broad * identity
  spread = by_parent * (variances + jnp.square(means - mean[None]))
  variance = jnp.sum(spread, axis=0)
  variance += broad * (jnp.square(relations.broad_scale) + jnp.square(identity - mean))
  return Moments(logits, mean, jnp.sqrt(variance).reshape(-1, 6))


# Logit of presences that are sampled as 0 or 1; the difference to these is 1e-13.
CERTAIN = 30.0


@typed
def sample_children(key: Array, parents: Capsules, relations: Relations) -> tuple[Capsules, Array]:
  """Samples a layer, with presences of 0 or 1, and the choices int32 [m], k for the dummy."""
  choice_key, presence_key, pose_key = jax.random.split(key, 3)
  choice = jax.random.categorical(
    choice_key, choice_log_prob(parents.presence_logits, relations), 0
  )
  child = jnp.arange(len(choice))
  logits = relations.presence_logits[choice, child]
  on = distributions.Bernoulli(logits=logits).sample(presence_key) == 1
  num_parents = len(parents.poses)
  row = jnp.minimum(choice, num_parents - 1)
  attached = on & (choice < num_parents)
  predicted = chosen_poses(row, parents.poses, relations)
  mean = jnp.where(attached[:, None, None], predicted, geometry.identity()[None])
  scale = jnp.where(attached[:, None], relations.scales[row, child], relations.broad_scale)
  poses = distributions.Normal(mean, scale.reshape(-1, 2, 3)).sample(pose_key)
  return Capsules(jnp.where(on, CERTAIN, -CERTAIN), poses), choice


@typed
def mean_children(parents: Capsules, relations: Relations) -> Capsules:
  """The mean of a layer given the layer above.

  A child's relaxed presence is the probability that it chose a parent, not the dummy, and is on.
  Its pose is predicted by the parent for which choice and being on are most probable. With a single
  parent, the drawing of these children is the mean over choices and presences.
  """
  choice, on, off = _choices_on_and_off(parents.presence_logits, relations)
  log_on = jax.nn.logsumexp(on[:-1], axis=0)
  log_off = jax.nn.logsumexp(jnp.concatenate([off[:-1], choice[-1:]]), axis=0)
  poses = chosen_poses(jnp.argmax(on[:-1], axis=0), parents.poses, relations)
  return Capsules(log_on - log_off, poses)


@typed
def chosen_poses(
  choice: Int[Array, " m"], parent_poses: Float[Array, "k 2 3"], relations: Relations
) -> Float[Array, "m 2 3"]:
  """The poses that the chosen parents, numbers below k, predict for their children."""
  votes = predicted_poses(parent_poses, relations.offsets)
  return votes[choice, jnp.arange(len(choice))]


@typed
def sample_roots(
  key: Array, presence_logits: Float[Array, " n"], scale: Float[Array, ""]
) -> Capsules:
  """Samples the topmost layer, with presences of 0 or 1."""
  presence_key, pose_key = jax.random.split(key)
  on = distributions.Bernoulli(logits=presence_logits).sample(presence_key) == 1
  mean = jnp.broadcast_to(geometry.identity()[None], (len(on), 2, 3))
  poses = distributions.Normal(mean, scale).sample(pose_key)
  return Capsules(jnp.where(on, CERTAIN, -CERTAIN), poses)
