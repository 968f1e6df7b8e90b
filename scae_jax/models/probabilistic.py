"""Probabilistic capsules: one generative model, one bound, no auxiliary loss.

Smith et al. 2020, "Capsule Networks - A Probabilistic Perspective", arXiv 2004.03553. The prior and
the picture are in `generative_capsules.py`, the approximate posterior in `capsule_inference.py`.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from scae_jax.models import generative_pictures
from scae_jax.models.capsule_inference import (
  ObjectInference,
  PartInference,
  Posterior,
  constrain,
  unconstrain,
)
from scae_jax.models.generative_capsules import GenerativeCapsules
from scae_jax.models.system import (
  FreeForm,
  ImageSpec,
  Spec,
  System,
  build_module,
  check_keys,
  each_whole,
  one_of,
  positive,
  whole,
)
from scae_jax.models.turned_pictures import part_identity
from scae_jax.routing import selection
from scae_jax.routing.selection import Capsules, Moments, Selection
from scae_jax.schedules import line_through
from scae_jax.typing import Array, Batch, Float

POSES = ("delta", "gaussian")


@struct.dataclass
class ProbabilisticOutput:
  """Everything that one pass computes.

  Attributes:
    terms: {name: [b]}, the terms of the negative bound, nats; see `negative_bound`.
    posteriors: what is believed of every layer, from the parts up, read without noise: the
      centre of each layer's belief is what the next one is inferred from.
    picture: [b, h, w, c], drawn from the centre of the parts' belief.
    children: [b, k], expected number of children of the top capsules that are on, appendix D.
    joints: of every layer but the topmost [b, s, k+1, m], `Selection.joint` of each sample that
      `terms` are estimated from.
  """

  terms: dict[str, Float[Array, "b"]]
  posteriors: list[Posterior]
  picture: Float[Array, "b h w c"]
  children: Float[Array, "b k"]
  joints: list[Float[Array, "b s n m"]]


class ProbabilisticCapsules(nn.Module):
  """The generative model and the networks that infer its latent variables.

  Attributes:
    generative: the prior and the picture.
    part_inference: image to parts.
    object_inference: each layer to the one above, from the parts up.
    num_samples: of the Monte Carlo estimate of the bound.
  """

  generative: GenerativeCapsules
  part_inference: PartInference
  object_inference: Sequence[ObjectInference]
  num_samples: int

  def setup(self):
    whole("config.model.num_samples", self.num_samples, 1)
    # Posteriors read it before the first call of the generative model, at which that is set up.
    positive("config.model.generative.temperature", self.generative.temperature)

  def __call__(self, batch: Batch, *, train: bool) -> ProbabilisticOutput:
    """One pass over a batch; see `ProbabilisticOutput`.

    In training the samples' key comes from the `noise` stream; in evaluation it is always the same,
    so that what a held-out bound says can be said again.
    """
    image = batch["image"]
    key = self.make_rng("noise") if train else jax.random.key(0)
    posteriors, capsules = self.infer(image, None)
    choices = self.generative.select(capsules)
    expected = jax.vmap(selection.expected_children)
    terms, joints = self.estimate(image, key)
    return ProbabilisticOutput(
      terms=terms,
      posteriors=posteriors,
      picture=self.generative.draw(capsules[0], image.shape[1]),
      children=expected(choices[-1], capsules[-2]),
      joints=joints,
    )

  def infer(self, image: Array, key: Array | None) -> tuple[list[Posterior], list[Capsules]]:
    """Posteriors of every layer, from the parts up, and a sample of each.

    Args:
      image: [b, h, w, c].
      key: of the samples, `num_samples` an image, all of an image side by side; None for the centre
        of every posterior, one an image.
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
    temperature = self.generative.temperature
    if key is None:
      return posterior.centre(temperature)
    return posterior.sample(jax.random.fold_in(key, layer), temperature)

  def estimate(self, image: Array, key: Array) -> tuple[dict[str, Array], list[Array]]:
    """`negative_bound` of images [b, h, w, c] under the networks' posteriors, [b] each; and
    `ProbabilisticOutput.joints`."""
    posteriors, layers = self.infer(image, key)
    choices = self.generative.select(layers)
    joints = [choice.joint.reshape(len(image), -1, *choice.joint.shape[1:]) for choice in choices]
    return self._mean_terms(image, posteriors, layers, choices), joints

  def free_estimate(
    self, image: Array, posteriors: Sequence[Posterior], key: Array
  ) -> dict[str, Array]:
    """`negative_bound` of images under posteriors of their own, from no network, [b] each.

    Each layer is independent of the others.
    """
    posteriors = repeat(list(posteriors), self.num_samples)
    layers = [self._draw(posterior, key, i) for i, posterior in enumerate(posteriors)]
    return self._mean_terms(image, posteriors, layers, self.generative.select(layers))

  def prior(self, batch_size: int) -> list[Posterior]:
    """The prior's own moments as posteriors of every layer, the same for all examples."""
    gaussian = self.part_inference.gaussian

    def belief(moments: Moments) -> Posterior:
      scales = moments.pose_scales if gaussian else None
      return Posterior(moments.presence_logits, moments.poses, scales)

    alone = [belief(moments) for moments in self.generative.prior_moments()]
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (batch_size, *leaf.shape)), alone)

  def picture(self, parts: Posterior, canvas: int) -> Float[Array, "b h w c"]:
    """What the centre of a belief about the parts paints; see `GenerativeCapsules.draw`."""
    return self.generative.draw(parts.centre(self.generative.temperature), canvas)

  def _mean_terms(
    self,
    image: Array,
    posteriors: Sequence[Posterior],
    layers: Sequence[Capsules],
    choices: Sequence[Selection],
  ) -> dict[str, Array]:
    terms = self.negative_bound(repeat(image, self.num_samples), posteriors, layers, choices)
    return {
      name: jnp.mean(value.reshape(len(image), self.num_samples), axis=1)
      for name, value in terms.items()
    }

  def negative_bound(
    self,
    image: Array,
    posteriors: Sequence[Posterior],
    layers: Sequence[Capsules],
    choices: Sequence[Selection],
  ) -> dict[str, Float[Array, "b"]]:
    """The terms of minus the evidence lower bound for one sample an image; their sum is to be
    minimised.

    Returns:
      nats, [b] each: `pixels`, -log density of the image; `capsules_<i>`, -log density of layer i
      given the one above, or of the topmost, choices of parents summed out; `presences_<i>`, log
      density of its presences under the posterior; `poses_<i>`, of its poses, where posteriors have
      deviations. With posteriors in one point for the poses (delta) it is a bound but for a
      constant that is infinite; poses are then their likeliest.
    """
    temperature = self.generative.temperature
    picture = self.generative.draw(layers[0], image.shape[1])
    terms = {"pixels": -self.generative.image_log_prob(picture, image)}
    below = [jnp.sum(choice.log_prob, axis=-1) for choice in choices]
    for i, log_prob in enumerate([*below, self.generative.top_log_prob(layers[-1])], start=1):
      terms[f"capsules_{i}"] = -log_prob
    for i, (posterior, capsules) in enumerate(zip(posteriors, layers, strict=True), start=1):
      terms[f"presences_{i}"] = posterior.presence_log_prob(capsules, temperature)
      if posterior.pose_scales is not None:
        terms[f"poses_{i}"] = posterior.pose_log_prob(capsules)
    return terms

  def draw(self, batch: Batch) -> dict[str, dict[str, Array]]:
    """Arrays of the figures: what the prior, objects and parts draw, and whose the parts are."""
    image, canvas = batch["image"], batch["image"].shape[1]
    posteriors, capsules = self.infer(image, None)
    templates, alphas = self.generative.templates()
    presence = jax.nn.sigmoid(posteriors[1].presence_logits)
    return {
      "templates": {"templates": templates, "alphas": alphas},
      "prior_samples": generative_pictures.prior_samples(self.generative, canvas),
      "object_samples": generative_pictures.object_samples(self.generative, canvas),
      **generative_pictures.reconstructions(self.generative, image, capsules, presence),
    }

  def part_mixing(self, image: Array) -> Array:
    """`generative_pictures.part_mixing` of what parts draw of images [b, h, w, c]: [b, m, h, w]."""
    parts = self.part_inference(image).centre(self.generative.temperature)
    return generative_pictures.part_mixing(self.generative, parts, image.shape[1])


def repeat(tree: Any, times: int) -> Any:
  """Every example of arrays [b, ...] so many times, side by side."""
  return jax.tree.map(lambda leaf: jnp.repeat(leaf, times, axis=0), tree)


def term_names(num_layers: int, *, gaussian: bool) -> list[str]:
  """Names of the terms of the bound, layer by layer from the parts up, as they are sampled.

  So the first that is not finite is where it began: `presences_<i>` and `poses_<i>` need the layers
  up to i alone, `pixels` the first, `capsules_<i>` those up to i + 1.
  """
  beliefs = ("presences", "poses") if gaussian else ("presences",)
  names = []
  for i in range(1, num_layers + 1):
    names += [f"{kind}_{i}" for kind in beliefs]
    names.append("pixels" if i == 1 else f"capsules_{i - 1}")
  return [*names, f"capsules_{num_layers}"]


def loss_terms(
  output: ProbabilisticOutput,
  batch: Batch,
  step: Array | int | None,
  *,
  choice_temperature: Callable[[Array | int], Array] | None = None,
) -> dict[str, Array]:
  """The terms of the negative bound, each a mean over the batch, nats.

  Args:
    output: of the module.
    batch: the same batch.
    step: of training; None for the bound as it is.
    choice_temperature: of a step, at which `capsules_<i>` of all layers but the topmost are
      tempered, see `selection.tempered_log_prob`; None for 1, the bound as it is.
  """
  terms = {name: jnp.mean(value) for name, value in output.terms.items()}
  if choice_temperature is None or step is None:
    return terms
  temper = functools.partial(
    selection.tempered_log_prob, choice_temperature=choice_temperature(step)
  )
  for i, joint in enumerate(output.joints, start=1):
    log_prob = jnp.sum(jax.vmap(jax.vmap(temper))(joint), axis=-1)
    terms[f"capsules_{i}"] = -jnp.mean(log_prob)
  return terms


def measures(output: ProbabilisticOutput, batch: Batch) -> dict[str, Array]:
  """Numbers an example, [b]: squared error of the picture, the estimated bound in nats, and how
  many parts and top objects are there."""
  first, last = output.posteriors[0], output.posteriors[-1]
  return {
    "squared_error": jnp.sum(jnp.square(output.picture - batch["image"]), axis=(1, 2, 3)),
    "bound": -sum(output.terms.values(), start=jnp.zeros(())),
    "parts_present": jnp.sum(jax.nn.sigmoid(first.presence_logits), axis=1),
    "objects_present": jnp.sum(jax.nn.sigmoid(last.presence_logits), axis=1),
  }


def features(output: ProbabilisticOutput) -> dict[str, Array]:
  """What evaluation clusters, [b, k] each: `presences` of the top capsules, and their `children`,
  the expected number of them."""
  presences = jax.nn.sigmoid(output.posteriors[-1].presence_logits)
  return {"children": output.children, "presences": presences}


def readings(output: ProbabilisticOutput) -> dict[str, Array]:
  """What a linear classifier reads: `presence_logits` [b, k] of the top capsules, and
  `presences_and_poses` [b, 7 k], the logits and the six numbers of each pose."""
  return posterior_readings(output.posteriors[-1])


def posterior_readings(top: Posterior) -> dict[str, Array]:
  """`readings` of a posterior of the topmost layer."""
  poses = top.poses.reshape(len(top.poses), -1)
  return {
    "presence_logits": top.presence_logits,
    "presences_and_poses": jnp.concatenate([top.presence_logits, poses], axis=1),
  }


def poses(output: ProbabilisticOutput) -> dict[str, tuple[Array, Array]]:
  """Poses [b, n, 2, 3] and presences [b, n] of `parts` and of the top `objects`."""
  return {
    name: (posterior.poses, jax.nn.sigmoid(posterior.presence_logits))
    for name, posterior in (("parts", output.posteriors[0]), ("objects", output.posteriors[-1]))
  }


def make_free_form(module: ProbabilisticCapsules) -> FreeForm:
  """Free-form inference, section 2.4 of the article: posteriors of all layers, from the parts up.

  Layers of such a posterior are independent of each other. The encoder's is had from the centres of
  its own beliefs, and its bound is therefore not that of `ProbabilisticOutput.terms`, in which
  objects are inferred from sampled parts.
  """

  def encode(variables: Any, batch: Batch) -> list[Posterior]:
    return nn.apply(ProbabilisticCapsules.infer, module)(variables, batch["image"], None)[0]

  def prior(variables: Any, batch: Batch) -> list[Posterior]:
    return nn.apply(ProbabilisticCapsules.prior, module)(variables, len(batch["image"]))

  def bound(variables: Any, posterior: list[Posterior], batch: Batch, key: Array) -> Array:
    estimate = nn.apply(ProbabilisticCapsules.free_estimate, module)
    return -sum(estimate(variables, batch["image"], posterior, key).values(), start=jnp.zeros(()))

  def draw(variables: Any, posterior: list[Posterior], batch: Batch) -> Array:
    canvas = batch["image"].shape[1]
    return nn.apply(ProbabilisticCapsules.picture, module)(variables, posterior[0], canvas)

  return FreeForm(
    encode=encode,
    prior=prior,
    unconstrain=lambda posterior: [unconstrain(layer) for layer in posterior],
    constrain=lambda free: [constrain(layer) for layer in free],
    bound=bound,
    readings=lambda posterior: posterior_readings(posterior[-1]),
    draw=draw,
  )


def make_system(model: Mapping[str, Any], loss: Mapping[str, Any], data: Spec) -> System:
  """Probabilistic capsules from config sections.

  Args:
    model: `capsules`, the number of each layer from the parts up, `poses`, one of `POSES`,
      `num_samples`, and the sections `generative`, `part_inference` and `object_inference`, the
      last for every layer above the parts.
    loss: `schedule`, with the one key `latents`: points (step, factor) of all terms but `pixels`,
      whose factor is 1 of held-out examples; and `choice_temperature`, points (step, temperature)
      of training, see `loss_terms`. The bound has no other weights.
    data: canvas and channels.

  Raises:
    ValueError: a key or value that does not fit, or data that are not images.
  """
  if not isinstance(data, ImageSpec):
    raise ValueError(
      "config.system 'probabilistic' takes images, and config.data.name names scenes of points; the"
      " system for those is 'ccae'."
    )
  check_keys("loss", loss, ("schedule", "choice_temperature"))
  check_keys("loss.schedule", loss["schedule"], ("latents",))
  choice_temperature = line_through(
    loss["choice_temperature"],
    name="config.loss.choice_temperature",
    kind="temperature",
    positive=True,
  )
  model = dict(model)
  capsules, kind = model.pop("capsules", None), model.pop("poses", None)
  capsules = tuple(capsules) if isinstance(capsules, list) else capsules
  each_whole("config.model.capsules", capsules, 1)
  if len(capsules) < 2:
    raise ValueError(f"config.model.capsules is {capsules!r}; expected two layers or more")
  one_of("config.model.poses", kind, POSES)
  gaussian = kind == "gaussian"
  generative = build_module(
    GenerativeCapsules,
    "model.generative",
    model.pop("generative", {}),
    capsules=capsules,
    channels=data.channels,
  )
  part_inference = build_module(
    PartInference,
    "model.part_inference",
    model.pop("part_inference", {}),
    num_parts=capsules[0],
    gaussian=gaussian,
  )
  section = model.pop("object_inference", {})
  object_inference = tuple(
    build_module(
      ObjectInference, "model.object_inference", section, num_capsules=count, gaussian=gaussian
    )
    for count in capsules[1:]
  )
  module = build_module(
    ProbabilisticCapsules,
    "model",
    model,
    generative=generative,
    part_inference=part_inference,
    object_inference=object_inference,
  )
  names = term_names(len(capsules), gaussian=gaussian)

  def pictures(variables: Any, batch: Batch) -> dict[str, dict[str, Array]]:
    mixing_of = functools.partial(nn.apply(ProbabilisticCapsules.part_mixing, module), variables)
    drawn = nn.apply(ProbabilisticCapsules.draw, module)(variables, batch)
    return {**drawn, "part_identity": part_identity(batch["image"], mixing_of)}

  return System(
    module=module,
    loss_terms=functools.partial(loss_terms, choice_temperature=choice_temperature),
    loss_weights=dict.fromkeys(names, 1.0),
    loss_schedule={name: loss["schedule"]["latents"] for name in names if name != "pixels"},
    measures=measures,
    features=features,
    pictures=pictures,
    poses=poses,
    readings=readings,
    free_form=make_free_form(module),
  )
