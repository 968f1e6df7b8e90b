"""Bounds on the values of config keys, written in the annotations of the fields.

A section of the config is read into a dataclass, such as a set of options or a Flax module. Its
fields are the section's keys, and their annotations say which values are allowed:

    widths: Annotated[tuple[int, ...], each(between(1, MAX_WIDTH), least=1)]

`read` checks a whole section against such a class, and is the only place that does.

A config may lack a key whose field has a default. Every new key has a default that keeps the
earlier behaviour, so that runs saved without the key open, resume and evaluate:

    frame: Annotated[str, one_of("image", "parts")] = "image"
"""

import dataclasses
import itertools
import math
import typing
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Annotated, Any, TypeVar

Schema = TypeVar("Schema")
Fields = Mapping[str, Any]
Limit = float | str

# Limits far beyond any capsule network, so that a typing error gives a message and not an hour of
# tracing. `Program.compile` checks whether a model fits into the memory of a device.
MAX_STEPS = 2**31 - 2  # steps are counted in int32
MAX_EXAMPLES = 2**31 - 2  # of a batch, and of a data set
MAX_WIDTH = 65_536  # channels, features or capsules of one layer
MAX_LAYERS = 32  # each is traced and compiled separately
MAX_KERNEL = 32  # pixels; every shift of a kernel is traced separately
MAX_SIDE = 1_024  # pixels
MAX_ITERATIONS = 100  # of routing; each is traced and compiled separately
MAX_WEIGHT = 1e9  # of a loss term, or a factor of its weight
_FLAX_FIELDS = ("parent", "name")  # fields of every Flax module, which are no keys


@dataclasses.dataclass(frozen=True)
class Bound:
  """One condition on a value."""

  words: str  # the expected value, after "must be"; `{name}` stands for the value of that field
  # `(value, fields of its section) -> bool`: whether the value is allowed.
  holds: Callable[[Any, Fields], bool]


def between(low: Limit, high: Limit) -> Bound:
  """From low to high, both included; a limit may be the name of another field."""
  return Bound(
    f"from {_words(low)} to {_words(high)}",
    lambda value, fields: _limit(low, fields) <= value <= _limit(high, fields),
  )


def above(low: Limit, high: Limit) -> Bound:
  """Above low and at most high; a limit may be the name of another field."""
  return Bound(
    f"above {_words(low)} and at most {_words(high)}",
    lambda value, fields: _limit(low, fields) < value <= _limit(high, fields),
  )


def below(low: Limit, high: Limit) -> Bound:
  """From low to high, without high itself; a limit may be the name of another field."""
  return Bound(
    f"from {_words(low)} to below {_words(high)}",
    lambda value, fields: _limit(low, fields) <= value < _limit(high, fields),
  )


def zero_or(bound: Bound) -> Bound:
  """Within a bound, or 0, which usually means "off"."""
  return Bound(f"0 or {bound.words}", lambda value, fields: not value or bound.holds(value, fields))


def one_of(*names: str) -> Bound:
  """One of these names."""
  return Bound(f"one of {', '.join(names)}", lambda value, fields: value in names)


def each(bound: Bound, *, least: int = 0, most: int = MAX_LAYERS) -> Bound:
  """For a tuple: from `least` to `most` entries, each within a bound."""

  def holds(values: Any, fields: Fields) -> bool:
    return least <= len(values) <= most and all(bound.holds(value, fields) for value in values)

  return Bound(f"a tuple of {least} to {most} values, each {bound.words}", holds)


def as_many_as(name: str) -> Bound:
  """For a tuple: the same number of entries as another field has."""
  words = f"as many values as {{section}}.{name} has, which is {{{name}}}"
  return Bound(words, lambda values, fields: len(values) == len(fields[name]))


def dividing(*names: str) -> Bound:
  """For a whole number: the named fields are multiples of it."""
  words = "a divisor of " + " and of ".join(f"{{section}}.{name}, {{{name}}}" for name in names)
  return Bound(words, lambda value, fields: all(fields[name] % value == 0 for name in names))


def line(low: float, high: float) -> Bound:
  """For points ((step, value), ...): rising steps from 0, values from low to high."""

  def holds(points: Any, fields: Fields) -> bool:
    steps = [step for step, _ in points]
    rise = all(first < second for first, second in itertools.pairwise(steps))
    in_time = all(0 <= step <= MAX_STEPS for step in steps)
    return rise and in_time and all(low <= value <= high for _, value in points)

  words = f"points ((step, value), ...) with rising steps and values from {low:,g} to {high:,g}"
  return Bound(words, holds)


def read(schema: type[Schema], section: str, values: Any, **derived: Any) -> Schema:
  """A section of the config as an object of its class; every value is checked.

  Fields are of type bool, int, float, str, tuple, Mapping of str, or one of these or None. Their
  `Bound`s apply to the value, those of a Mapping to each of its values. A field that is a dataclass
  is a section within the section. `derived` fields have no key and are not checked. Lists become
  tuples, and a whole number becomes a float if the field is one.

  Raises ValueError for an unknown or missing key, or a wrong type or value. The message has the
  key, the value received and the value expected.
  """
  section = f"config.{section}"
  fields = {name: f for name, f in _fields(schema).items() if name not in derived}
  if not isinstance(values, Mapping):
    raise ValueError(f"{section} must be a section with keys {sorted(fields)}; it is {values!r}.")
  required = {name for name, field in fields.items() if _is_required(field)}
  unknown = sorted(map(str, set(values) - set(fields)))
  missing = sorted(required - set(values))
  if unknown or missing:
    raise ValueError(
      f"{section}: unknown keys {unknown}, missing keys {missing}; valid keys are {sorted(fields)}."
    )
  bounds, converted = {}, {}
  for name, value in values.items():
    annotation: Any = fields[name].type
    bounds[name] = getattr(annotation, "__metadata__", ())
    kind = annotation.__origin__ if bounds[name] else annotation
    converted[name] = _typed(f"{section}.{name}", kind, value)
  # Bounds that depend on other fields come last, when those fields have been checked.
  for depends_on_others in (False, True):
    for name, value in converted.items():
      items = {f"{section}.{name}": value}
      if isinstance(value, Mapping):
        items = {f"{section}.{name}.{key}": item for key, item in value.items()}
      for key, item in items.items():
        for bound in bounds[name]:
          is_due = ("{" in bound.words) == depends_on_others and item is not None
          if is_due and not bound.holds(item, {**derived, **converted}):
            words = bound.words.format_map({"section": section, **derived, **converted})
            raise ValueError(f"{key} must be {words}; it is {item!r}.")
  return schema(**converted, **derived)


def read_some(
  schema: type[Schema], section: str, values: Any, **derived: Any
) -> tuple[Schema, dict[str, Any]]:
  """`read` of the keys that are fields of the class, and a dict of the section's other keys."""
  values = values if isinstance(values, Mapping) else {}
  known = {name: value for name, value in values.items() if name in _fields(schema)}
  rest = {name: value for name, value in values.items() if name not in known}
  return read(schema, section, known, **derived), rest


def build_module(schema: type[Schema], section: str, values: Any, **derived: Any) -> Schema:
  """`read` into a Flax module, whose fields are the keys."""
  return read(schema, section, values, parent=None, name=None, **derived)


def build_stage(model: dict[str, Any], name: str, schema: type[Schema], **derived: Any) -> Schema:
  """Removes a section from `model` and builds its module; see `build_module`."""
  return build_module(schema, f"model.{name}", model.pop(name, {}), **derived)


def defaults(*schemas: type) -> dict[str, Any]:
  """The keys of these classes that have a default, with it."""
  values = {}
  for schema in schemas:
    for name, field in _fields(schema).items():
      if _is_required(field) or name in _FLAX_FIELDS:
        continue
      if field.default_factory is dataclasses.MISSING:
        values[name] = field.default
      else:  # a section within the section
        values[name] = dataclasses.asdict(field.default_factory())
  return values


def _is_required(field: dataclasses.Field) -> bool:
  return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _fields(schema: Any) -> dict[str, dataclasses.Field]:
  return {field.name: field for field in dataclasses.fields(schema)}


def _typed(key: str, kind: Any, value: Any) -> Any:
  """The value converted to the type; `ValueError` if it is of another one."""
  if isinstance(kind, type) and dataclasses.is_dataclass(kind):
    return read(kind, key.removeprefix("config."), value)
  origin, arguments = typing.get_origin(kind), typing.get_args(kind)
  if origin in (dict, Mapping):
    if not isinstance(value, Mapping):
      raise ValueError(f"{key} must be a section; it is {value!r}.")
    return {name: _typed(f"{key}.{name}", arguments[1], item) for name, item in value.items()}
  try:
    return _converted(kind, value)
  except TypeError as error:
    raise ValueError(f"{key} must be {_kind_words(kind)}; it is {value!r}.") from error


def _converted(kind: Any, value: Any) -> Any:
  """The value converted to a simple type or a tuple; TypeError if it is of another one."""
  arguments = typing.get_args(kind)
  is_number = isinstance(value, int | float) and not isinstance(value, bool)
  if typing.get_origin(kind) is tuple:
    if isinstance(value, tuple | list):
      kinds = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
      if len(kinds) == len(value):
        return tuple(map(_converted, kinds, value))
  elif arguments:  # a type or None
    return None if value is None else _converted(arguments[0], value)
  elif kind is float:
    if is_number and -math.inf < value < math.inf:
      # Integers beyond the range of floats stay as they are; a bound refuses them.
      return float(value) if abs(value) <= 2**1000 else value
  elif isinstance(value, kind) and (kind is not int or is_number):
    return value
  raise TypeError


def _kind_words(kind: Any) -> str:
  origin, arguments = typing.get_origin(kind), typing.get_args(kind)
  if origin is tuple and arguments[-1] is not Ellipsis:
    return "points ((step, value), ...) of numbers"
  if origin is tuple:
    inner = _kind_words(arguments[0])
    return inner if inner.startswith("points") else f"a tuple, each entry {inner}"
  if arguments:
    return " or ".join(_kind_words(argument) for argument in arguments)
  words = {bool: "True or False", int: "a whole number", float: "a finite number", str: "a string"}
  return {**words, NoneType: "None"}[kind]


def _limit(limit: Limit, fields: Fields) -> float:
  return fields[limit] if isinstance(limit, str) else limit


def _words(limit: Limit) -> str:
  if isinstance(limit, str):
    return f"{{{limit}}} ({{section}}.{limit})"
  return f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"


Points = tuple[tuple[float, float], ...]
# One weight and one schedule for each loss term of a system.
Weights = Annotated[Mapping[str, float], between(0, MAX_WEIGHT)]
Schedules = Annotated[Mapping[str, Points], line(0, MAX_WEIGHT)]
