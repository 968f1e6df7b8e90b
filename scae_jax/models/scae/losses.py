"""Loss terms and metrics of the SCAE.

Kosiorek et al. 2019, sections 2.2 to 2.4.
"""

import jax
import jax.numpy as jnp
import optax

from scae_jax.math import mixtures
from scae_jax.math.sparsity import view_divergence
from scae_jax.models.scae.ocae import CapsuleLoss
from scae_jax.models.scae.scae import SCAEOutput
from scae_jax.typing import Array, Batch


def loss_terms(
  output: SCAEOutput,
  batch: Batch,
  step: Array | int | None,
  *,
  loss: CapsuleLoss,
  num_classes: int,
  two_views: bool,
) -> dict[str, Array]:
  """Terms to minimise, each unweighted and a mean over the batch.

  `image`: -log-likelihood of the image, nats. `parts`: -log-likelihood of the part poses, nats.
  `prior_within`, `prior_between`, `posterior_within`, `posterior_between`: sparsity of presences
  and of posterior mass. `dynamic`: half the summed squares of the deformations. `prior_probe`,
  `posterior_probe`: cross-entropies of the linear probes. `views`, in training with `two_views`:
  `view_divergence` of the mass.
  """
  batch_size = batch["image"].shape[0]
  views = 2 if two_views and step is not None else 1
  cross_entropy = optax.softmax_cross_entropy_with_integer_labels
  terms = {
    "image": -output.reconstruction.log_prob,
    "parts": -jnp.mean(output.part_log_prob),
    **loss.sparsity(output.objects.presence, output.mass, num_classes, views),
    "dynamic": jnp.sum(jnp.square(output.objects.dynamic)) / 2 / batch_size,
    "prior_probe": jnp.mean(cross_entropy(output.prior_logits, batch["label"])),
    "posterior_probe": jnp.mean(cross_entropy(output.posterior_logits, batch["label"])),
  }
  if views == 2:
    terms["views"] = view_divergence(output.mass)
  return terms


def metrics(output: SCAEOutput, batch: Batch) -> dict[str, Array]:
  """For each example, [b]: squared error of the reconstruction, and accuracy of each probe."""
  image = jax.vmap(mixtures.mode)(output.reconstruction.mixture)
  error = jnp.sum(jnp.square(image - output.reconstruction.target), axis=(1, 2, 3))
  probes = {"prior": output.prior_logits, "posterior": output.posterior_logits}
  correct = {name: jnp.argmax(x, axis=-1) == batch["label"] for name, x in probes.items()}
  accuracies = {f"{name}_accuracy": x.astype(jnp.float32) for name, x in correct.items()}
  return {"squared_error": error, **accuracies}
