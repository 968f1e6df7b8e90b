"""Time of a training step of configs/mnist.py:official, by part, and of the whole.

    python -m benchmarks.step --batch=128 --out=results/benchmarks/step-cpu-128.json

Each part is timed by itself, forward and with the gradients of its parameters and inputs, in a
compiled function of its own. The whole step is the shipped dispatch, many steps in one scan, with
data on the device. Beside it stand the same with the likelihood as it is defined, composed of warp
and mixture, and a straightforward step: one update in one jit, on a batch that is there already,
with that likelihood, the warp that JAX's library offers (map_coordinates) and XLA's convolutions.
`--whole` times the whole step alone, `--model=KEY=VALUE[,KEY=VALUE]` changes keys of the config's
model that are no tuples; several such lists with `;` between them take turns, and an empty one
changes nothing. `--seeds=1,2,5` times whole steps of one, two and five seeds at once, each an
update of every seed, and `--devices=1,2` those of one batch on one device and split over two. On a
CPU a device is a part of it: that shows what splitting costs, not what more hardware brings.
Several seeds have new parameters only.

Parameters are newly initialised and images are noise. `--pretrained=mnist` takes the config and
the data set of those parameters instead. It times everything with new and with pretrained
parameters, in turns.
"""

import ast
import contextlib
import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

import scae_jax
from benchmarks.measuring import Row, each_step, failing_alone, flags, milliseconds, report
from benchmarks.warp import library
from configs import mnist
from scae_jax.config import Settings, read_settings
from scae_jax.data.batches import evaluation_batch, training_batch
from scae_jax.data.options import DataOptions
from scae_jax.data.sources import load_dataset
from scae_jax.layers import convnet
from scae_jax.math import mixtures, warping
from scae_jax.models.scae.scae import SCAE, SCAEEncoding
from scae_jax.models.system import ImageSpec
from scae_jax.training.build import make_system
from scae_jax.training.hosts import make_mesh, put
from scae_jax.training.optimizer import make_optimizer
from scae_jax.training.state import make_state
from scae_jax.training.step import make_dispatch, update
from scae_jax.typing import Batch

NUM_EXAMPLES = 4096
Call = Callable[[], Any]


class Start(NamedTuple):
  """Data and parameters of a step."""

  split: dict[str, np.ndarray]  # training images and labels
  params: Any = None  # None for those that training starts with


class Case(NamedTuple):
  """A config's step, its data and parameters, and the number of devices."""

  settings: Settings
  data: ImageSpec
  start: Start
  num_devices: int = 1


def noise(settings: Settings, data: ImageSpec) -> Start:
  """Images of noise: only their number and size matter."""
  rng = np.random.RandomState(0)
  options = settings.data
  assert isinstance(options, DataOptions)  # images
  side = options.canvas - 2 * options.max_shift
  images = rng.randint(0, 256, (NUM_EXAMPLES, side, side, data.channels), np.uint8)
  return Start({"image": images, "label": rng.randint(0, data.num_classes, NUM_EXAMPLES, np.int32)})


def first_batch(settings: Settings, data: ImageSpec, start: Start) -> Batch:
  """A batch of the first images, in the middle of the canvas."""
  rows = jnp.arange(settings.train.batch_size)
  return evaluation_batch(jax.tree.map(jnp.asarray, start.split), rows, canvas=data.canvas)


def both(name: str, function: Callable[..., Any], *arguments: Any) -> dict[str, Call]:
  """The compiled function, and the compiled gradient of the sum of its outputs."""

  def total(*arguments: Any) -> jax.Array:
    leaves = jax.tree.leaves(function(*arguments))
    return sum(
      (jnp.sum(leaf) for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)),
      start=jnp.zeros(()),
    )

  forward = jax.jit(function)
  gradient = jax.jit(jax.grad(total, argnums=tuple(range(len(arguments)))))
  return {
    f"{name}, forward": lambda: forward(*arguments),
    f"{name}, with gradient": lambda: gradient(*arguments),
  }


def parts_of_a_step(settings: Settings, data: ImageSpec, start: Start) -> dict[str, Call]:
  """The stages of the model on one batch, and the optimiser's update, by name."""
  system = make_system(settings, data)
  module = system.module
  keys = jax.random.split(jax.random.key(0))
  batch, noise = first_batch(settings, data, start), {"noise": keys[0]}
  init = jax.jit(lambda: module.init({"params": keys[1], **noise}, batch, train=True))
  variables = init() if start.params is None else {"params": start.params}
  params = variables["params"]
  output = jax.jit(lambda: module.apply(variables, batch, train=True, rngs=noise))()
  poses, presence, features = output.parts.poses, output.parts.presence, output.parts.features
  rows = jnp.concatenate([poses.reshape(*presence.shape, 6), 1 - presence[..., None], features], -1)
  missing = params["object_encoder"]["set_transformer"]["input"]["kernel"].shape[0] - rows.shape[-1]
  rows = jnp.concatenate([rows, jnp.zeros((*presence.shape, missing))], axis=-1)
  encoded = jnp.zeros(
    (len(rows), module.object_encoder.num_objects, module.object_encoder.output_features)
  )

  def encode(params: Any, image: jax.Array) -> Any:
    return module.part_encoder.apply({"params": params}, image, train=True, rngs=noise)

  def attend(params: Any, rows: jax.Array, presence: jax.Array) -> Any:
    return module.object_encoder.apply({"params": params}, rows, presence)

  def vote(params: Any, encoded: jax.Array) -> Any:
    return module.object_decoder.apply({"params": params}, encoded, train=True, rngs=noise)

  def explain(params: Any, poses: jax.Array, presence: jax.Array, features: jax.Array) -> Any:
    decoder = module.part_decoder.bind({"params": params}, rngs=noise)
    return decoder.log_prob(poses, presence, decoder.colours(features), batch["image"], train=True)

  optimizer = make_optimizer(settings.optimizer)
  opt_state = optimizer.init(params)
  step = jax.jit(lambda: optimizer.update(params, opt_state, params))
  return {
    **both("CNN", encode, params["part_encoder"], batch["image"]),
    **both("set transformer", attend, params["object_encoder"], rows, presence),
    **both("object decoder", vote, params["object_decoder"], encoded),
    **both("image likelihood", explain, params["part_decoder"], poses, presence, features),
    "optimiser": step,
  }


def whole_step(
  settings: Settings, data: ImageSpec, start: Start, num_devices: int = 1
) -> tuple[Call, dict[str, float]]:
  """The shipped dispatch, and XLA's counts of it: operations and bytes a step, and memory."""
  system, optimizer = make_system(settings, data), make_optimizer(settings.optimizer)
  mesh = make_mesh(jax.devices()[:num_devices])
  params = None if start.params is None else put(start.params, mesh)
  state = make_state(settings, system, data, mesh, params)
  split, num_examples = put(start.split, mesh), len(start.split["label"])
  assert isinstance(settings.data, DataOptions)  # images
  batches = functools.partial(training_batch, options=settings.data)
  dispatch = make_dispatch(
    system, optimizer, mesh, batches, settings.train, num_examples=num_examples
  )
  length = settings.train.dispatch_length
  numbers = put([np.int32(n) for n in (0, 0, length)], mesh)  # from the first epoch's start
  compiled = dispatch.lower(state, split, *numbers).compile()
  held = [state]  # donated: each call needs what the last one returned

  def run() -> Any:
    held[0], metrics = compiled(held[0], split, *numbers)
    return metrics["total"]

  # XLA counts the body of a loop once, so these are of one step; of several seeds, of one on a
  # device and, where some are left over, of one that is split.
  cost, memory = compiled.cost_analysis() or {}, compiled.memory_analysis()
  names = {"flops": "GFLOP a step", "bytes accessed": "GB moved a step"}
  counts = {to: round(float(cost[name]) / 1e9, 2) for name, to in names.items() if name in cost}
  if memory is not None:
    size = memory.temp_size_in_bytes + memory.argument_size_in_bytes
    counts["GB held"] = round(size / 1e9, 2)
  return run, counts


def straightforward_step(settings: Settings, data: ImageSpec, start: Start) -> Call:
  """One update in one jit on one batch, composed of functions of JAX's library."""
  system, optimizer = make_system(settings, data), make_optimizer(settings.optimizer)
  mesh, batch = make_mesh(jax.devices()[:1]), first_batch(settings, data, start)
  step = jax.jit(functools.partial(update, system, optimizer), donate_argnums=0)
  state = make_state(settings, system, data, mesh, start.params)
  held = [jax.device_put(state, jax.devices()[0])]
  key = jax.random.key(1)
  with composed_likelihood(), library_warp(), library_convolution():
    compiled = step.lower(held[0], batch, key).compile()

  def run() -> Any:
    held[0], metrics = compiled(held[0], batch, key)
    return metrics["total"]

  return run


def composed_likelihood() -> contextlib.AbstractContextManager[Any]:
  """In its block, models compute the likelihood by its definition, on every backend."""

  def log_prob(self: SCAE, encoding: SCAEEncoding, target: jax.Array, **_: Any) -> jax.Array:
    mixture = self.decode(encoding, target.shape[1])
    return jnp.sum(jax.vmap(mixtures.log_prob)(mixture, target)) / len(target)

  return mock.patch.object(SCAE, "log_prob", log_prob)


def library_warp() -> contextlib.AbstractContextManager[Any]:
  """In its block, models warp with `jax.scipy.ndimage.map_coordinates`."""

  def warp(bank: jax.Array, poses: jax.Array, height: int, *_: Any) -> jax.Array:
    return library(bank, poses, height)

  return mock.patch.object(warping, "warp_templates", warp)


def library_convolution() -> contextlib.AbstractContextManager[Any]:
  """In its block, models use XLA's convolution on every backend."""
  return mock.patch.object(convnet, "convolve", convnet.convolve_layers)


def measure(
  cases: Mapping[str, Case], rounds: int, *, parts: bool = True
) -> tuple[dict[str, float], dict[str, Row]]:
  """XLA's counts of the whole dispatches, and milliseconds of one step or a part of it, by name.

  The name of a case ends the names of its counts and rows. A function that cannot be compiled has
  its error as its row; the others are measured.
  """
  rows: dict[str, Row] = {}
  functions: dict[str, Call] = {}
  counts: dict[str, float] = {}
  lengths: dict[str, int] = {}
  for end, case in cases.items():
    name = f"whole step{end}"
    with failing_alone(rows, name):
      functions[name], of_case = whole_step(*case)
      counts |= {f"{count}{end}": value for count, value in of_case.items()}
    composed = f"whole step, likelihood composed{end}"
    lengths |= dict.fromkeys((name, composed), case.settings.train.dispatch_length)
    if not parts:
      continue
    with failing_alone(rows, composed), composed_likelihood():
      functions[composed], _ = whole_step(*case)
    name = f"a straightforward step{end}"
    with failing_alone(rows, name):
      functions[name] = straightforward_step(*case[:3])
    with failing_alone(rows, f"parts of a step{end}"):
      step_parts = parts_of_a_step(*case[:3])
      functions |= {f"{name}{end}": part for name, part in step_parts.items()}
  rows |= milliseconds(functions, rounds)
  return counts, {name: each_step(row, lengths.get(name, 1)) for name, row in rows.items()}


def official(*, batch: int, steps: int, seeds: int = 1, **model: Any) -> tuple[Settings, ImageSpec]:
  """configs/mnist.py:official with dispatches of `steps` steps, and keys of `model` changed."""
  settings = resized(mnist.get_config("official"), batch, steps, seeds, **model)
  return settings, ImageSpec(canvas=40, channels=1, num_classes=10)


def resized(config: ConfigDict, batch: int, steps: int, seeds: int = 1, **model: Any) -> Settings:
  """A config with dispatches of `steps` steps of a batch, and keys of `model` changed."""
  config.train.update({"batch_size": batch, "seeds": seeds, "revive_idle": ()})
  config.train.steps_per_dispatch = config.train.log_every = steps
  config.train.eval_every = config.train.checkpoint_every = 0
  config.model.update_from_flattened_dict(model)
  return read_settings(config)


def value_of(text: str) -> Any:
  """A Python literal, or else the text itself."""
  try:
    return ast.literal_eval(text)
  except (SyntaxError, ValueError):
    return text


def main() -> None:
  """Times and reports."""
  sizes = {"batch": 128, "steps": 10, "rounds": 5, "seeds": "1", "devices": "1"}
  options = flags(__doc__, **sizes, model="", pretrained="", whole=False, out="")
  seeds, devices = ([int(n) for n in text.split(",")] for text in (options.seeds, options.devices))
  several = (seeds, devices) != ([1], [1])
  if max(devices) > 1:
    jax.config.update("jax_num_cpu_devices", max(devices))
  cases: dict[str, Case] = {}
  trained = scae_jax.load(options.pretrained) if options.pretrained else None
  for variant, num_seeds, num_devices in itertools.product(
    options.model.split(";"), seeds, devices
  ):
    pairs = (change.split("=", 1) for change in variant.split(",") if change)
    changes = {key: value_of(text) for key, text in pairs}
    end = f" ({variant})" if variant else ""
    end += f", {num_seeds} seeds, {num_devices} devices" if several else ""
    shape = {"batch": options.batch, "steps": options.steps, "seeds": num_seeds, **changes}
    if trained is None:
      settings, data = official(**shape)
      cases[end] = Case(settings, data, noise(settings, data), num_devices)
      continue
    config = trained.settings.config.copy_and_resolve_references()
    settings, data = resized(config, **shape), trained.spec
    assert isinstance(settings.data, DataOptions)
    assert isinstance(data, ImageSpec)
    split = load_dataset(settings.data.name).splits["train"].arrays
    cases[f", at the start{end}"] = Case(settings, data, Start(split), num_devices)
    params = trained.variables["params"]
    if num_seeds == 1:
      cases[f", trained{end}"] = Case(settings, data, Start(split, params), num_devices)
  counts, rows = measure(cases, options.rounds, parts=not (options.whole or several))
  name = options.pretrained or "mnist:official"
  sizes = {"config": name, "batch": options.batch, "steps a dispatch": options.steps}
  report("training step", sizes | counts, rows, options.out)


if __name__ == "__main__":
  main()
