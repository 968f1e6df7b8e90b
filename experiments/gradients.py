"""Which loss terms of an SCAE pull towards the labels, which it is not trained on.

    python -m experiments.gradients runs/mnist results/mnist --split=train --max_examples=5120

Each loss term, and the cross-entropy of each linear probe (held fixed), is differentiated by the
parameters of the object capsules and of the part encoder. The report has the norm of the mean
gradient over batches, the noise of one batch around it, and its cosine with the gradient of the
cross-entropy, which is positive if a step down the term is a step towards the labels. Terms have
the config's weights, no schedule, and the batch size of training. "Between" terms are given biased,
unbiased, and as the difference of the two (`scae_jax/math/sparsity.py`).

Writes `gradients-<workdir>.json` and `.md` into the folder, for each seed.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax.flatten_util import ravel_pytree

from experiments.findings import Findings, ImageRun, measure_images
from scae_jax import bounds
from scae_jax.data.batches import evaluation_batch
from scae_jax.errors import RunError
from scae_jax.evaluation.tables import table
from scae_jax.models.scae.ocae import CapsuleLoss
from scae_jax.models.scae.scae import SCAE
from scae_jax.training.run import Run
from scae_jax.typing import Array, Batch

GROUPS = {"objects": ("object_encoder", "object_decoder"), "parts": ("part_encoder",)}
BETWEEN = ("prior_between", "posterior_between")
PROBES = {"prior": "prior_probe", "posterior": "posterior_probe"}  # of presences and of mass


def terms_of(run: Run) -> Callable[[Any, Batch, Array], dict[str, Array]]:
  """A function of parameters, a batch and a key; RunError unless the run is of an SCAE.

  The function returns the weighted loss terms, the cross-entropies `towards` the labels and, for
  each "between" term, its unbiased value and the excess of the biased one over it.
  """
  module, system = run.system.module, run.system
  if not isinstance(module, SCAE):
    raise RunError("the probes of an SCAE are needed; name a run of one.")
  options = bounds.read(CapsuleLoss, "loss", run.settings.loss)
  losses = [dataclasses.replace(options, unbiased_between=x) for x in (False, True)]
  cross_entropy = optax.softmax_cross_entropy_with_integer_labels

  def terms(params: Any, batch: Batch, key: Array) -> dict[str, Array]:
    output: Any = module.apply({"params": params}, batch, train=True, rngs={"noise": key})
    loss_terms = dict(system.loss_terms(output, batch, None))
    activations = (output.objects.presence, output.mass, module.num_classes)
    biased, unbiased = (loss.sparsity(*activations) for loss in losses)
    for name in BETWEEN:
      loss_terms |= {name: biased[name], f"{name}, unbiased": unbiased[name]}
      loss_terms[f"{name}, excess"] = biased[name] - unbiased[name]
    for name, activation in system.encoding(output).features.items():
      probe = jax.lax.stop_gradient(params[PROBES[name]])
      logits: Any = nn.Dense(module.num_classes).apply({"params": probe}, activation)
      del loss_terms[PROBES[name]]
      loss_terms[f"towards {name}"] = jnp.mean(cross_entropy(logits, batch["label"]))
    # A term without a weight is off.
    weights = {name: system.loss_weights.get(name.partition(",")[0], 0.0) for name in loss_terms}
    return {
      name: value if name.startswith("towards ") else weights[name] * value
      for name, value in loss_terms.items()
    }

  return terms


def statistics(gradients: Mapping[str, np.ndarray]) -> dict[str, dict[str, float]]:
  """Statistics of gradients [n, p] of n batches, by term.

  They are the norm of the mean, the noise, and the cosine with each term called `towards ...`.
  """
  means = {term: values.mean(axis=0) for term, values in gradients.items()}
  norms = {term: float(np.linalg.norm(mean)) for term, mean in means.items()}
  by_term = {}
  for term, values in gradients.items():
    noise = np.sqrt(values.var(axis=0, ddof=1).sum())
    by_term[term] = {"norm": norms[term], "noise": float(noise)}
    for target in (name for name in means if name.startswith("towards ")):
      product = norms[term] * norms[target]
      by_term[term][target] = float(means[term] @ means[target] / product) if product else 0.0
  return by_term


def measure(images: ImageRun, variables: Any, head: dict[str, Any]) -> Findings:
  """Measures one seed."""
  terms, scored_on = terms_of(images.run), images.scored_on
  num_examples = len(images.examples["label"])
  batch_size = images.run.settings.train.batch_size
  if num_examples < 2 * batch_size:
    raise RunError(f"two batches of {batch_size} are needed; there are {num_examples} examples.")
  examples = {name: jnp.asarray(values) for name, values in images.examples.items()}

  @jax.jit
  def gradients(params: Any, rows: Array, key: Array) -> dict[str, dict[str, Array]]:
    batch = evaluation_batch(examples, rows, canvas=images.sizes["canvas"])
    gradient_trees = jax.jacrev(terms)(params, batch, key)
    return {
      group: {t: ravel_pytree([g[name] for name in names])[0] for t, g in gradient_trees.items()}
      for group, names in GROUPS.items()
    }

  num_used = num_examples // batch_size * batch_size
  order = np.random.default_rng(0).permutation(num_examples)[:num_used]
  batch_gradients = [
    jax.device_get(gradients(variables["params"], jnp.asarray(rows), jax.random.key(number)))
    for number, rows in enumerate(order.reshape(-1, batch_size))
  ]
  stacked = jax.tree.map(lambda *rows: np.stack(rows).astype(np.float64), *batch_gradients)
  by_group = {group: statistics(of_terms) for group, of_terms in stacked.items()}
  paragraphs = [
    f"Gradients: {scored_on['dataset']} {scored_on['split']}, {len(batch_gradients)} batches of"
    f" {batch_size} images, run {head['workdir']}, step {head['step']:,}, seed {head['seed']}"
  ]
  for group, of_terms in by_group.items():
    columns = list(next(iter(of_terms.values())))
    rows = [[term, *(row[column] for column in columns)] for term, row in of_terms.items()]
    paragraphs.append(table({group: "", **dict.fromkeys(columns, ".3g")}, rows))
  return Findings({"scored_on": scored_on, "batch_size": batch_size, **by_group}, paragraphs)


def main() -> None:
  """Measures, writes and prints."""
  measure_images("gradients", __doc__, measure, max_examples=5120)


if __name__ == "__main__":
  main()
