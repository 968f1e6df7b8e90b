"""Loss terms and measures on held-out examples."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from scae_jax.models.system import System
from scae_jax.training.mesh import replicated, split_examples
from scae_jax.training.objective import losses, selection_loss, weighted_total
from scae_jax.typing import Array, Batch


def evaluation_order(num_examples: int, batch_size: int) -> np.ndarray:
  """Every example once, [batches, batch_size]; the last one is repeated to fill the last batch."""
  num_batches = -(-num_examples // batch_size)
  order = np.minimum(np.arange(num_batches * batch_size), num_examples - 1)
  return order.astype(np.int32).reshape(num_batches, batch_size)


def make_heldout(
  system: System,
  mesh: Mesh,
  evaluation_batch: Callable[..., Batch],
  *,
  batch_size: int,
  num_examples: int,
  num_seeds: int,
) -> Callable[[Any, Batch], dict[str, Any]]:
  """The compiled function of parameters and a split of `num_examples`, whose result is

    {"terms": {name: []}, "measures": {name: []}, "total": [], "selection_loss": []}

  in float32; the last is the total without the probes. Where several seeds train at once,
  parameters have one more axis in front and results are [num_seeds].

  Terms that are statistics over a batch depend on its size, so they are means over batches of the
  training size, without the examples that do not fill one. Measures belong to single examples and
  are means over all of them. The model runs without noise, unless it has a switch that keeps it on.
  `evaluation_batch` is that of `data.feed.Feed`.
  """
  batch_size = min(batch_size, num_examples)
  num_full = num_examples // batch_size
  order = evaluation_order(num_examples, batch_size)

  def heldout(params: Any, split: Batch) -> dict[str, Any]:
    def body(_: Any, indices: Array) -> tuple[None, tuple[Any, Any]]:
      batch = evaluation_batch(split, split_examples(indices, mesh))
      batch = jax.tree.map(lambda array: split_examples(array, mesh), batch)
      _, (terms, output) = losses(system, params, batch, step=None, noise_key=None)
      return None, (terms, system.metrics(output, batch))

    _, (terms, measures) = jax.lax.scan(body, None, jnp.asarray(order))
    terms = jax.tree.map(lambda values: jnp.mean(values[:num_full]), terms)
    measures = jax.tree.map(lambda values: jnp.mean(values.reshape(-1)[:num_examples]), measures)
    return {
      "terms": terms,
      "measures": measures,
      "total": weighted_total(terms, system.loss_weights),
      "selection_loss": selection_loss(terms, system.loss_weights),
    }

  if num_seeds > 1:
    heldout = jax.vmap(heldout, in_axes=(0, None))
  everywhere = replicated(mesh)
  return jax.jit(heldout, in_shardings=everywhere, out_shardings=everywhere)
