"""Exports a model's `encode` and `draw` as StableHLO for CPU, CUDA and TPU; JAX alone runs them.

<folder>/encode.jax_export     image [b, canvas, canvas, c] -> encoding, {name: array}
<folder>/draw_<by>.jax_export  encoding, number [] -> image; a file for each of `System.draws`
<folder>/model.json            shapes, class names and clusters

The batch may have any size. `jax.export.deserialize(file.read_bytes()).call` is the function.
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
  """The functions to export, by name, and the shapes of their arguments.

  Their arguments and results are arrays and dicts of arrays; the parameters are constants. The
  batch size is a number or a dimension of `jax.export.symbolic_shape`.
  """
  system, variables, spec = model.system, model.variables, model.spec
  blank = jax.eval_shape(lambda: spec.blank_batch(1))
  names = ("image",) if isinstance(spec, ImageSpec) else ("points", "presence")
  shapes = [jax.ShapeDtypeStruct((batch_size, *blank[n].shape[1:]), blank[n].dtype) for n in names]

  def encode(*examples: Array) -> dict[str, Array]:
    batch = {**spec.blank_batch(examples[0].shape[0]), **dict(zip(names, examples, strict=True))}
    with by_definition():
      return flat(system.encode(variables, batch))

  encoding_shapes = jax.eval_shape(encode, *shapes)
  number = jax.ShapeDtypeStruct((), jnp.int32)

  def draw_function(draw: Draw, canvas: int) -> Any:
    def draw_encoding(encoding: dict[str, Array], number: Array) -> Array:
      return draw(variables, Encoding(**unflatten_dict(encoding, sep="/")), number, canvas)

    return draw_encoding

  functions: Functions = {"encode": (encode, tuple(shapes))}
  if isinstance(spec, ImageSpec):
    for by, draw in system.draws.items():
      functions[f"draw_{by}"] = draw_function(draw, spec.canvas), (encoding_shapes, number)
  return functions


def flat(encoding: Encoding) -> dict[str, Array]:
  """An encoding as a dict of arrays; nested names are joined by a slash, as `features/prior`."""
  fields = {name: value for name, value in vars(encoding).items() if value is not None}
  arrays: Any = flatten_dict(fields, sep="/")
  return arrays


def export_functions(folder: pathlib.Path, model: "Model") -> None:
  """Writes the files into a folder, which is created if it does not exist."""
  (batch_size,) = jax.export.symbolic_shape("b")
  signatures = {}
  for name, (function, shapes) in functions_of(model, batch_size).items():
    exported = jax.export.export(jax.jit(function), platforms=PLATFORMS)(*shapes)
    write_whole(folder / f"{name}{SUFFIX}", bytes(exported.serialize()))
    result = jax.eval_shape(function, *shapes)
    signatures[name] = {"arguments": _type_names(shapes), "result": _type_names(result)}
  clusters = {name: of_feature.to_json() for name, of_feature in model.clusters.items()}
  content = {"functions": signatures, "class_names": list(model.class_names), "clusters": clusters}
  write_json(folder / "model.json", content)


def _type_names(shapes: Any) -> Any:
  """Types and shapes, as `float32[b, 24]`."""
  return jax.tree.map(lambda leaf: f"{leaf.dtype}[{', '.join(map(str, leaf.shape))}]", shapes)
