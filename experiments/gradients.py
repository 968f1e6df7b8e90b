"""Which loss terms of an SCAE pull towards the labels that it never sees.

    python -m experiments.gradients runs/mnist results/mnist --split=train --max_examples=5120

Each loss term, and the cross-entropy of each linear probe, held fixed, is differentiated by the
parameters of the object half and of the part encoder. Reported are the norm of the mean gradient
over batches, the noise of one batch around it, and its cosine with the cross-entropy's gradient:
positive where a step down the term is a step towards the labels. Terms have the config's weights,
no schedule, and the batch size of training. "Between" terms are given biased, unbiased, and as the
excess of the first over the second (`scae_jax/math/sparsity.py`).

Writes `gradients-<workdir>.json` and `.md` into the folder, one of each seed.
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
from scae_jax.evaluation.comparison import markdown
from scae_jax.models.scae.ocae import CapsuleLoss
from scae_jax.models.scae.scae import SCAE
from scae_jax.training.run import Run
from scae_jax.typing import Array, Batch

GROUPS = {"objects": ("object_encoder", "object_decoder"), "parts": ("part_encoder",)}
BETWEEN = ("prior_between", "posterior_between")
PROBES = {"prior": "prior_probe", "posterior": "posterior_probe"}  # of presences and of mass


def terms_of(run: Run) -> Callable[[Any, Batch, Array], dict[str, Array]]:
  """A function of parameters, a batch and a key; RunError unless the run is of an SCAE.

  It returns the weighted loss terms, each "between" also unbiased and its excess over that, and the
  cross-entropies `towards` the labels.
  """
  module, system = run.system.module, run.system
  if not isinstance(module, SCAE):
    raise RunError("the probes of an SCAE are needed; name a run of one.")
  options = bounds.read(CapsuleLoss, "loss", run.settings.loss)
  both = [dataclasses.replace(options, unbiased_between=x) for x in (False, True)]
  cross_entropy = optax.softmax_cross_entropy_with_integer_labels

  def terms(params: Any, batch: Batch, key: Array) -> dict[str, Array]:
    output: Any = module.apply({"params": params}, batch, train=True, rngs={"noise": key})
    found = dict(system.loss_terms(output, batch, None))
    activations = (output.objects.presence, output.mass, module.num_classes)
    of_batch, of_all = (loss.sparsity(*activations) for loss in both)
    for name in BETWEEN:
      found |= {name: of_batch[name], f"{name}, unbiased": of_all[name]}
      found[f"{name}, excess"] = of_batch[name] - of_all[name]
    for name, activation in system.features(output).items():
      probe = jax.lax.stop_gradient(params[PROBES[name]])
      logits: Any = nn.Dense(module.num_classes).apply({"params": probe}, activation)
      del found[PROBES[name]]
      found[f"towards {name}"] = jnp.mean(cross_entropy(logits, batch["label"]))
    weights = {name: system.loss_weights.get(name.partition(",")[0], 1.0) for name in found}
    return {name: weights[name] * value for name, value in found.items()}

  return terms


def statistics(gradients: Mapping[str, np.ndarray]) -> dict[str, dict[str, float]]:
  """Of gradients [n, p], by term, of n batches: norm of the mean, noise, and cosines with those
  called `towards ...`."""
  means = {term: each.mean(axis=0) for term, each in gradients.items()}
  norms = {term: float(np.linalg.norm(mean)) for term, mean in means.items()}
  found = {}
  for term, each in gradients.items():
    noise = np.sqrt(each.var(axis=0, ddof=1).sum())
    found[term] = {"norm": norms[term], "noise": float(noise)}
    for target in (name for name in means if name.startswith("towards ")):
      product = norms[term] * norms[target]
      found[term][target] = float(means[term] @ means[target] / product) if product else 0.0
  return found


def measure(images: ImageRun, variables: Any, head: dict[str, Any]) -> Findings:
  """Measures one seed."""
  terms, on, num = terms_of(images.run), images.scored_on, len(images.examples["label"])
  batch_size = images.run.settings.train.batch_size
  if num < 2 * batch_size:
    raise RunError(f"two batches of {batch_size} are needed; there are {num} examples.")
  examples = {name: jnp.asarray(values) for name, values in images.examples.items()}

  @jax.jit
  def gradients(params: Any, rows: Array, key: Array) -> dict[str, dict[str, Array]]:
    batch = evaluation_batch(examples, rows, canvas=images.sizes["canvas"])
    of_term = jax.jacrev(terms)(params, batch, key)
    return {
      group: {t: ravel_pytree([g[name] for name in names])[0] for t, g in of_term.items()}
      for group, names in GROUPS.items()
    }

  order = np.random.default_rng(0).permutation(num)[: num // batch_size * batch_size]
  each = [
    jax.device_get(gradients(variables["params"], jnp.asarray(rows), jax.random.key(number)))
    for number, rows in enumerate(order.reshape(-1, batch_size))
  ]
  stacked = jax.tree.map(lambda *of_batches: np.stack(of_batches).astype(np.float64), *each)
  found = {group: statistics(of_terms) for group, of_terms in stacked.items()}
  paragraphs = [
    f"Gradients: {on['dataset']} {on['split']}, {len(each)} batches of {batch_size} images, run"
    f" {head['workdir']}, step {head['step']:,}, seed {head['seed']}"
  ]
  for group, of_terms in found.items():
    columns = list(next(iter(of_terms.values())))
    rows = [[t, *(f"{one[column]:.3g}" for column in columns)] for t, one in of_terms.items()]
    paragraphs.append(markdown([[group, *columns], *rows]))
  return Findings({"scored_on": on, "batch_size": batch_size, **found}, paragraphs)


def main() -> None:
  """Measures, writes and prints."""
  measure_images("gradients", __doc__, measure, max_examples=5120)


if __name__ == "__main__":
  main()
