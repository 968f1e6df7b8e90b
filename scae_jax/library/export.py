"""A model's `encode` and `draw` as files that JAX alone reads: StableHLO, for CPU, CUDA and TPU.

<folder>/encode.jax_export          image [b, canvas, canvas, c] -> {name: array}
<folder>/draw_<by>.jax_export       what `encode` gives, number [] -> image; one for each of `draws`
<folder>/model.json                 shapes, class names and clusters

The batch is of any size. A file is read by `jax.export.deserialize(file.read_bytes()).call`.
"""

import pathlib
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from scae_jax.files import write_json, write_whole
from scae_jax.layers.convnet import by_definition
from scae_jax.models.system import Draw, Encoding, ImageSpec
from scae_jax.typing import Array

if TYPE_CHECKING:
  from scae_jax.library.model import Model

PLATFORMS = ("cpu", "cuda", "tpu")
SUFFIX = ".jax_export"
Functions = dict[str, tuple[Any, tuple[Any, ...]]]


def functions_of(model: "Model", batch_size: Any) -> Functions:
  """Functions of arrays and dicts of arrays, parameters inside, and the shapes of their arguments.

  The batch size is a number, or a dimension of `jax.export.symbolic_shape`.
  """
  system, variables, spec = model.system, model.variables, model.spec
  blank = jax.eval_shape(lambda: spec.blank_batch(1))
  names = ("image",) if isinstance(spec, ImageSpec) else ("points", "presence")
  shapes = [jax.ShapeDtypeStruct((batch_size, *blank[n].shape[1:]), blank[n].dtype) for n in names]

  def encode(*examples: Array) -> dict[str, Array]:
    batch = {**spec.blank_batch(examples[0].shape[0]), **dict(zip(names, examples, strict=True))}
    with by_definition():
      return flat(system.encode(variables, batch))

  found = jax.eval_shape(encode, *shapes)
  number = jax.ShapeDtypeStruct((), jnp.int32)

  def drawer(draw: Draw, canvas: int) -> Any:
    def drawn(found: dict[str, Array], number: Array) -> Array:
      return draw(variables, Encoding(**unflatten_dict(found, sep="/")), number, canvas)

    return drawn

  functions: Functions = {"encode": (encode, tuple(shapes))}
  if isinstance(spec, ImageSpec):
    for by, draw in system.draws.items():
      functions[f"draw_{by}"] = drawer(draw, spec.canvas), (found, number)
  return functions


def flat(found: Encoding) -> dict[str, Array]:
  """A dict of arrays; names below others have a slash, as `features/prior`."""
  given = {name: value for name, value in vars(found).items() if value is not None}
  arrays: Any = flatten_dict(given, sep="/")
  return arrays


def export_functions(folder: pathlib.Path, model: "Model") -> None:
  """Writes the files into a folder, made if need be."""
  (batch_size,) = jax.export.symbolic_shape("b")
  described = {}
  for name, (function, shapes) in functions_of(model, batch_size).items():
    exported = jax.export.export(jax.jit(function), platforms=PLATFORMS)(*shapes)
    write_whole(folder / f"{name}{SUFFIX}", bytes(exported.serialize()))
    result = jax.eval_shape(function, *shapes)
    described[name] = {"arguments": _described(shapes), "result": _described(result)}
  named = {name: one.to_json() for name, one in model.clusters.items()}
  content = {"functions": described, "class_names": list(model.class_names), "clusters": named}
  write_json(folder / "model.json", content)


def _described(shapes: Any) -> Any:
  """Types and shapes, as `float32[b, 24]`."""
  return jax.tree.map(lambda leaf: f"{leaf.dtype}[{', '.join(map(str, leaf.shape))}]", shapes)
