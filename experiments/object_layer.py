"""Trains the upper layer of probabilistic capsules alone, on known parts.

    python -m experiments.object_layer results/probabilistic/object-layer.json

Trained are the network that infers objects and the prior of parts given objects. The parts are
those of `experiments/known_scenes.py`, and two more that are always off. All seeds are trained at
once. A row's figure is the share of right presences in test scenes, at a threshold of 0.5; objects
are matched on training scenes.
"""

import functools
import pathlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from experiments import known_scenes
from experiments.findings import write_record
from experiments.known_scenes import GLYPHS, NUM_SCENES, PART_SIZE
from scae_jax.models.capsule_inference import ObjectInference, Posterior
from scae_jax.routing import selection
from scae_jax.training.config import plain_parser
from scae_jax.typing import Array

# Scenes of these seeds chose nothing that `experiments/recovery.py` reports.
SEEDS = {"train": 0, "test": 1}
IDLE, OBJECTS = 2, 4
BATCH = 64
KNOWN = 4.0  # a logit
LEARNING_RATE = 8e-3
# Temperature of choices: (step, value), as shares of all steps.
FALL = ((0.03, 4.0), (0.57, 1.0))
# `off_poses`, `upper_temperature` and `max_affinity` of each.
ROWS = (
  ("broad", 0.5, 0.0),
  ("summed_out", 0.5, 0.0),
  ("summed_out", 0.25, 0.0),
  ("summed_out", 0.5, 2.0),
  ("summed_out", 0.25, 2.0),
)


def known_parts(seed: int, count: int) -> tuple[Posterior, np.ndarray]:
  """Posteriors of the parts of `count` scenes, and which objects are there, bool [n, k].

  A part that is off is where it is in no scene: nobody knows its pose.
  """
  parts, there = known_scenes.draw_parts(seed, count)
  on = np.pad(np.asarray(parts.presence) > 0.5, ((0, 0), (0, IDLE)))
  poses = np.pad(np.asarray(parts.poses), ((0, 0), (0, IDLE), (0, 0), (0, 0)))
  nowhere = PART_SIZE * np.eye(2, 3)
  poses = np.where(on[:, :, None, None], poses, nowhere).astype(np.float32)
  logits = np.where(on, KNOWN, -KNOWN).astype(np.float32)
  return Posterior(jnp.asarray(logits), jnp.asarray(poses), None), there


class UpperLayer(nn.Module):
  """Objects of known parts, and the bound without pixels."""

  off_poses: str
  upper_temperature: float
  max_affinity: float

  def setup(self):
    self.generative = known_scenes.true_model().clone(
      capsules=(len(GLYPHS) + IDLE, OBJECTS),
      top_scale=0.3,
      min_scale=0.03,
      initial_scale=0.3,
      upper_temperature=self.upper_temperature,
      max_affinity=self.max_affinity,
    )
    self.inference = ObjectInference(
      num_capsules=OBJECTS,
      gaussian=False,
      num_layers=1,
      num_heads=2,
      features=32,
      num_inducing=16,
      output_features=64,
      hidden=64,
    )

  def __call__(self, known: Posterior, key: Array, choice_temperature: Array) -> Array:
    """Minus the bound, choices tempered, a mean over scenes, nats."""
    keys = jax.random.split(key)
    parts = known.sample(keys[0], self.generative.temperature)
    belief = self.inference(parts)
    objects = belief.sample(keys[1], self.upper_temperature)
    off = None
    if self.off_poses == "summed_out":
      off = [known.off_log_prob(parts, self.generative.min_scale), jnp.zeros(())]
    joint = self.generative.select([parts, objects], off)[0].joint
    temper = functools.partial(selection.tempered_log_prob, choice_temperature=choice_temperature)
    below = jnp.sum(jax.vmap(temper)(joint), axis=-1)
    bound = below + self.generative.top_log_prob(objects)
    return -jnp.mean(bound - belief.presence_log_prob(objects, self.upper_temperature))

  def infer(self, known: Posterior) -> Array:
    """Logits of the objects' presences [n, k]."""
    return self.inference(known.centre(self.generative.temperature)).presence_logits


def train(module: UpperLayer, known: Posterior, num_seeds: int, num_steps: int) -> Any:
  """Variables of all seeds, trained, with a leading axis."""
  optimizer = optax.chain(
    optax.clip_by_global_norm(10.0),
    optax.adam(optax.exponential_decay(LEARNING_RATE, 2_000, 0.85)),
  )
  steps, temperatures = zip(*FALL, strict=True)

  def one(key: Array) -> Any:
    init_key, steps_key = jax.random.split(key)
    first = jax.tree.map(lambda x: x[:2], known)
    variables = module.init(init_key, first, init_key, jnp.ones(()))

    def step(carry: Any, number: Array) -> tuple[Any, None]:
      variables, state = carry
      keys = jax.random.split(jax.random.fold_in(steps_key, number))
      rows = jax.random.randint(keys[0], (BATCH,), 0, len(known.poses))
      batch = jax.tree.map(lambda x: x[rows], known)
      heat = jnp.interp(number / num_steps, jnp.array(steps), jnp.array(temperatures))
      gradient = jax.grad(module.apply)(variables, batch, keys[1], heat)
      updates, state = optimizer.update(gradient, state, variables)
      return (optax.apply_updates(variables, updates), state), None

    start = (variables, optimizer.init(variables))
    return jax.lax.scan(step, start, jnp.arange(num_steps))[0][0]

  return jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), num_seeds))


def score(
  module: UpperLayer, variables: Any, scenes: dict[str, tuple[Posterior, np.ndarray]]
) -> list[float]:
  """Share of right presences in test scenes, by seed."""
  infer = jax.jit(jax.vmap(functools.partial(module.apply, method="infer"), in_axes=(0, None)))
  found = {name: np.asarray(infer(variables, known)) > 0 for name, (known, _) in scenes.items()}
  there = {name: objects for name, (_, objects) in scenes.items()}
  return [
    float(np.mean(known_scenes.right_answers({"train": train_found, "test": test_found}, there)[1]))
    for train_found, test_found in zip(found["train"], found["test"], strict=True)
  ]


def main() -> None:
  """Trains and scores every row, and writes them."""
  parser = plain_parser(__doc__)
  parser.add_argument("file", type=pathlib.Path, help="JSON, written to")
  parser.add_argument("--seeds", type=int, default=5)
  parser.add_argument("--num_steps", type=int, default=7_000)
  options = parser.parse_args()
  scenes = {name: known_parts(SEEDS[name], count) for name, count in NUM_SCENES.items()}
  rows = []
  for off_poses, temperature, limit in ROWS:
    module, begun = UpperLayer(off_poses, temperature, limit), time.time()
    variables = train(module, scenes["train"][0], options.seeds, options.num_steps)
    shares = score(module, variables, scenes)
    row = {"off_poses": off_poses, "upper_temperature": temperature, "max_affinity": limit}
    rows.append(row | {"right": shares, "seconds": round(time.time() - begun)})
    percent = ", ".join(f"{100 * share:.1f}" for share in shares)
    print(
      f"{off_poses}, temperature {temperature}, affinities below {limit or 'none'}: {percent} % of"
      " presences right",
      flush=True,
    )
  write_record(options.file, {"num_steps": options.num_steps, "rows": rows})


if __name__ == "__main__":
  main()
