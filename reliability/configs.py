"""Random configs: each must train or be refused with the name of its key.

    python -m reliability.configs --n=2000 --seed=0

Each config is a small one of one of the systems with a few keys changed: to sizes that are odd,
large or negative, to NaN or infinity, to values of another type, to schedules out of order. It is
read and traced as by train.py; every tenth one trains for two steps. A run that ends because its
loss is not finite counts as stopped. Hypothesis draws the configs; one that ends neither in a run
nor in one line that names a changed key is reduced to its least changes and printed, and the exit
code is 1.
"""

import contextlib
import io
import pathlib
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
from absl import logging
from flax.traverse_util import flatten_dict
from hypothesis import HealthCheck, given, note, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from ml_collections import ConfigDict

from configs import capsnet, cnn, constellations, digits, matrix_capsules, probabilistic
from reliability import runs
from scae_jax.config import plain_parser, read_settings
from scae_jax.errors import NonFiniteError, RunError
from scae_jax.training.build import build
from scae_jax.training.loop import train

TRAINED, TRACED, REFUSED, STOPPED = "trained", "traced", "refused", "stopped"
TRAIN_EVERY = 10  # one of so many configs trains
PATIENCE = 300  # seconds for one config

# Sizes at which a model is traced in a second.
SMALL: dict[str, dict[str, Any]] = {
  "scae": {
    "model.num_parts": 4,
    "model.num_objects": 4,
    "model.part_encoder.widths": (4, 4),
    "model.part_encoder.strides": (2, 1),
    "model.object_encoder.num_layers": 1,
    "model.object_encoder.output_features": 8,
    "model.object_encoder.features": 8,
    "model.object_decoder.hidden": 8,
  },
  "ccae": {
    "model.object_encoder.num_layers": 1,
    "model.object_encoder.features": 8,
    "model.object_encoder.output_features": 8,
    "model.object_decoder.hidden": 8,
  },
  "probabilistic": {
    "model.capsules": (4, 3),
    "model.part_inference.widths": (4, 4),
    "model.part_inference.strides": (2, 1),
    "model.object_inference.num_layers": 1,
    "model.object_inference.features": 8,
    "model.object_inference.output_features": 8,
    "model.object_inference.num_inducing": 4,
  },
  "capsnet": {
    "model.conv_width": 8,
    "model.primary_types": 4,
    "model.decoder_widths": (8,),
    "model.routing_iterations": 2,
  },
  "matrix_capsules": {
    "model.conv_width": 8,
    "model.primary_types": 2,
    "model.first_types": 2,
    "model.second_types": 2,
    "model.routing_iterations": 2,
  },
  "cnn": {},
}
TINY_RUN = {
  "train.num_steps": 2,
  "train.batch_size": 4,
  "train.compilation_cache": "off",
  "data.num_validation": 0,
}
WHOLE = (-1, 0, 1, 2, 3, 4, 5, 7, 8, 12, 16, 20, 31, 64, 100, 1000, 65_536, 10**6, 10**9, 10**12)
NUMBERS = (-1.0, 0.0, 1e-60, 1e-30, 1e-8, 1e-3, 0.3, 1.0, 2.0, 10.0, 1e3, 1e6, 1e9, 1e30, 1e300)
NOT_NUMBERS = (float("nan"), float("inf"), float("-inf"))
OTHERS = (None, True, "1", "", 1.5, (1, 2), {}, {"a": 1}, "nonsense", ((0, 1.0), (5, 2.0)))
WORDS = (
  *("attention", "mean", "linear", "sigmoid", "relu1", "alpha", "coupled"),
  *("set_transformer", "mlp", "hard", "soft", "none", "parts", "all"),
  *("l2", "entropy", "kl", "adam", "rmsprop", "constant", "exponential", "cosine", "same", "last"),
  *("gaussian", "summed_out", "sobel", "bfloat16", "digits", "constellations", "nowhere", ""),
)
# Folders and names of files are not drawn: they may name anything on the machine.
LEFT_ALONE = (
  *("data.dir", "data.cache_dir", "data.affnist_dir"),
  *("train.compilation_cache", "train.start_from", "train.tensorboard"),
)


def base_configs() -> dict[str, ConfigDict]:
  """A small config of every system."""
  made = {
    "scae": digits.get_config(),
    "ccae": constellations.get_config(),
    "probabilistic": probabilistic.get_config("digits"),
    "capsnet": capsnet.get_config("digits"),
    "matrix_capsules": matrix_capsules.get_config("digits"),
    "cnn": cnn.get_config("digits"),
  }
  for name, config in made.items():
    keys = flatten_dict(config.to_dict(), sep=".")
    changes = {**SMALL[name], **TINY_RUN}
    config.update_from_flattened_dict({k: v for k, v in changes.items() if k in keys})
  return made


def values(value: Any) -> st.SearchStrategy[Any]:
  """Values for a key with this value: mostly of its type, often near it, sometimes invalid."""
  others = st.sampled_from(OTHERS)
  if isinstance(value, bool):
    return st.just(not value) | others
  if isinstance(value, str):
    return st.sampled_from(WORDS) | others
  if isinstance(value, int):
    near = st.integers(max(0, value - 3), value + 3)
    return near | st.sampled_from(WHOLE) | others
  if isinstance(value, float):
    near = st.floats(*sorted((0.1 * value, 3 * value)))
    return near | st.sampled_from(NUMBERS) | st.sampled_from(NOT_NUMBERS) | others
  if isinstance(value, tuple) and (not value or isinstance(value[0], tuple)):
    steps = st.tuples(st.sampled_from(WHOLE), values(1.0))
    return st.lists(steps, max_size=3).map(tuple) | others
  if isinstance(value, tuple):
    elements = values(value[0])
    alike = st.tuples(*[elements] * len(value))
    return alike | st.lists(elements, max_size=4).map(tuple) | others
  return others


@st.composite
def cases(draw: Callable[..., Any]) -> tuple[str, dict[str, Any]]:
  """A system and values of one to four of its keys."""
  bases = base_configs()
  system = draw(st.sampled_from(sorted(bases)))
  keys = flatten_dict(bases[system].to_dict(), sep=".")
  drawn_keys = sorted(set(keys) - set(LEFT_ALONE))
  chosen = draw(st.lists(st.sampled_from(drawn_keys), min_size=1, max_size=4, unique=True))
  return system, {key: draw(values(keys[key])) for key in chosen}


def make_config(system: str, changes: dict[str, Any]) -> ConfigDict:
  """The small config of a system with values of any type at some keys."""
  content = base_configs()[system].to_dict()
  for path, value in changes.items():
    *sections, last = path.split(".")
    section = content
    for name in sections:
      section = section[name]
    section[last] = value
  return ConfigDict(content).lock()


def try_config(system: str, changes: dict[str, Any], *, trains: bool) -> str:
  """The outcome of reading, tracing and perhaps training a config; an error if it is not sound."""
  try:
    with runs.ending(PATIENCE):
      config = make_config(system, changes)
      if not trains:
        build(read_settings(config))
        return TRACED
      with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        train(config, pathlib.Path(folder) / "run")
      return TRAINED
  except NonFiniteError:
    return STOPPED
  except RunError as error:
    message = str(error)
    assert "\n" not in message
    assert any(re.search(rf"config\.{re.escape(key)}\b", message) for key in changes), message
    return REFUSED


def search(n: int, seed: int) -> Counter[str]:
  """Tries so many configs and counts their outcomes; raises the error of one that is not sound."""
  counts: Counter[str] = Counter()
  patient = {"deadline": None, "suppress_health_check": list(HealthCheck)}

  @seeded(seed)
  @settings(max_examples=n, database=None, **patient)
  @given(cases(), st.integers(1, TRAIN_EVERY))
  def check(case: tuple[str, dict[str, Any]], trial: int) -> None:
    system, changes = case
    note(f"{system}: {changes}")
    counts[try_config(system, changes, trains=trial == TRAIN_EVERY)] += 1
    jax.clear_caches()  # compiled programs stay in memory
    if counts.total() % 100 == 0:
      print(dict(counts), flush=True)

  check()
  return counts


def main(arguments: Sequence[str]) -> None:
  """Tries the configs that the flags ask for."""
  logging.set_verbosity(logging.ERROR)
  parser = plain_parser(__doc__)
  parser.add_argument("--n", type=int, default=1_000, help="number of configs")
  parser.add_argument("--seed", type=int, default=0)
  options = parser.parse_args(arguments)
  print(dict(search(options.n, options.seed)))


if __name__ == "__main__":
  main(sys.argv[1:])
