"""Probabilistic capsules in training: a batch is learnt; what is not finite is named."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax

from scae_jax.models.generative_capsules import GenerativeCapsules
from tests.test_models_probabilistic import CANVAS, THREE, tiny_batch, tiny_system, tiny_variables
from tests.tiny import random_variables


def test_one_batch_of_images_is_learnt():
  """Eight images of a bar each, by the gradients of one bound from end to end."""
  system = tiny_system(poses="delta")
  row = np.arange(CANVAS)
  image = np.zeros((8, CANVAS, CANVAS, 1), np.float32)
  for i in range(8):  # upright bars, then lying ones
    bar = (np.abs(row - 2 - i % 4) < 1).astype(np.float32)
    image[i, :, :, 0] = bar[None] if i < 4 else bar[:, None]
  batch = {"image": jnp.asarray(image), "label": jnp.zeros(8, jnp.int32)}
  optimizer = optax.adam(0.01)
  variables = random_variables(system.module, batch, scale=0.1, train=True)

  def loss(variables, key):
    output = system.module.apply(variables, batch, train=True, rngs={"noise": key})
    terms = system.loss_terms(output, batch, None)
    return sum(terms.values(), start=jnp.zeros(())), system.metrics(output, batch)

  def step(carry, key):
    variables, state = carry
    gradient, measures = jax.grad(loss, has_aux=True)(variables, key)
    updates, state = optimizer.update(gradient, state)
    return (optax.apply_updates(variables, updates), state), measures

  @jax.jit
  @jax.vmap
  def learn(key):
    keys = jax.random.split(key, 600)
    return jax.lax.scan(step, (variables, optimizer.init(variables)), keys)[1]

  # The median of five draws of the noise: one now and then falls back to an error of 4, and
  # rounding decides which and when.
  measures = learn(jax.random.split(jax.random.key(0), 5))
  measures = {name: np.asarray(values).mean(axis=2) for name, values in measures.items()}
  first, last = (
    {name: np.median(m[:, when].mean(axis=1)) for name, m in measures.items()}
    for when in (slice(10), slice(-10, None))
  )
  # From -48 nats to -1, and from 5.7 to 1.9.
  assert last["bound"] > first["bound"] + 30
  assert last["squared_error"] < 3


def test_what_is_not_finite_is_named_by_its_layer(monkeypatch):
  """The deviations between the second layer and the third are broken."""
  original = GenerativeCapsules.relations

  def relations(self):
    first, second = original(self)
    return [first, dataclasses.replace(second, scales=jnp.nan * second.scales)]

  system, batch = tiny_system(**THREE), tiny_batch()
  variables = tiny_variables(system)
  monkeypatch.setattr(GenerativeCapsules, "relations", relations)

  @jax.jit
  def terms(key):
    output = system.module.apply(variables, batch, train=True, rngs={"noise": key})
    return system.loss_terms(output, batch, None)

  found = terms(jax.random.key(0))
  assert {name for name, value in found.items() if not np.isfinite(value)} == {"capsules_2"}
