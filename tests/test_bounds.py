"""Every key of every system's config refuses invalid values by its name."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated

import pytest
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from reliability.configs import base_configs
from scae_jax import bounds
from scae_jax.bounds import above, below, between, each, line, one_of
from scae_jax.config import read_settings
from scae_jax.errors import RunError
from scae_jax.models.system import ImageSpec, PointSpec
from scae_jax.training.build import make_system

CONFIGS = base_configs()
# Any text is valid: whether the folder exists is seen when it is opened.
TEXTS = ("data.dir", "data.cache_dir", "data.affnist_dir", "train.compilation_cache")
NO_TEMPERATURE = ("model.generative.upper_temperature", None)  # is that of the parts
FREE = ("system", "data.name", "train.start_from", *TEXTS)
# The other sections are the same for all systems, except the data of scenes.
SECTIONS = dict.fromkeys(CONFIGS, ("model", "loss"))
SECTIONS["scae"] += ("data", "train", "optimizer", "evaluation")
SECTIONS["ccae"] += ("data",)


def build(config):
  """Reads a config and makes its system, as train.py does before it loads data."""
  settings = read_settings(config)
  is_scenes = settings.system == "ccae"
  data = config.data
  make_system(settings, PointSpec(11, 3, 4) if is_scenes else ImageSpec(data.canvas, 1, 10))


def refusal(config):
  """The error message of a config; "" if it is valid."""
  try:
    build(config)
  except (RunError, ValueError) as error:
    return str(error)
  return ""


def changed(config, key, value):
  """A copy of a config with one value, of any type, changed."""
  config = ConfigDict(config.to_dict()).unlock()
  *sections, last = key.split(".")
  section = config
  for name in sections:
    section = section[name]
  with section.ignore_type():
    section[last] = value
  return config


def nonsense(value):
  """Values that are invalid for a key of this type: of other types, or out of all bounds."""
  if isinstance(value, bool):
    return [1, "true", (1, 2), None]
  if isinstance(value, int):
    return [-1, 10**12, 1.5, True, "1", (1,), None, math.nan]
  if isinstance(value, float):
    return [-1.0, math.nan, math.inf, 1e30, "1", (1.0,), None]
  if isinstance(value, str):
    return ["", "nonsense", 1, True, ("a",), None]
  lists = [3, "abc", (-1,), ("a", 1), ((1,),), ((1, 2), (1, 3)), ((0, math.nan),), ((0, -1.0),)]
  if isinstance(value, tuple) and value and isinstance(value[0], tuple):  # points of a line
    return [*lists, (1, 2)]
  return [*lists, (10**12,), (1.5,), (True,)]


@pytest.mark.parametrize("system", CONFIGS)
def test_every_key_refuses_nonsense_by_its_name(system):
  build(CONFIGS[system])
  config = CONFIGS[system].to_dict()
  sections = {name: config[name] for name in SECTIONS[system]} | {"system": system}
  keys = flatten_dict(sections, sep=".")
  assert len(keys) > 8
  not_refused = []
  for key, value in keys.items():
    for wrong in nonsense(value):
      if (key in FREE and isinstance(wrong, str)) or (key, wrong) == NO_TEMPERATURE:
        continue
      message = refusal(changed(CONFIGS[system], key, wrong))
      if not message.startswith(f"config.{key} ") or "\n" in message:
        not_refused.append((key, wrong, message))
  assert not_refused == []


@pytest.mark.parametrize("system", CONFIGS)
def test_sections_have_exactly_their_keys(system):
  config = CONFIGS[system].to_dict()
  for section in SECTIONS[system]:
    with pytest.raises((RunError, ValueError), match=rf"config\.{section}: .*\['unknown_key'\]"):
      build(changed(CONFIGS[system], f"{section}.unknown_key", 1))
    key = sorted(config[section])[0]
    rest = {name: value for name, value in config[section].items() if name != key}
    without = ConfigDict({**config, section: rest})
    with pytest.raises((RunError, ValueError), match=rf"config\.{section}.*\['{key}'"):
      build(without)


@dataclasses.dataclass(frozen=True)
class Inner:
  factor: Annotated[float, above(0, 2)] = 1.0


@dataclasses.dataclass(frozen=True)
class Options:
  widths: Annotated[tuple[int, ...], each(between(1, 9), least=1, most=3)]
  least: Annotated[float, below(0, 4)]
  mode: Annotated[str, one_of("a", "b")]
  points: Annotated[tuple[tuple[float, float], ...], line(0, 5)]
  named: Annotated[Mapping[str, float], between(0, 1)]
  inner: Inner
  maybe: Annotated[float | None, between(0, 1)] = None


GOOD = {
  "widths": [2, 3],
  "least": 3,
  "mode": "a",
  "points": [[0, 1], [10, 5]],
  "named": {"x": 1},
  "inner": {},
}


def test_a_section_is_read_into_its_dataclass():
  """Lists become tuples; whole numbers become floats where the field is a float."""
  record = bounds.read(Options, "model", GOOD)
  assert record == Options(
    (2, 3), 3.0, "a", ((0.0, 1.0), (10.0, 5.0)), {"x": 1.0}, Inner(1.0), None
  )
  assert type(record.least) is float
  assert type(record.points[1][0]) is float
  record, rest = bounds.read_some(Inner, "model", {"factor": 2, "other": 1})
  assert record == Inner(2.0)
  assert rest == {"other": 1}


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"least": 10**400}, r"config\.model\.least.* 0.* 4\b"),
    ({"widths": (1, 10)}, r"config\.model\.widths.*\(1, 10\)"),
    ({"points": ((-1, 1),)}, r"config\.model\.points"),
    ({"points": ((0, 6),)}, r"config\.model\.points.* 0.* 5\b"),
    ({"named": 3}, r"config\.model\.named.* 3\b"),
    ({"inner": {"factor": 0}}, r"config\.model\.inner\.factor.* 0.* 2.* 0\b"),
    ({"inner": 1}, r"config\.model\.inner.*\['factor'\].* 1\b"),
    ({"maybe": "x"}, r"config\.model\.maybe.*None.*'x'"),
  ],
)
def test_values_out_of_bounds_are_refused(change, message):
  """Bounds of several keys: test_models_refused.py."""
  with pytest.raises(ValueError, match=message):
    bounds.read(Options, "model", GOOD | change)
